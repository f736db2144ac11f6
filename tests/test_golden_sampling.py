"""Filters of the sampler against transformers' processors, in the order that its generate uses.

Where top-p cuts between equal logits, transformers leaves the choice to an unstable sort; such
cases are not in the goldens. Ours is stated and tested here: the lower id stays.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from minifer import sampling
from minifer.sampling import Sampling, probabilities

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sampling.json").read_text("utf-8"))
BY_OPTIONS = {}
for case in GOLDEN["cases"]:
    BY_OPTIONS.setdefault(json.dumps(case["options"]), []).append(case)


def wanted(case):
    expected = np.zeros(len(GOLDEN["logits"][case["logits"]]))
    for place, chance in case["kept"].items():
        expected[int(place)] = chance
    return expected


def ours(case, **changes):
    options = Sampling(**(case["options"] | changes))
    row, history = GOLDEN["logits"][case["logits"]], GOLDEN["histories"][case["history"]]
    return probabilities(np.array(row), options, history)


@pytest.mark.parametrize("options", BY_OPTIONS)
def test_probabilities(options):
    for case in BY_OPTIONS[options]:
        found, expected = ours(case), wanted(case)
        assert found.dtype == np.float64
        assert (found > 0).tolist() == (expected > 0).tolist(), case
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9, err_msg=str(case))


def test_float32_logits_give_the_same():
    for case in GOLDEN["cases"]:
        options = Sampling(**case["options"])
        row = np.array(GOLDEN["logits"][case["logits"]], np.float32)
        found = probabilities(row, options, GOLDEN["histories"][case["history"]])
        # float32 holds 24 bits of a logit of 30: an error of 2e-6, more at a low temperature.
        np.testing.assert_allclose(found, wanted(case), rtol=1e-4, atol=1e-6, err_msg=str(case))


def test_the_order_is_the_stated_one():
    assert [name[:4] for name in GOLDEN["order"]] == ["Repe", "Temp", "TopK", "TopP", "MinP"]
    assert len(GOLDEN["cases"]) > 200


def test_equals_at_the_edge_of_top_p_the_lower_id_stays():
    found = probabilities(np.zeros(8), Sampling(temperature=1.0, top_p=0.4))
    assert found.tolist() == [0.25] * 4 + [0.0] * 4


# ---- would the goldens notice? -------------------------------------------------------------------

FILTERS = ("penalise", "heat", "keep_top_k", "keep_top_p", "keep_min_p")


def noticed():
    """How many cases differ now."""
    return sum(
        not np.allclose(ours(case), wanted(case), rtol=1e-6, atol=1e-9) for case in GOLDEN["cases"]
    )


def test_nothing_broken_passes():
    assert noticed() == 0


def strict_top_k(scores, k):
    """Exactly k, ties or not."""
    order = np.argsort(-scores, kind="stable")
    kept = np.full_like(scores, -np.inf)
    kept[order[:k]] = scores[order[:k]]
    return kept


def exclusive_top_p(scores, p):
    """Without the token that crosses the edge."""
    order = np.argsort(-scores, kind="stable")
    count = max(1, int(np.count_nonzero(np.cumsum(sampling.softmax(scores[order])) < p)))
    kept = np.full_like(scores, -np.inf)
    kept[order[:count]] = scores[order[:count]]
    return kept


def each_time(scores, penalty, history):
    """Once per occurrence instead of once per id."""
    for token_id in history:
        scores = PENALISE(scores, penalty, [token_id])
    return scores


PENALISE = sampling.penalise
BREAKS = {
    "no penalty": ("penalise", lambda scores, penalty, history: scores),
    "penalty each time": ("penalise", each_time),
    "penalty always divides": (
        "penalise",
        lambda scores, penalty, history: np.where(
            np.isin(np.arange(len(scores)), history), scores / penalty, scores
        ),
    ),
    "penalty subtracts": (
        "penalise",
        lambda scores, penalty, history: np.where(
            np.isin(np.arange(len(scores)), history), scores - np.log(penalty), scores
        ),
    ),
    "temperature multiplies": ("heat", lambda scores, t: (scores - scores.max()) * t),
    "temperature ignored": ("heat", lambda scores, t: scores - scores.max()),
    "top-k without ties": ("keep_top_k", strict_top_k),
    "top-k one more": ("keep_top_k", lambda s, k, f=sampling.keep_top_k: f(s, k + 1)),
    "top-p without the crossing token": ("keep_top_p", exclusive_top_p),
    "min-p of the sum": (
        "keep_min_p",
        lambda s, p: np.where((sampling.softmax(s) < p) & (s < s.max()), -np.inf, s),
    ),
    "min-p ignored": ("keep_min_p", lambda s, p: s),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_wrong_filter_is_noticed(what, monkeypatch):
    name, function = BREAKS[what]
    assert name in FILTERS
    monkeypatch.setattr(sampling, name, function)
    assert noticed() >= 3


@pytest.mark.parametrize(
    "order",
    [
        ("heat", "penalise", "keep_top_k", "keep_top_p", "keep_min_p"),
        ("penalise", "keep_top_k", "keep_top_p", "keep_min_p", "heat"),
        ("penalise", "heat", "keep_top_p", "keep_top_k", "keep_min_p"),
        ("penalise", "heat", "keep_min_p", "keep_top_k", "keep_top_p"),
    ],
)
def test_another_order_is_noticed(order):
    """Filters run by hand in another order differ somewhere, in the right order nowhere."""
    assert misplaced(FILTERS) == 0
    assert misplaced(order) >= 1


def misplaced(order):
    count = 0
    for case in GOLDEN["cases"]:
        options = Sampling(**case["options"])
        scores = np.array(GOLDEN["logits"][case["logits"]])
        for name in order:
            if name == "penalise":
                history = GOLDEN["histories"][case["history"]]
                scores = sampling.penalise(scores, options.repetition_penalty, history)
            elif name == "heat":
                scores = sampling.heat(scores, options.temperature)
            elif name == "keep_top_k" and options.top_k:
                scores = sampling.keep_top_k(scores, options.top_k)
            elif name == "keep_top_p" and options.top_p < 1:
                scores = sampling.keep_top_p(scores, options.top_p)
            elif name == "keep_min_p" and options.min_p:
                scores = sampling.keep_min_p(scores, options.min_p)
        found = sampling.softmax(scores)
        count += not np.allclose(found, wanted(case), rtol=1e-6, atol=1e-9)
    return count
