"""The feed-forward half of a block: widen, gate, narrow."""

from typing import Any

from .layers import Array, float32_bytes
from .op import Cost, keep, op


def gate_cost(opening: Array, content: Array) -> Cost:
    """Clamp, negate, exponential, add, divide, multiply per element."""
    flops, whole = 6 * opening.size, float32_bytes(*opening.shape)
    # Six calls, each result written; four read one operand, two read two.
    return Cost(flops, flops, activation_bytes=3 * whole, executed_bytes=14 * whole)


@op(gate_cost, layered=True)
def gate(xp: Any, opening: Array, content: Array) -> Array:
    """SwiGLU: silu(opening) * content. opening (T, F), content (T, F) -> (T, F)

    Source: Shazeer 2020, equation 6; silu(x) = x / (1 + exp(-x)).
    """
    bounded = xp.maximum(opening, -88.0)  # (T, F); exp(89) overflows, and silu is 0 long before
    decay = xp.exp(-bounded)  # (T, F)
    silu = opening / (1 + decay)  # (T, F)
    return silu * content


@op(group=True, taps=("gated",), layered=True)
def mlp(ops: Any, layer: Any, x: Array, *, tap: Any = keep) -> Array:
    """Two projections up, one gates the other, one projection down. x (T, D) -> (T, D)"""
    opening = ops.linear(x, layer.gate, layer.gate_bias)  # (T, F)
    content = ops.linear(x, layer.up, layer.up_bias)  # (T, F)
    gated = tap("gated", ops.gate(opening, content))  # (T, F)
    return ops.linear(gated, layer.down, layer.down_bias)
