"""The KV cache: preallocated arrays, one length, three verbs: append, advance, truncate."""

from collections.abc import Sequence
from typing import Any

from .errors import ContextError
from .layers import Array, float32_bytes
from .op import Cost, op


def store_cost(kept: Array, new: Array) -> Cost:
    """Every new element is read once and written once."""
    written, read = new.size * kept.itemsize, float32_bytes(new.size)
    return Cost(kv_bytes_written=written, activation_bytes=read, executed_bytes=written + read)


@op(store_cost, layered=True)
def store(xp: Any, kept: Array, new: Array) -> None:
    """Write new rows where they are kept. kept (K, T, E), new (T, K, E) -> ()"""
    kept[...] = new.transpose(1, 0, 2)


class KVCache:
    """Keys and values of one sequence, (L, K, max_length, E) each, float32.

    `length` tokens are in it and `token_ids` are those tokens. A pass appends for every layer and
    then advances once; until then nothing it wrote counts.
    """

    def __init__(self, xp: Any, layers: int, heads: int, max_length: int, head_dim: int) -> None:
        if max_length < 1:
            raise ContextError(f"a KV cache of {max_length} tokens; it needs room for at least 1")
        self.keys = xp.zeros((layers, heads, max_length, head_dim), dtype=xp.float32)
        self.values = xp.zeros((layers, heads, max_length, head_dim), dtype=xp.float32)
        self.positions = xp.arange(max_length)  # (max_length,)
        self.max_length = max_length
        self.token_ids: list[int] = []

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return len(self.token_ids)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(layers, KV heads, head width), which have to be the model's."""
        layers, heads, _, head_dim = self.keys.shape
        return layers, heads, head_dim

    @property
    def nbytes(self) -> int:
        """Bytes reserved; pages nobody has written to take no memory yet on most systems."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def bytes_per_token(self) -> int:
        """What one token adds: a key and a value per layer and KV head."""
        return self.nbytes // self.max_length

    def require(self, count: int) -> None:
        """Raise ContextError when `count` more tokens do not fit, before anything is written."""
        if self.length + count > self.max_length:
            raise ContextError(
                f"{count} more tokens after {self.length} do not fit in a KV cache of "
                f"{self.max_length}; make a longer one: "
                f"model.new_cache(max_length={self.length + count})"
            )

    def append(self, ops: Any, layer: int, key: Array, value: Array) -> tuple[Array, Array, Array]:
        """Keep key, value (T, K, E) of one layer -> all keys, values (K, S, E), positions (S,)."""
        begin, end = self.length, self.length + len(key)
        # A slice is a view: what `store` writes into it is written into the cache itself.
        ops.store(self.keys[layer, :, begin:end], key)
        ops.store(self.values[layer, :, begin:end], value)
        return self.keys[layer, :, :end], self.values[layer, :, :end], self.positions[:end]

    def advance(self, token_ids: Sequence[int]) -> None:
        """These tokens are in the cache now, in every layer."""
        self.token_ids.extend(token_ids)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ContextError(f"cannot truncate to {length} tokens: the cache holds {self.length}")
        del self.token_ids[length:]

    def shared_prefix(self, token_ids: Sequence[int]) -> int:
        """How many tokens of a sequence need no computing; never the last, whose logits count."""
        most = min(self.length, len(token_ids) - 1)
        if self.token_ids[:most] == token_ids[:most]:  # the usual case, without a Python loop
            return most
        return next(n for n in range(most) if self.token_ids[n] != token_ids[n])
