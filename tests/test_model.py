"""A pass is a pass: cached = uncached, chunked = whole, several segments = each alone."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import tiny_model, write_tiny_model

import minifer
from minifer import ContextError, Segment
from minifer.layers import log_softmax

IDS = [5, 17, 200, 33, 5, 8, 299, 0, 41, 12, 77, 130]


def close(found, expected):
    """The design's tolerance."""
    bound = 2e-5 * max(5, float(np.abs(expected).max()))
    assert np.abs(found - expected).max() <= bound


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.sampled_from(["F32", "BF16"]))
def test_any_split_into_chunks_equals_the_whole(sizes, dtype):
    model = tiny_model(dtype=dtype)
    whole = model.forward(IDS)
    cache, rows, begin = model.new_cache(), [], 0
    for size in [*sizes, len(IDS)]:
        chunk = IDS[begin : begin + size]
        if chunk:
            rows.append(model.forward(chunk, cache))
        begin += len(chunk)
    assert cache.token_ids == IDS
    close(np.concatenate(rows), whole)


def test_last_only_is_the_last_row_and_a_given_cache_is_filled():
    model = tiny_model()
    cache = model.new_cache()
    last = model.forward(IDS, cache, last_only=True)
    assert last.shape == (1, 300)
    assert last.dtype == np.float32
    close(last, model.forward(IDS)[-1:])
    assert cache.length == len(IDS)


@settings(max_examples=30)
@given(st.data())
def test_segments_of_any_length_equal_each_alone(data):
    model = tiny_model()
    segments, expected, whole = [], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        ids = data.draw(st.lists(st.integers(0, 299), min_size=1, max_size=9))
        before = data.draw(st.lists(st.integers(0, 299), max_size=6))
        together, alone = model.new_cache(), model.new_cache()
        for cache in (together, alone):
            if before:
                model.forward(before, cache)
        segments.append(Segment(ids, together))
        rows = model.forward(ids, alone)
        whole.append(rows)
        expected.append(rows[-1])
    all_rows = data.draw(st.booleans())
    found = model.step(segments, all_rows=all_rows)
    close(found, np.concatenate(whole) if all_rows else np.stack(expected))


def test_a_step_over_segments_fills_every_cache():
    model = tiny_model()
    one, two = model.new_cache(), model.new_cache()
    model.step([Segment([1, 2], one), Segment([3], two)])
    assert (one.token_ids, two.token_ids) == ([1, 2], [3])
    after = model.step([Segment([4], one), Segment([5, 6], two)])
    close(after[0], model.forward([1, 2, 4])[-1])
    close(after[1], model.forward([3, 5, 6])[-1])


def test_a_cache_twice_in_one_step_is_refused():
    model = tiny_model()
    cache = model.new_cache()
    with pytest.raises(ContextError, match="two segments of one step"):
        model.step([Segment([1], cache), Segment([2], cache)])
    assert cache.length == 0


def test_one_bad_segment_leaves_every_cache_untouched():
    model = tiny_model()
    good, full = model.new_cache(), model.new_cache(1)
    with pytest.raises(ContextError, match="do not fit"):
        model.step([Segment([1, 2], good), Segment([1, 2], full)])
    assert good.length == full.length == 0
    assert not good.keys.any()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "at least one"),
        ([300], "token id 300 at place 0; allowed are 0 to 299"),
        ([1, -1], "token id -1 at place 1"),
        ([1.0], r"token id 1\.0"),
        ("hi", r"encode it first, model\.tokenizer\.encode\(text\)"),
        (None, "token ids are None; expected a list"),
        (7, "token ids are 7; expected a list"),
        ([np.float32(1)], "token id np.float32"),
        ([np.int64(300)], r"token id np\.int64\(300\) at place 0"),
        ([True], "token id True"),
        (["1"], "token id '1'"),
        ([None], "token id None"),
        ([[1, 2]], r"token id \[1, 2\]"),
        (np.array([[1, 2]]), r"token id \[1, 2\]"),
        (np.array([0.5]), r"token id 0\.5"),
        ([2**70], "allowed are 0 to 299"),
    ],
)
def test_token_ids_are_checked_before_anything_is_written(ids, message):
    model = tiny_model()
    cache = model.new_cache()
    with pytest.raises(ContextError, match=message):
        model.forward(ids, cache)
    assert cache.length == 0


@pytest.mark.parametrize("kind", [np.array, tuple, lambda ids: np.array(ids, np.uint16)])
def test_token_ids_may_come_as_any_sequence_of_whole_numbers(kind):
    model = tiny_model()
    np.testing.assert_array_equal(model.forward(kind(IDS)), model.forward(IDS))


@pytest.mark.parametrize("length", [0, -1, 1.5, "8", True])
def test_a_cache_length_that_is_none_is_refused(length):
    with pytest.raises(ContextError, match="max_length is .*; allowed is a whole number from 1"):
        tiny_model().new_cache(length)


def test_no_segments_and_a_foreign_cache_are_refused():
    model, deeper = tiny_model(), tiny_model(num_hidden_layers=2)
    with pytest.raises(ContextError, match="at least one segment"):
        model.step([])
    with pytest.raises(ContextError, match=r"this model needs .*\(3, 2, 8\)"):
        model.forward([1], deeper.new_cache())
    with pytest.raises(ContextError, match="the cache is None"):
        model.step([Segment([1], None)])


def test_a_prompt_longer_than_the_context_is_refused():
    with pytest.raises(ContextError, match="longer than the model's context of 128"):
        tiny_model().forward([1] * 129)
    assert tiny_model().forward([1] * 128, last_only=True).shape == (1, 300)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_score_is_the_log_softmax_of_each_next_token(chunk):
    model = tiny_model()
    rows = log_softmax(np, model.forward(IDS))[:-1]
    expected = rows[np.arange(len(IDS) - 1), IDS[1:]]
    found = model.score(IDS, chunk=chunk)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert model.score([7]).shape == (0,)
    with pytest.raises(ContextError, match="chunk is 0; allowed is a whole number from 1"):
        model.score(IDS, chunk=0)
    with pytest.raises(ContextError):
        model.score([])


def test_the_stored_dtypes_give_the_same_logits_for_the_same_values():
    wide = tiny_model().forward(IDS)
    assert [tiny_model(dtype=d).dtype for d in ("F32", "F16", "BF16")] == [
        "float32",
        "float16",
        "bfloat16",
    ]
    close(tiny_model(dtype="F16").forward(IDS), wide)
    close(tiny_model(dtype="BF16").forward(IDS), wide)


def test_reference_kernels_equal_the_fast_ones(tmp_path):
    for dtype in ("F32", "F16", "BF16"):
        folder = write_tiny_model(tmp_path / dtype, dtype=dtype)
        slow, fast = (minifer.load(folder, kernels=k) for k in ("reference", "numpy"))
        close(fast.forward(IDS), slow.forward(IDS))


def test_two_threads_share_a_model():
    model = tiny_model()
    expected = [model.forward(IDS[n:]) for n in range(4)]
    wrong = []

    def run(n):
        for _ in range(20):
            if not np.array_equal(model.forward(IDS[n:]), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
