"""Faster equals of ops in NumPy. What is fused or blocked, why, and what it gains.

`linear` on 16-bit weights: the reference widens a whole matrix before it multiplies, which writes
and reads back twice the bytes it was stored in. Here a block of rows is widened at a time, small
enough to stay in the cache. Of float32 weights it is the reference itself.
"""

from typing import Any

from ..layers import Array, float32_bytes, linear, linear_cost, widen, widening_bytes
from ..op import Cost, twin

BLOCK_ELEMENTS = 1 << 18  # 1 MiB of float32: within a core's second-level cache


def linear_in_blocks_cost(x: Array, weight: Array, bias: Array | None = None) -> Cost:
    """The same FLOPs and the same words widened; x is read once per block."""
    cost = linear_cost(x, weight, bias)
    if weight.itemsize == 4:
        return cost
    (T, D), O = x.shape, weight.shape[0]  # noqa: E741
    blocks = -(-O // block_rows(weight))
    executed = widening_bytes(weight) + float32_bytes(O, D)
    executed += blocks * float32_bytes(T, D) + float32_bytes(T, O)
    if bias is not None:
        executed += widening_bytes(bias) + float32_bytes(O) + 2 * float32_bytes(T, O)
    return cost._replace(executed_bytes=executed)


def block_rows(weight: Array) -> int:
    """How many rows are widened at a time."""
    return max(1, BLOCK_ELEMENTS // weight.shape[1])


@twin("linear", backend="numpy", kernels="numpy", cost=linear_in_blocks_cost)
def linear_in_blocks(xp: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x @ weight.T + bias. x (T, D), weight (O, D), bias (O) -> (T, O)"""
    if weight.itemsize == 4:
        return linear(xp, x, weight, bias)
    rows = block_rows(weight)
    result = xp.empty((len(x), len(weight)), xp.float32)  # (T, O)
    for begin in range(0, len(weight), rows):
        block = widen(xp, weight[begin : begin + rows])  # (rows, D)
        xp.matmul(x, block.T, out=result[:, begin : begin + rows])
    if bias is not None:
        result += widen(xp, bias)
    return result
