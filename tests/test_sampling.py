"""Filters, draws and what is refused. Probabilities against transformers: test_golden_sampling."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minifer
from minifer import Sampling, SamplingError
from minifer.sampling import pick, probabilities, sample

logits_lists = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40)
samplings = st.builds(
    Sampling,
    temperature=st.floats(1e-3, 10),
    top_k=st.integers(0, 50),
    top_p=st.floats(1e-6, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.1, 5),
)


@given(logits_lists, samplings)
def test_probabilities_add_up_and_keep_the_likeliest(logits, sampling):
    found = probabilities(logits, sampling)
    assert found.dtype == np.float64
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert (found >= 0).all()
    best = np.flatnonzero(np.array(logits) == max(logits))
    assert found[best].max() > 0, "at least one candidate survives"


@given(logits_lists, samplings, st.integers(0, 2**64 - 1), st.integers(0, 1000))
def test_a_draw_has_a_chance_and_depends_on_seed_and_position_alone(logits, plain, seed, place):
    sampling = Sampling(**{**vars(plain), "seed": seed})
    token_id = sample(logits, sampling, position=place)
    assert type(token_id) is int
    assert probabilities(logits, sampling)[token_id] > 0
    assert sample(logits, sampling, position=place) == token_id


def test_temperature_zero_is_one_hot_at_the_lowest_index_maximum():
    found = probabilities([1, 3, 3, 2], Sampling())
    np.testing.assert_array_equal(found, [0, 1, 0, 0])
    assert sample([1, 3, 3, 2], Sampling()) == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-12, 1e-5])
def test_a_tiny_temperature_is_the_maximum_without_a_warning(temperature):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = probabilities([1.0, 3.0, 2.999], Sampling(temperature=temperature))
    np.testing.assert_allclose(found, [0, 1, 0], atol=1e-40)


def test_top_k_keeps_ties_and_above_the_vocabulary_is_off():
    np.testing.assert_array_equal(
        probabilities([2, 1, 2, 1], Sampling(1.0, top_k=1)) > 0, [True, False, True, False]
    )
    np.testing.assert_array_equal(
        probabilities([2, 1, 0], Sampling(1.0, top_k=99)), probabilities([2, 1, 0], Sampling(1.0))
    )


def test_top_p_keeps_a_token_while_the_mass_above_it_is_less():
    logits = np.log([0.5, 0.25, 0.15, 0.1])
    kept = lambda p: int((probabilities(logits, Sampling(1.0, top_p=p)) > 0).sum())  # noqa: E731
    assert [kept(p) for p in (1e-9, 0.49, 0.51, 0.74, 0.76, 0.91)] == [1, 1, 2, 2, 3, 4]


def test_min_p_is_relative_to_the_likeliest():
    logits = np.log([0.5, 0.25, 0.15, 0.1])
    kept = lambda p: int((probabilities(logits, Sampling(1.0, min_p=p)) > 0).sum())  # noqa: E731
    assert [kept(p) for p in (1e-9, 0.19, 0.21, 0.49, 0.51, 1.0)] == [4, 4, 3, 2, 1, 1]


def test_the_penalty_counts_a_distinct_id_once_and_makes_negative_scores_smaller():
    halved = Sampling(1.0, repetition_penalty=2.0)
    found = probabilities([2.0, -2.0, 1.0], halved, history=[0, 1, 1, 0, 0])
    np.testing.assert_allclose(found, probabilities([1.0, -4.0, 1.0], Sampling(1.0)))
    greedy = Sampling(repetition_penalty=3.0)
    assert sample([2.0, 1.0], greedy, history=[0]) == 1


def test_the_order_is_penalty_temperature_top_k_top_p_min_p():
    """Each pair is told apart by a case in which the other order keeps another set."""
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    heat_then_p = probabilities(logits, Sampling(temperature=0.25, top_p=0.5))
    np.testing.assert_array_equal(heat_then_p > 0, [True, False, False, False])  # 0.72 > 0.5
    k_then_p = probabilities(logits, Sampling(1.0, top_k=2, top_p=0.5))
    np.testing.assert_array_equal(k_then_p > 0, [True, False, False, False])  # 0.4/0.7 > 0.5
    penalty_first = probabilities([4.0, 3.0, 2.0], Sampling(1.0, 1, repetition_penalty=2.0), [0])
    np.testing.assert_array_equal(penalty_first, [0, 1, 0])


def test_draws_follow_the_probabilities():
    """Chi-square over 20,000 positions of one seed; the bound is the 99.99 % point."""
    logits = np.log([0.5, 0.2, 0.2, 0.06, 0.04])
    sampling = Sampling(1.0, top_k=4, seed=12345)
    chances = probabilities(logits, sampling)
    draws = [sample(logits, sampling, position=place) for place in range(20_000)]
    counts = np.bincount(draws, minlength=5)
    assert counts[4] == 0
    expected = 20_000 * chances[:4]
    assert ((counts[:4] - expected) ** 2 / expected).sum() < 21.1


def test_top_p_drops_a_token_when_the_mass_above_it_is_exactly_p():
    found = probabilities([0.0, 0.0], Sampling(1.0, top_p=0.5))
    np.testing.assert_array_equal(found, [1, 0])


@pytest.mark.parametrize("draw", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("scale", [1 - 1e-12, 1.0, 1 + 1e-12])
def test_rounding_of_the_sum_never_picks_what_has_no_chance(draw, scale):
    chances = np.array([0.0] + [0.1 * scale] * 10 + [0.0])
    assert 1 <= pick(chances, draw) <= 10
    assert pick(chances, 0.0) == 1
    assert pick(chances, 1 - 2**-53) == 10


def test_one_row_is_taken_and_a_matrix_is_refused():
    row = np.array([0.0, 2.0, 1.0], np.float32)
    assert sample(row[None], Sampling()) == sample(row, Sampling()) == 1
    for shape in ((2, 3), (1, 1, 3), ()):
        with pytest.raises(SamplingError, match="expected one row"):
            sample(np.zeros(shape), Sampling())


@pytest.mark.parametrize("penalty", [1e-320, 1e308])
def test_a_penalty_that_leaves_the_range_is_an_error_not_a_nan(penalty):
    with pytest.raises(SamplingError, match="out of range"):
        probabilities([-2.0, -3.0], Sampling(1.0, repetition_penalty=penalty), [0, 1])
        probabilities([2.0, 3.0], Sampling(1.0, repetition_penalty=penalty), [0, 1])


@pytest.mark.parametrize("position", [-1, 2**64, 1.5, None])
def test_a_position_out_of_range_is_named(position):
    with pytest.raises(SamplingError, match="position is .*; allowed"):
        sample([0.0, 1.0], Sampling(1.0, seed=1), position=position)


def test_no_seed_means_a_fresh_one():
    logits = np.zeros(1000)
    assert len({sample(logits, Sampling(1.0)) for _ in range(8)}) > 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("temperature", v) for v in (-0.1, math.nan, math.inf, "1", None, True, 10**400)],
        *[("top_k", v) for v in (-1, 1.5, None, True)],
        *[("top_p", v) for v in (0, -1, 1.1, math.nan, None)],
        *[("min_p", v) for v in (-0.1, 1.1, math.nan)],
        *[("repetition_penalty", v) for v in (0, -1, math.inf, math.nan)],
        *[("seed", v) for v in (-1, 2**64, 1.0, "1")],
    ],
)
def test_an_option_out_of_range_is_named(option, value):
    with pytest.raises(SamplingError, match=f"{option} is .*; allowed is "):
        Sampling(**{option: value})


@pytest.mark.parametrize(
    ("logits", "found"),
    [
        ([], "none"),
        ([-math.inf] * 3, "all -inf"),
        ([0.0, math.nan], "NaN"),
        ([math.nan] * 2, "NaN"),
        ([math.inf, 0.0], "inf"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_nothing_can_be_drawn_from_are_an_error(logits, found, temperature):
    with pytest.raises(SamplingError, match=f"nothing can be drawn .*{found}"):
        sample(logits, Sampling(temperature))


def test_an_impossible_token_is_never_drawn():
    logits = [-math.inf, 0.0, -math.inf, -1.0]
    draws = {sample(logits, Sampling(1.0, seed=1), position=n) for n in range(200)}
    assert draws == {1, 3}


@pytest.mark.parametrize("history", [[4], [-1], [0, 99]])
def test_a_history_outside_the_vocabulary_is_an_error(history):
    with pytest.raises(SamplingError, match="ids outside 0 to 3"):
        probabilities([1, 2, 3, 4], Sampling(repetition_penalty=2.0), history)


def test_the_module_and_the_class_are_reached_from_the_package():
    assert minifer.sampling.probabilities is probabilities
    assert minifer.Sampling is Sampling
