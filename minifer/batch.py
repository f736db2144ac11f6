"""What one pass works on: the next tokens of one or several sequences, on one flat axis."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from .config import ModelConfig
from .errors import ContextError
from .kv_cache import KVCache
from .layers import Array


class Segment(NamedTuple):
    """Some next tokens of one sequence, and the cache of what came before them."""

    token_ids: Sequence[int]
    cache: KVCache


class Batch(NamedTuple):
    """What one pass works on: the new tokens of all segments on one flat axis T."""

    token_ids: Array  # (T,)
    positions: Array  # (T,) absolute, each in its own sequence
    cos: Array  # (T, E/2)
    sin: Array  # (T, E/2)
    rows: list[slice]  # where each segment lies on the axis
    last_rows: Array  # (segments,) the row of each segment's last token
    caches: list[KVCache]


def check_ids(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """Token ids as a plain list. Raises ContextError for none, or one that is out of range."""
    ids = token_ids.tolist() if hasattr(token_ids, "tolist") else list(token_ids)
    if not ids:
        raise ContextError("no token ids: a pass needs at least one")
    for place, token_id in enumerate(ids):
        # A gather on a GPU wraps a wrong id silently, so it is refused on the host.
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise ContextError(
                f"token id {token_id!r} at place {place}; allowed are 0 to {vocab_size - 1}"
            )
    return ids


def check_segments(segments: Sequence[Segment], config: ModelConfig) -> list[Segment]:
    """All that can be refused is refused here, before a byte is written. Raises ContextError."""
    if not segments:
        raise ContextError("a step needs at least one segment")
    shape = (config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
    checked = []
    for token_ids, cache in segments:
        ids = check_ids(token_ids, config.vocab_size)
        if cache.shape != shape:
            raise ContextError(
                f"a KV cache of {cache.shape} (layers, heads, width); this model needs {shape}: "
                "make it with model.new_cache()"
            )
        cache.require(len(ids))
        checked.append(Segment(ids, cache))
    if len({id(cache) for _, cache in checked}) < len(checked):
        raise ContextError("a cache stands in two segments of one step; give each its own")
    return checked


def lay_out(ops: Any, segments: list[Segment], inverse_frequencies: Array) -> Batch:
    """Put the segments behind one another and give every token its own position and angles."""
    token_ids, positions, rows = [], [], []
    for ids, cache in segments:
        rows.append(slice(len(token_ids), len(token_ids) + len(ids)))
        token_ids += ids
        positions += range(cache.length, cache.length + len(ids))
    xp = ops.xp
    places = xp.asarray(positions)  # (T,)
    cos, sin = ops.rotation(places, inverse_frequencies)  # (T, E/2)
    last_rows = xp.asarray([part.stop - 1 for part in rows])  # (segments,)
    caches = [cache for _, cache in segments]
    return Batch(xp.asarray(token_ids), places, cos, sin, rows, last_rows, caches)
