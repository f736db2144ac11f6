"""The default model against transformers: prompts, logits, greedy tokens, scores.

Needs the model in the cache (`make generate` fetches it). It is not skipped when it is missing.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import minifer
from minifer.errors import FetchError
from minifer.model import Model

pytestmark = pytest.mark.default_model

GOLDEN = json.loads((Path(__file__).parent / "golden" / "default_model.json").read_text("utf-8"))
PROMPTS, SCORED = GOLDEN["prompts"], GOLDEN["scored"]
CHATS = [name for name, case in PROMPTS.items() if "rendered" in case]

every_prompt = pytest.mark.parametrize("name", PROMPTS)


def opened(dtype):
    try:
        return minifer.load("default", dtype=dtype, offline=True)
    except FetchError as problem:
        pytest.fail(f"run `make generate` first, it fetches the default model: {problem}")


@pytest.fixture(scope="module")
def model():
    return opened(None)


@pytest.fixture(scope="module")
def narrow():
    return opened("bfloat16")


def tolerance(case):
    return 2e-5 * max(5.0, case["max_logit"])


def check_rows(case, logits):
    """Sampled logits at several positions, and the best of the last row."""
    bound, ids = tolerance(case), GOLDEN["sampled_ids"]
    assert logits.dtype == np.float32
    for row, values in case["rows"].items():
        assert np.abs(logits[int(row)][ids] - np.float32(values)).max() <= bound
    best, values = case["top"]
    assert np.abs(logits[-1][best] - np.float32(values)).max() <= bound
    assert np.sort(logits[-1])[-len(best)] >= min(values) - bound  # and no other is better
    assert np.count_nonzero(logits[-1] > min(values) + bound) < len(best)
    assert abs(np.abs(logits).max() - case["max_logit"]) <= bound


def check_greedy(case, tokens):
    """Equal tokens: every margin in the goldens is far above what rounding can move."""
    assert min(case["margins"]) > 10 * tolerance(case)
    assert tokens == case["greedy"]


def prompt_of(case):
    """What generate is given: text, messages, or ids where the template adds no prompt."""
    return case["prompt"] if case.get("add_generation_prompt", True) else case["ids"]


@every_prompt
def test_ids(model, name):
    case = PROMPTS[name]
    if name not in CHATS:
        assert model.tokenizer.encode(case["prompt"]) == case["ids"]
        return
    add = case["add_generation_prompt"]
    assert model.render(case["prompt"], add_generation_prompt=add) == case["rendered"]
    assert model.encode_chat(case["prompt"], add_generation_prompt=add) == case["ids"]


@every_prompt
def test_ids_go_back_to_text(model, name):
    case = PROMPTS[name]
    assert model.tokenizer.decode(case["ids"]) == case.get("rendered", case["prompt"])


@every_prompt
def test_logits(model, name):
    case = PROMPTS[name]
    check_rows(case, model.forward(case["ids"]))


def test_logits_in_chunks(model):
    case = PROMPTS["turns"]
    ids, cache = case["ids"], model.new_cache(len(case["ids"]))
    parts = [model.forward(ids[a:b], cache) for a, b in ((0, 1), (1, 40), (40, 41), (41, None))]
    check_rows(case, np.concatenate(parts))


def test_logits_side_by_side(model):
    cases = [PROMPTS[name] for name in ("capital", "raw", "unicode")]
    segments = [minifer.Segment(case["ids"], model.new_cache(len(case["ids"]))) for case in cases]
    logits, begin = model.step(segments, all_rows=True), 0
    for case in cases:
        check_rows(case, logits[begin : begin + len(case["ids"])])
        begin += len(case["ids"])
    assert begin == len(logits)


@every_prompt
def test_greedy_tokens(model, name):
    case = PROMPTS[name]
    steps = minifer.generate(model, prompt_of(case), max_tokens=24)
    assert steps.prompt_token_ids == case["ids"]
    check_greedy(case, [step.token_id for step in steps])


def test_the_answer_of_the_readme(model):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    steps = list(minifer.generate(model, question))
    assert [step.token_id for step in steps] == [504, 3575, 282, 4649, 314, 7042, 30, 2]
    assert "".join(step.text for step in steps) == "The capital of France is Paris."
    assert steps[-1].finish_reason == "stop"


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("chunk", [128, 7])
def test_score(model, name, chunk):
    case = SCORED[name]
    assert model.tokenizer.encode(case["text"]) == case["ids"]
    found = model.score(case["ids"], chunk=chunk)
    assert found.dtype == np.float64
    # Two logits and a logarithm of a sum, each off by at most the tolerance (of logits up to 40).
    np.testing.assert_allclose(found, case["logprobs"], rtol=1e-4, atol=2 * 2e-5 * 40)
    assert np.exp(-found.mean()) == pytest.approx(np.exp(-np.mean(case["logprobs"])), rel=1e-4)


# ---- the folder in bfloat16 holds the same values ------------------------------------------------


def test_bfloat16_is_the_same_model(narrow):
    assert narrow.dtype == "bfloat16"
    for name in ("capital", "raw", "unicode", "code"):
        check_rows(PROMPTS[name], narrow.forward(PROMPTS[name]["ids"]))


def test_bfloat16_gives_the_same_tokens(narrow):
    for name in ("capital", "raw"):
        steps = minifer.generate(narrow, PROMPTS[name]["prompt"], max_tokens=24)
        check_greedy(PROMPTS[name], [step.token_id for step in steps])


def test_reference_kernels_on_bfloat16_agree():
    slow = minifer.load("default", dtype="bfloat16", kernels="reference", offline=True)
    check_rows(PROMPTS["capital"], slow.forward(PROMPTS["capital"]["ids"]))


def test_the_goldens_are_what_they_should_be():
    assert len(PROMPTS) >= 8 and len(CHATS) >= 6
    assert 250 <= len(PROMPTS["long"]["ids"]) <= 500
    assert PROMPTS["capital"]["greedy"] == [504, 3575, 282, 4649, 314, 7042, 30, 2]
    assert not PROMPTS["no_generation_prompt"]["add_generation_prompt"]


def one_percent(rope):
    return replace(rope, theta=rope.theta * 1.01)


BREAKS = {
    "theta one percent off": lambda config: replace(config, rope=one_percent(config.rope)),
    "epsilon of another model": lambda config: replace(config, rms_norm_eps=1e-6),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_wrong_switch_is_noticed(model, what):
    config = BREAKS[what](model.config)
    names = ("query", "key", "value", "output", "gate", "up", "down", "attention_norm", "mlp_norm")
    weights = {"embedding": model.embedding, "final_norm": model.final_norm}
    for place, layer in enumerate(model.layers):
        weights |= {f"layers.{place}.{name}": getattr(layer, name) for name in names}
    broken = Model(config, weights, model.backend)
    with pytest.raises(AssertionError):
        check_rows(PROMPTS["capital"], broken.forward(PROMPTS["capital"]["ids"]))
