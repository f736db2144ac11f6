"""From a prompt to tokens: run the prompt once, then one token at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .checks import check_cache, check_ids, check_whole_number, refuse_hopeless
from .errors import ContextError, SamplingError, TemplateError, TokenizerError
from .kv_cache import KVCache
from .layers import log_softmax
from .model import Model
from .op import RECORDING
from .sampling import Sampling, fresh_seed, sample
from .stopping import Answer


class Step(NamedTuple):
    """One new token and what is known of it."""

    token_id: int
    text: str  # what may be shown now; all of them together are the answer
    phase: str  # "prefill" for the first token, "decode" after
    position: int  # its index in the whole sequence; the first is len(prompt)
    logprob: float  # float64 log-softmax of the raw logits, before any filter
    top_logprobs: list[tuple[int, float]]  # (id, logprob), best first
    seconds: float  # since the Step before; for the first since the call: TTFT
    finish_reason: str | None  # None, then "stop" or "length"
    receipt: Any  # what the pass cost, while recording; else None


class Request(NamedTuple):
    """A checked call of generate."""

    prompt_token_ids: list[int]
    sampling: Sampling  # with its seed drawn
    max_tokens: int  # what fits, too
    stop: str | Sequence[str]
    eos: frozenset[int]
    logprobs: int
    prefill_chunk: int
    use_cache: bool
    called: float  # the clock at the call


class Generation:
    """The iterator of Steps that generate returns; `request` is what it was asked for."""

    def __init__(self, steps: Iterator[Step], request: Request) -> None:
        self._steps, self.request = steps, request
        self.seed, self.prompt_token_ids = request.sampling.seed, request.prompt_token_ids

    def __iter__(self) -> "Generation":
        return self

    def __next__(self) -> Step:
        return next(self._steps)

    def close(self) -> None:
        """End early: nothing more is computed."""
        self._steps.close()


def generate(
    model: Model,
    prompt: str | Sequence[int] | Sequence[dict],
    max_tokens: int = 128,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    cache: KVCache | None = None,
    ignore_eos: bool = False,
    logprobs: int = 0,
    prefill_chunk: int = 512,
    use_cache: bool = True,
) -> Generation:
    """Continue a prompt: text, token ids, or messages [{role, content}] -> iterator of Steps.

    A text is continued as it stands; messages go through the chat template, which is what
    `python -m minifer generate` makes of its prompt.
    Arguments are checked here; nothing is computed before the first Step is asked for. `prompt` is
    always the whole sequence: what a given `cache` already holds of it is kept, the rest is
    prefilled in chunks of `prefill_chunk` tokens. The answer ends at an eos id (not with
    `ignore_eos`), at a stop string, or with "length" at `max_tokens` or where context or cache are
    full. `use_cache=False` computes the whole sequence anew for every token: what a cache saves.
    Raises ContextError, SamplingError, TemplateError, TokenizerError.
    """
    called = model.backend.clock()
    sampling = Sampling() if sampling is None else sampling
    if not isinstance(sampling, Sampling):
        raise SamplingError(f"sampling is {sampling!r:.60}, expected a minifer.Sampling")
    whole = {"max_tokens": (max_tokens, 1), "prefill_chunk": (prefill_chunk, 1)}
    for name, (value, low) in {**whole, "logprobs": (logprobs, 0)}.items():
        check_whole_number(name, value, low, SamplingError)
    if cache is not None:
        check_cache(cache, model.config)
    ids = encode_prompt(model, prompt)
    context = model.config.max_position_embeddings
    room = context if cache is None else min(context, cache.max_length)
    if len(ids) > room:
        holder = "model's context" if room == context else "KV cache"
        raise ContextError(
            f"the prompt has {len(ids)} tokens, the {holder} holds {room}; shorten it"
        )
    # A prompt that fills the room still gets one token: the last is never fed back.
    max_tokens = min(max_tokens, max(1, room - len(ids)))
    if cache is None:
        cache = model.new_cache(min(room, len(ids) + max_tokens))
    if sampling.seed is None:
        sampling = replace(sampling, seed=fresh_seed())
    eos = frozenset() if ignore_eos else model.config.eos_token_ids
    request = Request(
        ids, sampling, max_tokens, stop, eos, logprobs, prefill_chunk, use_cache, called
    )
    answer = Answer(model.tokenizer, stop, eos, max_tokens)
    return Generation(decode_loop(model, cache, request, answer), request)


def decode_loop(model: Model, cache: KVCache, request: Request, answer: Answer) -> Iterator[Step]:
    """Prefill, then emit a token, ask whether to stop, and only if not feed it forward."""
    sequence = list(request.prompt_token_ids)
    phase, since = "prefill", request.called
    while True:
        logits, receipt = feed(model, cache, sequence, request, phase)  # (V,)
        token_id = sample(logits, request.sampling, sequence, position=len(sequence))
        logprobs = log_softmax(np, logits)  # (V,)
        text, reason = answer.push(token_id)
        now = model.backend.clock()
        yield Step(
            token_id,
            text,
            phase,
            len(sequence),
            float(logprobs[token_id]),
            best(logprobs, request.logprobs),
            now - since,
            reason,
            receipt,
        )
        if reason:
            return
        sequence.append(token_id)
        phase, since = "decode", now


def feed(
    model: Model, cache: KVCache, sequence: list[int], request: Request, phase: str
) -> tuple[np.ndarray, Any]:
    """Run what the cache does not hold yet: the prompt in chunks, later the one new token.

    -> logits (V,) of the last token, on the host, and the receipt of it all while recording.
    """
    recording = RECORDING.get()
    # Between two tokens somebody else may have used the cache: trust what it says it holds.
    cache.truncate(cache.shared_prefix(sequence) if request.use_cache else 0)
    if recording is not None:
        recording.open_step(request, phase, len(sequence), model.backend.clock)
    try:
        for begin in range(cache.length, len(sequence), request.prefill_chunk):
            chunk = sequence[begin : begin + request.prefill_chunk]
            logits = model.forward(chunk, cache, last_only=True)  # (1, V)
        # On a GPU this waits for the device: the only time, once per token.
        row = model.backend.to_host(logits)[0]  # (V,)
    finally:
        receipt = None if recording is None else recording.close_step(model.backend.clock)
    return row, receipt


def encode_prompt(model: Model, prompt: str | Sequence[int] | Sequence[dict]) -> list[int]:
    """Text, token ids or messages -> token ids in range, at least one."""
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise TokenizerError("a text prompt needs a tokenizer, and this model has none")
        if not prompt:
            raise ContextError("the prompt is empty; give it at least one character")
        refuse_hopeless(model, [prompt])
        ids = model.tokenizer.encode(prompt)
    elif isinstance(prompt, dict):
        raise TemplateError("one message is not a prompt: put it in a list, [{role, content}]")
    elif isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], dict):
        refuse_hopeless(model, [str(m.get("content")) for m in prompt if isinstance(m, dict)])
        ids = model.encode_chat(prompt)
    else:
        ids = prompt
    return check_ids(ids, model.config.vocab_size)


def best(logprobs: np.ndarray, count: int) -> list[tuple[int, float]]:
    """The likeliest (id, logprob), best first, the lower id first among equals."""
    if not count:
        return []
    order = np.argsort(-logprobs, kind="stable")[:count]
    return [(int(token_id), float(logprobs[token_id])) for token_id in order]
