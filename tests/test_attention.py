"""Attention against the formula written as loops, and its edges."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifer.attention import attention


def by_the_formula(query, key, value, query_positions, key_positions):
    """Vaswani et al. 2017, equation 1, a row at a time in float64; head h reads KV head h // G."""
    T, H, E = query.shape
    K, S, _ = key.shape
    mixed = np.zeros((T, H, E))
    for t in range(T):
        for h in range(H):
            k = h // (H // K)
            seen = [s for s in range(S) if key_positions[s] <= query_positions[t]]
            if not seen:
                continue
            scores = [float(query[t, h].astype(float) @ key[k, s]) / math.sqrt(E) for s in seen]
            raised = np.exp(np.array(scores) - max(scores))
            weights = raised / raised.sum()
            mixed[t, h] = sum(
                w * value[k, s].astype(float) for w, s in zip(weights, seen, strict=True)
            )
    return mixed


def draw(rng, T, S, K, G, E, scale=1.0):
    make = lambda *shape: (scale * rng.standard_normal(shape)).astype(np.float32)  # noqa: E731
    return make(T, K * G, E), make(K, S, E), make(K, S, E)


@given(
    st.integers(1, 5), st.integers(0, 6), st.integers(1, 3), st.integers(1, 3),
    st.sampled_from([1, 2, 5, 8]), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_equals_the_formula(T, cached, K, G, E, seed):
    query, key, value = draw(np.random.default_rng(seed), T, cached + T, K, G, E)
    places = np.arange(cached, cached + T), np.arange(cached + T)
    found = attention(np, query, key, value, *places)
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, by_the_formula(query, key, value, *places), rtol=1e-4, atol=1e-5
    )


def test_keys_are_hidden_by_absolute_position_not_by_order():
    query, key, value = draw(np.random.default_rng(1), 3, 5, 2, 2, 4)
    places = np.array([4, 2, 9]), np.array([9, 0, 3, 2, 7])
    np.testing.assert_allclose(
        attention(np, query, key, value, *places),
        by_the_formula(query, key, value, *places),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_row_that_sees_nothing_is_zero_without_a_warning():
    query, key, value = draw(np.random.default_rng(2), 2, 3, 1, 2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = attention(np, query, key, value, np.array([0, 5]), np.array([3, 4, 5]))
    assert not found[0].any()
    assert found[1].any()


@pytest.mark.parametrize("scale", [1e-20, 30.0, 1e4])
def test_scores_of_any_size_stay_finite(scale):
    query, key, value = draw(np.random.default_rng(3), 4, 4, 2, 1, 8, scale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = attention(np, query, key, value, np.arange(4), np.arange(4))
    assert np.isfinite(found).all()


def test_a_later_key_changes_nothing_before_it():
    rng = np.random.default_rng(4)
    query, key, value = draw(rng, 6, 6, 2, 2, 4)
    places = np.arange(6), np.arange(6)
    before = attention(np, query, key, value, *places)
    key[:, 5], value[:, 5] = 100 * rng.standard_normal((2, 2, 4))
    after = attention(np, query, key, value, *places)
    np.testing.assert_array_equal(before[:5], after[:5])
    assert not np.array_equal(before[5], after[5])


def test_taps_show_scores_weights_and_mixed_and_change_nothing():
    query, key, value = draw(np.random.default_rng(5), 3, 4, 2, 3, 4)
    places = np.arange(1, 4), np.arange(4)
    seen = {}

    def tap(name, array):
        seen[name] = array
        return array

    found = attention(np, query, key, value, *places, tap=tap)
    np.testing.assert_array_equal(found, attention(np, query, key, value, *places))
    assert {name: array.shape for name, array in seen.items()} == {
        "scores": (2, 3, 3, 4),
        "weights": (2, 3, 3, 4),
        "mixed": (3, 6, 4),
    }
    np.testing.assert_allclose(seen["weights"].sum(axis=-1), 1, rtol=1e-6)
    assert not seen["weights"][:, 0, :, 2:].any()  # the first query, at position 1, sees two keys
