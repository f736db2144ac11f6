"""The plain ops against their formulas in float64, and weights in every stored dtype."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from minifer.backend.numpy_twins import BLOCK_ELEMENTS, linear_in_blocks
from minifer.config import RopeConfig
from minifer.layers import embedding, join, linear, log_softmax, residual, rms_norm, select, widen
from minifer.mlp import gate
from minifer.rope import inverse_frequencies, rope, rotation

rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def bfloat16_words(array):
    """Truncated, not rounded: any 16-bit words do for a test of widening."""
    return (array.view(np.uint32) >> 16).astype(np.uint16)


@given(arrays.arrays(np.uint16, 40))
def test_a_bfloat16_is_the_upper_half_of_a_float32(words):
    wide = widen(np, words)
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide.view(np.uint32) >> 16, words)
    assert not (wide.view(np.uint32) & 0xFFFF).any()


def test_float32_is_passed_on_and_float16_is_exact():
    array = normal(3, 4)
    assert widen(np, array) is array
    half = array.astype(np.float16)
    np.testing.assert_array_equal(widen(np, half), half.astype(np.float32))


@pytest.mark.parametrize("store", [np.asarray, lambda a: a.astype(np.float16), bfloat16_words])
@pytest.mark.parametrize("T", [1, 2, 7])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("function", [linear, linear_in_blocks])
def test_linear(store, T, biased, function):
    weight, bias, x = store(normal(11, 6)), store(normal(11)) if biased else None, normal(T, 6)
    found = function(np, x, weight, bias)
    expected = x.astype(float) @ widen(np, weight).astype(float).T
    if biased:
        expected = expected + widen(np, bias)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("store", [lambda a: a.astype(np.float16), bfloat16_words])
def test_the_twin_in_blocks_equals_the_reference_over_a_block_border(store):
    width = 512
    weight, x = store(normal(BLOCK_ELEMENTS // width + 3, width)), normal(2, width)
    np.testing.assert_allclose(
        linear_in_blocks(np, x, weight), linear(np, x, weight), rtol=1e-5, atol=1e-4
    )


def test_embedding_gathers_and_widens():
    table = bfloat16_words(normal(9, 4))
    found = embedding(np, np.array([8, 0, 8]), table)
    np.testing.assert_array_equal(found, widen(np, table)[[8, 0, 8]])


@given(st.integers(1, 4), st.integers(1, 9), st.sampled_from([1e-6, 1e-5, 1e-2]))
def test_rms_norm(T, D, epsilon):
    x, weight = 3 * normal(T, D), normal(D)
    wide = x.astype(float)
    expected = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + epsilon) * weight
    found = rms_norm(np, x, weight, epsilon)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_gate_is_silu_times_up_and_never_warns():
    opening = np.array([[-1e30, -200, -88.5, -1, 0, 1, 88, 1e30]], np.float32)
    up = np.full_like(opening, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gate(np, opening, up)
    exact = opening.astype(float) / (1 + np.exp(-np.clip(opening.astype(float), -700, 700))) * 2
    # Far below zero the clamp leaves the value itself over 1e38: too small to matter beside 1.
    np.testing.assert_allclose(found[0, 2:], exact[0, 2:], rtol=1e-5, atol=1e-30)
    assert np.abs(found[0, :2]).max() < 1e-7


def test_residual_select_join():
    x = normal(4, 3)
    np.testing.assert_array_equal(residual(np, x, x), 2 * x)
    np.testing.assert_array_equal(select(np, x, np.array([3, 1])), x[[3, 1]])
    assert join(np, [x]) is x
    np.testing.assert_array_equal(join(np, [x[:1], x[1:]]), x)


@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([2, 6, 8]))
def test_rope_turns_each_pair_as_a_complex_number(begin, T, E):
    inverse = inverse_frequencies(np, RopeConfig(10000.0), E)
    heads, places = normal(T, 3, E), np.arange(begin, begin + T)
    cos, sin = rotation(np, places, inverse)
    assert cos.dtype == sin.dtype == np.float32
    found = rope(np, heads, cos, sin)
    angles = (places[:, None].astype(np.float32) * inverse).astype(float)
    pairs = heads[..., : E // 2] + 1j * heads[..., E // 2 :]
    turned = pairs * np.exp(1j * angles)[:, None, :]
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_scores_under_rope_depend_on_the_distance_alone():
    inverse = inverse_frequencies(np, RopeConfig(10000.0), 16)
    query, key = normal(1, 1, 16), normal(1, 1, 16)

    def score(at, distance):
        turn = lambda x, p: rope(np, x, *rotation(np, np.array([p]), inverse))  # noqa: E731
        return float((turn(query, at) * turn(key, at - distance)).sum())

    assert score(5, 3) == pytest.approx(score(105, 3), abs=1e-3)
    assert score(5, 3) != pytest.approx(score(5, 4), abs=1e-3)


def test_log_softmax_is_float64_and_adds_up():
    logits = np.array([[1000.0, 999.0, -1000.0]], np.float32)
    found = log_softmax(np, logits)
    assert found.dtype == np.float64
    assert np.exp(found).sum() == pytest.approx(1, abs=1e-12)
