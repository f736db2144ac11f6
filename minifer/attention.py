"""Causal attention over grouped heads. Prefill, chunk and decode are one case."""

import math
from typing import Any

from .layers import Array, float32_bytes
from .op import Cost, keep, op

LOWEST = -3.0e38  # below every score, above -inf: a row with nothing visible stays finite
TINY = 1.0e-30  # a sum of exponentials is at least one unless nothing is visible


def attention_cost(
    query: Array, key: Array, value: Array, query_positions: Array, key_positions: Array
) -> Cost:
    """Required are the visible pairs, the T new tokens being the last of S; executed are all."""
    (T, H, E), (K, S, _) = query.shape, key.shape
    visible = H * (T * (S - T) + T * (T + 1) // 2)
    per_pair = 4 * E + 5  # two products; max, subtract, exponential, sum, divide
    per_row = 2 * T * H  # the two guards of a row with nothing visible
    scaling = query.size
    read = 2 * K * S * E * key.itemsize
    # Merging rows with G, and K with G, copies, unless an axis of one makes it a view.
    copies = (T > 1 and 1 < K < H) + (T > 1 and K > 1)
    return Cost(
        per_pair * visible + per_row + scaling,
        per_pair * H * T * S + per_row + scaling,
        kv_bytes_read=read,
        activation_bytes=2 * float32_bytes(T, H, E) + query_positions.nbytes + key_positions.nbytes,
        executed_bytes=12 * float32_bytes(H, T, S)  # (K, T, G, S) is written or read twelve times
        + 8 * float32_bytes(H, T)
        + (4 + 2 * copies) * float32_bytes(T, H, E)
        + 2 * T * S  # the mask, a byte each, written and read
        + read
        + query_positions.nbytes
        + key_positions.nbytes,
    )


@op(attention_cost, taps=("scores", "weights", "mixed"), layered=True)
def attention(
    xp: Any,
    query: Array,
    key: Array,
    value: Array,
    query_positions: Array,
    key_positions: Array,
    *,
    tap: Any = keep,
) -> Array:
    """Mix the values a query may see, by how well their keys fit it.

    query (T, H, E), key (K, S, E), value (K, S, E), query_positions (T), key_positions (S)
    -> (T, H, E)

    Queries are grouped under the key head they share (G = H / K), so a key is never repeated.
    Source: Vaswani et al. 2017, equation 1; grouped heads: Ainslie et al. 2023.
    """
    T, H, E = query.shape
    K, S, _ = key.shape
    G = H // K

    scaled = query * (1 / math.sqrt(E))  # (T, H, E)
    grouped = scaled.reshape(T, K, G, E)  # (T, K, G, E)
    by_head = grouped.transpose(1, 0, 2, 3)  # (K, T, G, E)
    rows = by_head.reshape(K, T * G, E)  # (K, T*G, E)
    products = xp.matmul(rows, key.transpose(0, 2, 1))  # (K, T*G, S)
    scores = tap("scores", products.reshape(K, T, G, S))  # (K, T, G, S)

    # The causal mask: a key that stands later than its query is hidden.
    hidden = key_positions > query_positions[:, None]  # (T, S)
    seen = xp.where(hidden[:, None, :], -math.inf, scores)  # (K, T, G, S)
    # Softmax over S, shifted by the row's maximum so that exp cannot overflow.
    peak = seen.max(axis=-1, keepdims=True)  # (K, T, G, 1)
    finite = xp.maximum(peak, LOWEST)  # (K, T, G, 1)
    shifted = seen - finite  # (K, T, G, S)
    raised = xp.exp(shifted)  # (K, T, G, S)
    total = raised.sum(axis=-1, keepdims=True)  # (K, T, G, 1)
    divisor = xp.maximum(total, TINY)  # (K, T, G, 1)
    weights = tap("weights", raised / divisor)  # (K, T, G, S)

    sums = xp.matmul(weights.reshape(K, T * G, S), value)  # (K, T*G, E)
    per_head = sums.reshape(K, T, G, E)  # (K, T, G, E)
    by_token = per_head.transpose(1, 0, 2, 3).reshape(T, H * E)  # (T, H*E)
    return tap("mixed", by_token.reshape(T, H, E))
