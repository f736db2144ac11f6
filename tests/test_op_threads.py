"""Several threads on one model: recordings, swaps and tokens stay apart."""

import threading

import numpy as np
import pytest
from tiny_model import tiny_model

import minifer
from minifer.op import REGISTRY

IDS = [5, 17, 200, 33, 5, 8]


@pytest.fixture
def model():
    return tiny_model()


def test_two_threads_on_one_model_do_not_see_each_other(model):
    """A recording, and the passes of another thread with it, stay apart; so do the tokens."""

    def stream(record):
        cache, ids = model.new_cache(64), [1]
        rows = []
        for _ in range(30):
            if record:
                with minifer.record() as recording:
                    logits = model.forward(ids[-1:], cache)
                rows.append(len(recording.rows))
            else:
                logits = model.forward(ids[-1:], cache)
            ids.append(int(logits[-1].argmax()))
        return ids, rows

    alone, counted = stream(True)
    results = [None] * 4
    for _ in range(5):
        threads = [
            threading.Thread(target=lambda n=n: results.__setitem__(n, stream(n % 2 == 0)))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [ids for ids, _ in results] == [alone] * 4
        assert results[0][1] == results[2][1] == counted


def test_a_pass_keeps_the_table_it_began_with(model):
    """A swap made in another thread while a pass runs is for the next pass."""
    entered, go_on, found = threading.Event(), threading.Event(), []
    before = model.forward(IDS)

    def slow(xp, token_ids, table):
        entered.set()
        assert go_on.wait(10)
        return REGISTRY["embedding"].reference(xp, token_ids, table)

    with model.swap(embedding=slow):
        thread = threading.Thread(target=lambda: found.append(model.forward(IDS)))
        thread.start()
        assert entered.wait(10)
        with model.swap(rope=lambda xp, heads, cos, sin: 0 * heads):
            go_on.set()
            thread.join()
    np.testing.assert_array_equal(found[0], before)
