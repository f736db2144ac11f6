"""The feed-forward half of a block: widen, gate, narrow."""

from typing import Any

from .layers import Array, float32_bytes
from .op import Cost, keep, op


def gate_cost(gate: Array, up: Array) -> Cost:
    """Clamp, negate, exponential, add, divide, multiply per element."""
    return Cost(6 * gate.size, 6 * gate.size, activation_bytes=3 * float32_bytes(*gate.shape))


@op(gate_cost, layered=True)
def gate(xp: Any, gate: Array, up: Array) -> Array:
    """SwiGLU: silu(gate) * up. gate (T, F), up (T, F) -> (T, F)

    Source: Shazeer 2020, equation 6 (the activation alone).
    """
    bounded = xp.maximum(gate, -88.0)  # (T, F); exp(89) overflows, and silu is 0 long before
    decay = xp.exp(-bounded)  # (T, F)
    silu = gate / (1 + decay)  # (T, F)
    return silu * up


@op(group=True, taps=("gated",), layered=True)
def mlp(ops: Any, layer: Any, x: Array, *, tap: Any = keep) -> Array:
    """Two projections up, one gates the other, one projection down. x (T, D) -> (T, D)"""
    opening = ops.linear(x, layer.gate, layer.gate_bias)  # (T, F)
    content = ops.linear(x, layer.up, layer.up_bias)  # (T, F)
    gated = tap("gated", ops.gate(opening, content))  # (T, F)
    return ops.linear(gated, layer.down, layer.down_bias)
