"""generate: what it takes and what it refuses, at the call."""

import numpy as np
import pytest
from tiny_model import tiny_model

import minifer
from minifer import ContextError, Sampling, SamplingError, TokenizerError
from minifer.errors import TemplateError

PROMPT = [5, 17, 200, 33]


def run(prompt=PROMPT, **options):
    return list(minifer.generate(tiny_model(), prompt, **options))


def ids(steps):
    return [step.token_id for step in steps]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"max_tokens": 0}, SamplingError, "max_tokens is 0; allowed is a whole number from 1"),
        ({"max_tokens": 1.5}, SamplingError, "max_tokens"),
        ({"max_tokens": None}, SamplingError, "max_tokens"),
        ({"max_tokens": True}, SamplingError, "max_tokens"),
        ({"prefill_chunk": 0}, SamplingError, "prefill_chunk"),
        ({"logprobs": -1}, SamplingError, "logprobs"),
        ({"sampling": 0.7}, SamplingError, "expected a minifer.Sampling"),
        ({"stop": [""]}, SamplingError, "none of them empty"),
        ({"stop": [3]}, SamplingError, "none of them empty"),
        ({"prompt": ""}, ContextError, "the prompt is empty"),
        ({"prompt": []}, ContextError, "at least one"),
        ({"prompt": [300]}, ContextError, "0 to 299"),
        ({"prompt": [1] * 129}, ContextError, "129 tokens, the model's context holds 128"),
        ({"prompt": [{"content": "no role"}]}, TemplateError, "message 0"),
        ({"prompt": "a lone \ud800"}, TokenizerError, "surrogate"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(options, kind, message):
    with pytest.raises(kind, match=message):
        minifer.generate(tiny_model(), **{"prompt": PROMPT, **options})


@pytest.mark.parametrize("cache", [5, "cache", tiny_model(num_hidden_layers=2)])
def test_a_foreign_cache_is_refused_at_the_call_and_not_touched(cache):
    if hasattr(cache, "new_cache"):
        model, cache = cache, cache.new_cache()
        model.forward([1, 2], cache)
    with pytest.raises(ContextError, match=r"this model needs .*make it with model.new_cache\(\)"):
        minifer.generate(tiny_model(), PROMPT, cache=cache)
    assert getattr(cache, "length", 2) == 2


@pytest.mark.parametrize(
    "prompt", [None, 7, {1, 2}, (n for n in [1]), np.int64(3), np.array(3), {"role": "user"}, b"ab"]
)
def test_what_is_no_prompt_is_refused_in_words(prompt):
    if prompt == b"ab":  # bytes are a sequence of whole numbers: ids like any others
        assert minifer.generate(tiny_model(), prompt).prompt_token_ids == [97, 98]
        return
    with pytest.raises((ContextError, TemplateError), match="expected|put it in a list"):
        minifer.generate(tiny_model(), prompt)


def test_numpy_numbers_are_numbers():
    model = tiny_model()
    sequence = list(PROMPT)
    for _ in range(3):  # a learner's own loop
        sequence.append(model.forward(sequence)[-1].argmax())
    assert sequence == PROMPT + ids(run(max_tokens=3, ignore_eos=True))
    sampling = Sampling(np.float64(0.5), top_k=np.int64(3), seed=np.uint64(4))
    found = run(max_tokens=np.int32(4), sampling=sampling, ignore_eos=True)
    assert ids(found) == ids(
        run(max_tokens=4, sampling=Sampling(0.5, top_k=3, seed=4), ignore_eos=True)
    )


@pytest.mark.parametrize("chat", [False, True])
def test_a_hopelessly_long_prompt_is_refused_at_once(chat):
    text = "a" * 3_000_000
    prompt = [{"role": "user", "content": text}] if chat else text
    with pytest.raises(ContextError, match="3000000 characters, far more than 128 tokens"):
        minifer.generate(tiny_model(), prompt)
