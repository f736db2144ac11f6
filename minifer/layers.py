"""The plain ops: embedding, linear, norm, residual. Beside each: what it costs.

T new tokens, D width in, O width out, V vocabulary. Activations are float32. Weights are used as
stored: a float32 array, a float16 array, or bfloat16 as its raw 16-bit words in a uint16 array.
"""

import math
from typing import Any

from .op import Cost, op

Array = Any  # an array of the backend's namespace xp


def float32_bytes(*shape: int) -> int:
    """Bytes of a float32 array of this shape."""
    return 4 * math.prod(shape)


def widening_bytes(words: Array) -> int:
    """Bytes `widen` reads and writes."""
    return 0 if words.itemsize == 4 else words.size * (words.itemsize + 4)


def widen(xp: Any, words: Array) -> Array:
    """Stored words -> float32 of the same shape; float32 itself is returned, not copied."""
    if words.dtype == xp.uint16:
        # A bfloat16 is the upper half of a float32: move it there, the lower half is zero.
        return xp.left_shift(words, 16, dtype=xp.uint32).view(xp.float32)
    if words.dtype == xp.float16:
        return words.astype(xp.float32)
    return words


def embedding_cost(token_ids: Array, table: Array) -> Cost:
    """The gathered rows, in their stored dtype; executed: gathered, then widened."""
    T, D, ids = len(token_ids), table.shape[1], token_ids.nbytes
    stored, wide = T * D * table.itemsize, float32_bytes(T, D)
    widening = 0 if table.itemsize == 4 else stored + wide
    return Cost(
        weight_bytes=stored,
        activation_bytes=ids + wide,
        executed_bytes=2 * stored + ids + widening,
    )


@op(embedding_cost)
def embedding(xp: Any, token_ids: Array, table: Array) -> Array:
    """The row of each token. token_ids (T), table (V, D) -> (T, D)"""
    rows = table[token_ids]  # (T, D)
    return widen(xp, rows)


def linear_cost(x: Array, weight: Array, bias: Array | None = None) -> Cost:
    """Two FLOPs per weight and token; the weight is read once, however many tokens there are."""
    (T, D), O = x.shape, weight.shape[0]  # noqa: E741
    added = 0 if bias is None else T * O
    flops = 2 * T * O * D + added
    stored = weight.nbytes + (0 if bias is None else bias.nbytes)
    moved = float32_bytes(T, D) + float32_bytes(T, O)
    executed = widening_bytes(weight) + float32_bytes(O, D) + moved
    if bias is not None:  # the sum reads what the product wrote, and writes it anew
        executed += widening_bytes(bias) + float32_bytes(O) + 2 * float32_bytes(T, O)
    return Cost(flops, flops, stored, activation_bytes=moved, executed_bytes=executed)


@op(linear_cost)
def linear(xp: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x @ weight.T + bias. x (T, D), weight (O, D), bias (O) -> (T, O)"""
    wide = widen(xp, weight)  # (O, D)
    product = xp.matmul(x, wide.T)  # (T, O)
    if bias is None:
        return product
    return product + widen(xp, bias)


def rms_norm_cost(x: Array, weight: Array, epsilon: float) -> Cost:
    """Square, sum, two products per element; divide, add, root, invert per row."""
    T, D = x.shape
    flops = 4 * T * D + 4 * T
    # Seven times a whole (T, D) is read or written, ten times one figure per row.
    executed = 7 * float32_bytes(T, D) + 10 * float32_bytes(T) + float32_bytes(D)
    return Cost(
        flops,
        flops,
        weight.nbytes,
        activation_bytes=2 * float32_bytes(T, D),
        executed_bytes=executed + widening_bytes(weight),
    )


@op(rms_norm_cost)
def rms_norm(xp: Any, x: Array, weight: Array, epsilon: float) -> Array:
    """Scale each row to a root mean square of one. x (T, D), weight (D) -> (T, D)

    Source: Zhang and Sennrich 2019, equation 4.
    """
    square = x * x  # (T, D)
    mean = square.sum(axis=-1, keepdims=True) / x.shape[-1]  # (T, 1)
    scale = 1 / xp.sqrt(mean + epsilon)  # (T, 1)
    return x * scale * widen(xp, weight)


def residual_cost(x: Array, update: Array) -> Cost:
    """One addition per element."""
    moved = 3 * float32_bytes(*x.shape)
    return Cost(x.size, x.size, activation_bytes=moved, executed_bytes=moved)


@op(residual_cost)
def residual(xp: Any, x: Array, update: Array) -> Array:
    """What a branch found is added to the stream. x (T, D), update (T, D) -> (T, D)"""
    return x + update


def select_cost(x: Array, rows: Array) -> Cost:
    """The selected rows are read and written."""
    moved = 2 * float32_bytes(len(rows), *x.shape[1:]) + rows.nbytes
    return Cost(activation_bytes=moved, executed_bytes=moved)


@op(select_cost)
def select(xp: Any, x: Array, rows: Array) -> Array:
    """Some rows of a pass. x (T, D), rows (N) -> (N, D)"""
    return x[rows]


def join_cost(parts: list[Array]) -> Cost:
    """One part is passed on; several are read and written."""
    moved = 0 if len(parts) == 1 else 2 * sum(part.nbytes for part in parts)
    return Cost(activation_bytes=moved, executed_bytes=moved)


@op(join_cost, layered=True)
def join(xp: Any, parts: list[Array]) -> Array:
    """The rows of all segments on one axis again; a single segment is not copied."""
    return parts[0] if len(parts) == 1 else xp.concatenate(parts)


def log_softmax(xp: Any, logits: Array) -> Array:
    """Logits (..., V) -> float64 log-probabilities (..., V). Not an op: no pass uses float64."""
    wide = logits.astype(xp.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    total = xp.exp(shifted).sum(axis=-1, keepdims=True)
    return shifted - xp.log(total)
