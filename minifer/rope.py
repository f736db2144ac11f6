"""Rotary positions: a token's place, written into its queries and keys as an angle.

Source: Su et al. 2021 (RoFormer), equation 34, in the half-split form of Llama checkpoints: element
i is paired with element i + E/2. The scalings `linear` and `llama3` slow the low frequencies down,
for longer contexts.
"""

import math
from typing import Any

from .config import RopeConfig
from .layers import Array, float32_bytes
from .op import Cost, op


def inverse_frequencies(xp: Any, rope: RopeConfig, head_dim: int) -> Array:
    """Radians per position of each pair, float32 (E/2,).

    Rounded to float32 at every step, as the reference does: in a long context a rate that differs
    in its last bit turns far enough to be seen in the logits.
    """
    pairs = xp.arange(0, head_dim, 2, dtype=xp.float32)  # (E/2,)
    rates = 1 / rope.theta ** (pairs / head_dim)  # (E/2,)
    if rope.kind == "linear":
        return rates / rope.factor
    if rope.kind == "llama3":
        return _llama3(xp, rope, rates)
    return rates


def _llama3(xp: Any, rope: RopeConfig, rates: Array) -> Array:
    """Llama 3.1: keep the high frequencies, slow down the low ones, blend between."""
    context = rope.original_max_position_embeddings
    turns = context / (2 * math.pi / rates)  # (E/2,) within the old context
    width = rope.high_freq_factor - rope.low_freq_factor
    blend = (turns - rope.low_freq_factor) / width  # (E/2,)
    between = (1 - blend) * rates / rope.factor + blend * rates  # (E/2,)
    slowed = xp.where(turns < rope.low_freq_factor, rates / rope.factor, between)
    return xp.where(turns > rope.high_freq_factor, rates, slowed)


def rotation_cost(positions: Array, inverse: Array) -> Cost:
    """One product, one cosine, one sine per angle."""
    T, half = len(positions), len(inverse)
    flops = 3 * T * half
    moved = positions.nbytes + float32_bytes(half)
    # Positions become floats, their products are written, read twice, and two results written.
    executed = moved + 2 * float32_bytes(T) + 5 * float32_bytes(T, half)
    moved += 2 * float32_bytes(T, half)
    return Cost(flops, flops, activation_bytes=moved, executed_bytes=executed)


@op(rotation_cost)
def rotation(xp: Any, positions: Array, inverse: Array) -> tuple[Array, Array]:
    """Cosine and sine of every angle. positions (T), inverse (E/2) -> (T, E/2), (T, E/2)"""
    angles = positions.astype(xp.float32)[:, None] * inverse  # (T, E/2)
    return xp.cos(angles), xp.sin(angles)


def rope_cost(heads: Array, cos: Array, sin: Array) -> Cost:
    """Two products and a sum for each element."""
    flops = 3 * heads.size
    whole, angles = float32_bytes(*heads.shape), 2 * float32_bytes(*cos.shape)
    # Four products of a half, two sums, two halves put in place: nine times the whole.
    executed = 9 * whole + 2 * angles
    return Cost(flops, flops, activation_bytes=2 * whole + angles, executed_bytes=executed)


@op(rope_cost, layered=True)
def rope(xp: Any, heads: Array, cos: Array, sin: Array) -> Array:
    """Turn each pair by its angle. heads (T, N, E), cos (T, E/2), sin (T, E/2) -> (T, N, E)"""
    half = heads.shape[-1] // 2
    cos, sin = cos[:, None, :], sin[:, None, :]  # (T, 1, E/2): one angle for every head
    first, second = heads[..., :half], heads[..., half:]  # (T, N, E/2)
    turned = xp.empty_like(heads)  # (T, N, E)
    turned[..., :half] = first * cos - second * sin
    turned[..., half:] = second * cos + first * sin
    return turned
