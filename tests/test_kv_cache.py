"""The KV cache: append, advance, truncate, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import tiny_model

from minifer import ContextError
from minifer.kv_cache import KVCache


def test_a_new_cache_is_empty_and_says_what_it_holds():
    cache = KVCache(np, layers=2, heads=3, max_length=7, head_dim=4)
    assert (cache.length, cache.token_ids, cache.shape) == (0, [], (2, 3, 4))
    assert cache.nbytes == 2 * 2 * 3 * 7 * 4 * 4
    assert cache.keys.dtype == np.float32


@pytest.mark.parametrize("length", [0, -1])
def test_a_cache_without_room_is_refused(length):
    with pytest.raises(ContextError, match="room for at least 1"):
        KVCache(np, 1, 1, length, 2)


def test_a_cache_longer_than_the_context_is_refused():
    model = tiny_model()
    with pytest.raises(ContextError, match="longer than the model's context of 128"):
        model.new_cache(129)
    assert model.new_cache().max_length == 128


def test_overflow_is_refused_before_anything_is_written():
    model = tiny_model()
    cache = model.new_cache(4)
    model.forward([1, 2, 3], cache)
    keys, values = cache.keys.copy(), cache.values.copy()
    with pytest.raises(ContextError, match=r"2 more tokens after 3 .*new_cache\(max_length=5\)"):
        model.forward([4, 5], cache)
    np.testing.assert_array_equal(cache.keys, keys)
    np.testing.assert_array_equal(cache.values, values)
    assert cache.token_ids == [1, 2, 3]
    model.forward([4], cache)
    assert cache.token_ids == [1, 2, 3, 4]


def test_a_failing_pass_leaves_the_length_alone():
    model = tiny_model()
    cache = model.new_cache(8)
    expected = model.forward([1, 2, 3], model.new_cache(8))

    def broken(xp, gate, up):
        raise RuntimeError("in the middle of a pass")

    with model.swap(gate=broken), pytest.raises(RuntimeError, match="middle"):
        model.forward([9, 9, 9], cache)
    assert cache.length == 0
    np.testing.assert_array_equal(model.forward([1, 2, 3], cache), expected)


@pytest.mark.parametrize("length", [-1, 4])
def test_truncating_to_what_is_not_there_is_refused(length):
    model = tiny_model()
    cache = model.new_cache(8)
    model.forward([1, 2, 3], cache)
    with pytest.raises(ContextError, match="the cache holds 3"):
        cache.truncate(length)
    assert cache.length == 3


def test_after_truncating_a_run_equals_a_fresh_one():
    model = tiny_model()
    cache = model.new_cache(16)
    model.forward([1, 2, 3, 4, 5], cache)
    cache.truncate(2)
    assert cache.token_ids == [1, 2]
    again = model.forward([7, 8], cache)
    fresh = model.new_cache(16)
    model.forward([1, 2], fresh)
    np.testing.assert_allclose(again, model.forward([7, 8], fresh), rtol=1e-5, atol=1e-5)


@given(
    st.lists(st.integers(0, 3), max_size=8),
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
)
def test_the_shared_prefix_is_the_longest_and_leaves_one_token_to_compute(held, wanted):
    cache = KVCache(np, 1, 1, 16, 2)
    cache.advance(held)
    kept = held[: cache.shared_prefix(wanted)]
    assert kept == wanted[: len(kept)] == held[: len(kept)]
    assert len(kept) < len(wanted)
    longer = len(kept) + 1
    assert longer == len(wanted) or held[:longer] != wanted[:longer] or len(held) < longer
