"""generate: the fields of a Step, ends, caches, seeds, and errors at the call."""

import copy
import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import tiny_model

import minifer
from minifer import ContextError, Sampling
from minifer.layers import log_softmax

PROMPT = [5, 17, 200, 33]


def run(model=None, prompt=PROMPT, **options):
    return list(minifer.generate(model or tiny_model(), prompt, **options))


def ids(steps):
    return [step.token_id for step in steps]


def naive(model, prompt, count):
    """Greedy decoding without a cache, the whole sequence anew for each token."""
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(int(model.forward(sequence)[-1].argmax()))
    return sequence[len(prompt) :]


def test_greedy_equals_computing_everything_anew():
    model = tiny_model()
    assert ids(run(max_tokens=20, ignore_eos=True)) == naive(model, PROMPT, 20)
    assert ids(run(max_tokens=20, ignore_eos=True, use_cache=False)) == naive(model, PROMPT, 20)


def test_the_fields_of_a_step():
    model = tiny_model()
    steps = run(max_tokens=5, ignore_eos=True, logprobs=3)
    assert [step.phase for step in steps] == ["prefill"] + ["decode"] * 4
    assert [step.position for step in steps] == [4, 5, 6, 7, 8]
    assert [step.finish_reason for step in steps] == [None] * 4 + ["length"]
    assert all(step.seconds > 0 and step.receipt is None for step in steps)
    sequence = PROMPT + ids(steps)
    rows = log_softmax(np, model.forward(sequence))
    for step in steps:
        row = rows[step.position - 1]
        assert step.logprob == pytest.approx(row[step.token_id], abs=1e-4)
        assert step.top_logprobs[0] == (step.token_id, step.logprob)
        assert [top for top, _ in step.top_logprobs] == list(np.argsort(-row)[:3])
        assert len(step.top_logprobs) == 3


def test_the_logprob_is_that_of_the_raw_logits_whatever_the_filters():
    plain = run(max_tokens=1)[0]
    hot = run(max_tokens=1, sampling=Sampling(5.0, top_k=1, seed=1))[0]
    assert (hot.token_id, hot.logprob) == (plain.token_id, plain.logprob)
    assert run(max_tokens=1, logprobs=999)[0].top_logprobs[-1][1] < plain.logprob
    assert plain.top_logprobs == []


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 512])
def test_prefill_in_chunks_gives_the_same_tokens(chunk):
    assert ids(run(max_tokens=10, prefill_chunk=chunk)) == ids(run(max_tokens=10))


def passes(model, counter):
    """A swap that notes the tokens of every pass."""
    from minifer.op import REGISTRY

    def counted(xp, token_ids, table):
        counter.append(len(token_ids))
        return REGISTRY["embedding"].reference(xp, token_ids, table)

    return model.swap(embedding=counted)


def test_prefill_once_then_one_token_per_pass_and_none_after_the_last():
    model, seen = tiny_model(), []
    with passes(model, seen):
        run(max_tokens=4, ignore_eos=True, prefill_chunk=3)
    assert seen == [3, 1, 1, 1, 1]


def test_arguments_are_checked_at_the_call_and_nothing_is_computed_yet():
    model, seen = tiny_model(), []
    with passes(model, seen):
        steps = minifer.generate(model, PROMPT)
        assert not seen
        next(steps)
        assert seen == [4]
        steps.close()
        assert list(steps) == []
    assert seen == [4]


def eos_of(model, count):
    """A greedy run whose token `count` is not among those before: a stand-in for an eos."""
    tokens = naive(model, PROMPT, 40)
    place = next(n for n in range(count, 40) if tokens[n] not in tokens[:n])
    return tokens, place


def tiny_model_eos(eos_ids):
    """The same weights with other eos ids."""
    found = copy.copy(tiny_model())
    found.config = dataclasses.replace(found.config, eos_token_ids=frozenset(eos_ids))
    return found


def test_an_eos_ends_the_answer_counts_and_is_not_shown():
    tokens, place = eos_of(tiny_model(), 3)
    steps = run(tiny_model_eos([tokens[place], 299]), max_tokens=40)
    assert ids(steps) == tokens[: place + 1]
    assert steps[-1].finish_reason == "stop"
    shown = "".join(step.text for step in steps)
    assert shown == tiny_model().tokenizer.decode(tokens[:place], skip_special_tokens=True)
    ignored = run(tiny_model_eos([tokens[place]]), max_tokens=40, ignore_eos=True)
    assert ids(ignored) == tokens


def test_stop_wins_over_length_when_both_end_the_same_step():
    tokens, place = eos_of(tiny_model(), 3)
    steps = run(tiny_model_eos([tokens[place]]), max_tokens=place + 1)
    assert steps[-1].finish_reason == "stop"


def test_an_eos_as_the_first_token_is_an_empty_answer():
    first = naive(tiny_model(), PROMPT, 1)
    steps = run(tiny_model_eos(first))
    assert [(s.text, s.finish_reason, s.phase) for s in steps] == [("", "stop", "prefill")]


@settings(max_examples=40)
@given(st.integers(0, 19), st.integers(1, 6))
def test_a_stop_string_cuts_the_text_and_keeps_the_ids(place, length):
    model = tiny_model()
    full = "".join(step.text for step in run(max_tokens=20, ignore_eos=True))
    stop = full[place : place + length]
    if not stop:
        return
    steps = run(max_tokens=20, ignore_eos=True, stop=["never there", stop])
    text = "".join(step.text for step in steps)
    decoded = model.tokenizer.decode(ids(steps), skip_special_tokens=True)
    if steps[-1].finish_reason == "stop":
        assert text == decoded[: decoded.index(stop)]
    else:
        assert text == decoded


@pytest.mark.parametrize("prompt", [PROMPT, [9], [250, 250, 3]])
def test_concatenated_text_is_the_decoded_answer(prompt):
    for sampling in (Sampling(), Sampling(1.5, seed=3)):
        steps = run(prompt=prompt, max_tokens=40, ignore_eos=True, sampling=sampling)
        text = "".join(step.text for step in steps)
        assert text == tiny_model().tokenizer.decode(ids(steps), skip_special_tokens=True)


def test_the_context_ends_an_answer_with_length():
    steps = run(prompt=[7] * 120, max_tokens=50, ignore_eos=True)
    assert len(steps) == 8
    assert steps[-1].finish_reason == "length"
    assert steps[-1].position == 127
    full = run(prompt=[7] * 128, max_tokens=50)
    assert [step.finish_reason for step in full] == ["length"]


def test_a_short_cache_ends_an_answer_with_length():
    model = tiny_model()
    steps = run(cache=model.new_cache(10), max_tokens=50, ignore_eos=True)
    assert len(steps) == 6
    with pytest.raises(ContextError, match="4 tokens, the KV cache holds 3"):
        minifer.generate(model, PROMPT, cache=model.new_cache(3))


def test_a_cache_is_reused_as_far_as_it_fits():
    model, seen = tiny_model(), []
    cache = model.new_cache()
    with passes(model, seen):
        first = ids(run(cache=cache, max_tokens=3, ignore_eos=True))
        assert cache.token_ids == PROMPT + first[:-1], "the last token is emitted, not cached"
        longer = PROMPT + first + [9, 9]
        second = run(prompt=longer, cache=cache, max_tokens=2, ignore_eos=True)
        other = run(prompt=[*PROMPT[:2], 1, 1], cache=cache, max_tokens=1)
        same = run(prompt=[*PROMPT[:2], 1, 1], cache=cache, max_tokens=1)
    assert seen == [4, 1, 1, 3, 1, 2, 1]
    assert ids(second) == naive(model, longer, 2)
    assert ids(other) == ids(same) == naive(model, [*PROMPT[:2], 1, 1], 1)


@pytest.mark.parametrize("sampling", [Sampling(0.9, seed=11), Sampling(2.0, top_p=0.8, seed=4)])
def test_a_seed_gives_the_same_tokens_and_goes_on_where_it_was(sampling):
    whole = ids(run(max_tokens=12, ignore_eos=True, sampling=sampling))
    assert whole == ids(run(max_tokens=12, ignore_eos=True, sampling=sampling))
    head = ids(run(max_tokens=5, ignore_eos=True, sampling=sampling))
    tail = ids(run(prompt=PROMPT + head, max_tokens=7, ignore_eos=True, sampling=sampling))
    assert head + tail == whole


def test_no_seed_draws_one_per_call_and_reports_it():
    model = tiny_model()
    hot = Sampling(3.0)
    one, two = (minifer.generate(model, PROMPT, 8, hot, ignore_eos=True) for _ in range(2))
    assert one.seed != two.seed
    tokens = ids(one)
    assert tokens == ids(run(max_tokens=8, ignore_eos=True, sampling=Sampling(3.0, seed=one.seed)))


def test_the_penalty_sees_prompt_and_output():
    model = tiny_model()
    strong = Sampling(repetition_penalty=1e6)
    tokens = ids(run(max_tokens=20, ignore_eos=True, sampling=strong))
    assert len(set(tokens)) == 20
    logits = model.forward(PROMPT)[-1]
    assert (logits > 0).any()
    assert not set(tokens) & set(PROMPT)


def test_text_and_messages_are_encoded_as_the_model_says():
    model = tiny_model()
    text = "the user said hi"
    by_text = minifer.generate(model, text, 3)
    assert by_text.prompt_token_ids == model.tokenizer.encode(text)
    messages = [{"role": "user", "content": text}]
    chat = minifer.generate(model, messages, 3)
    assert chat.prompt_token_ids == model.encode_chat(messages)
    assert ids(chat) == ids(run(prompt=chat.prompt_token_ids, max_tokens=3))


def test_seconds_are_gaps_that_add_up_to_the_whole(monkeypatch):
    """A clock that ticks once per reading: no gap may hold another one."""
    model, readings = tiny_model(), itertools.count()
    monkeypatch.setattr(type(model.backend), "clock", lambda self: float(next(readings)))
    steps = run(max_tokens=6, ignore_eos=True)
    assert [step.seconds for step in steps] == [1.0] * 6
    assert next(readings) == 7


def test_a_cache_somebody_else_used_in_between_is_noticed():
    model = tiny_model()
    expected = ids(run(max_tokens=6, ignore_eos=True))

    def disturbed(disturb):
        cache = model.new_cache(60)
        steps = minifer.generate(model, PROMPT, 6, cache=cache, ignore_eos=True)
        found = []
        for step in steps:
            found.append(step.token_id)
            disturb(cache)
        return found

    other = lambda cache: run(prompt=[9, 10], cache=cache, max_tokens=2)  # noqa: E731
    assert disturbed(other) == expected
    assert disturbed(lambda cache: cache.truncate(0)) == expected
    assert disturbed(lambda cache: cache.truncate(cache.length - 1)) == expected
    assert disturbed(lambda cache: model.forward([3, 3], cache)) == expected
    cache = model.new_cache(60)
    one, two = (
        minifer.generate(model, p, 6, cache=cache, ignore_eos=True) for p in (PROMPT, [9, 8, 7])
    )
    mixed = list(itertools.chain.from_iterable(zip(one, two, strict=True)))
    assert ids(mixed[::2]) == expected
    assert ids(mixed[1::2]) == ids(run(prompt=[9, 8, 7], max_tokens=6, ignore_eos=True))


def test_two_streams_interleaved_are_each_as_alone():
    model = tiny_model()
    one = minifer.generate(model, PROMPT, 8, ignore_eos=True)
    two = minifer.generate(model, [9, 8, 7], 8, ignore_eos=True)
    mixed = list(itertools.chain.from_iterable(zip(one, two, strict=True)))
    assert ids(mixed[::2]) == ids(run(max_tokens=8, ignore_eos=True))
    assert ids(mixed[1::2]) == ids(run(prompt=[9, 8, 7], max_tokens=8, ignore_eos=True))
