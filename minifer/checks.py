"""Refuse in words what cannot be computed with: token ids, numbers, hopeless prompts, caches."""

import operator
from collections.abc import Sequence
from typing import Any

from .config import ModelConfig
from .errors import ContextError, MiniferError


def check_ids(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """Token ids as a list of int. Raises ContextError for none, or one that is out of range."""
    if isinstance(token_ids, str):
        raise ContextError("token ids, not a text: encode it first, model.tokenizer.encode(text)")
    given = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
    if not isinstance(given, Sequence):
        raise ContextError(f"token ids are {token_ids!r:.40}; expected a list of whole numbers")
    if not given:
        raise ContextError("no token ids: a pass needs at least one")
    # A gather on a GPU wraps a wrong id silently, so it is refused on the host.
    ids = [whole_number(token_id, 0, vocab_size) for token_id in given]
    if None in ids:
        place = ids.index(None)
        raise ContextError(
            f"token id {given[place]!r:.40} at place {place}; allowed are 0 to {vocab_size - 1}"
        )
    return ids


def whole_number(value: Any, low: int, end: int | None = None) -> int | None:
    """An int, also NumPy's, from `low` to before `end`; None for anything else, True too."""
    if type(value) is not int:  # the common case is quick: a prompt has thousands of them
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            return None
        try:
            value = operator.index(value)
        except TypeError:  # an array of several
            return None
    return value if low <= value and (end is None or value < end) else None


def check_whole_number(
    name: str,
    value: Any,
    low: int,
    error: type[MiniferError] = ContextError,
    end: int | None = None,
) -> None:
    """Raise `error` unless this is a whole number from `low` (to before `end`)."""
    if whole_number(value, low, end) is None:
        raise error(f"{name} is {value!r:.40}; allowed is a whole number from {low}")


def check_cache(cache: Any, config: ModelConfig) -> None:
    """Raise ContextError for anything but a KV cache of this model's shape."""
    shape = (config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
    found = getattr(cache, "shape", None)
    if found != shape:
        what = f"{cache!r:.40}" if found is None else f"a KV cache of {found}"
        raise ContextError(
            f"the cache is {what}; this model needs (layers, heads, width) {shape}: "
            "make it with model.new_cache()"
        )


def refuse_hopeless(model: Any, texts: list[str]) -> None:
    """Texts that cannot fit whatever their tokens are are refused before minutes of encoding."""
    context, length = model.config.max_position_embeddings, sum(map(len, texts))
    longest = 1 if model.tokenizer is None else model.tokenizer.longest_token
    # Normalisers may shorten a text; four times is more than any of them does.
    if length > 4 * context * longest:
        raise ContextError(
            f"the prompt has {length} characters, far more than {context} tokens, which the "
            "model's context holds; shorten it"
        )


def check_segments(segments: Sequence[Any], config: ModelConfig) -> list[tuple[list[int], Any]]:
    """A pass's (ids, cache) pairs: what can be refused is refused before a byte is written.

    Raises ContextError.
    """
    if not segments:
        raise ContextError("a step needs at least one segment")
    checked = []
    for token_ids, cache in segments:
        ids = check_ids(token_ids, config.vocab_size)
        check_cache(cache, config)
        cache.require(len(ids))
        checked.append((ids, cache))
    if len({id(cache) for _, cache in checked}) < len(checked):
        raise ContextError("a cache stands in two segments of one step; give each its own")
    return checked
