"""What one pass works on: the next tokens of one or several sequences, on one flat axis.

`generate` uses one segment; several in one pass share every weight that is read (a server does so).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

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


def lay_out(
    ops: Any, segments: Sequence[tuple[list[int], KVCache]], inverse_frequencies: Array
) -> Batch:
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
