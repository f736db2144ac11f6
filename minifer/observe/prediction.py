"""What a device allows at the very most: the floors of a card's two passes under its two roofs.

    floor = max(FLOPs / peak, bytes / bandwidth)

Both roofs are those of a data sheet, and nothing but matrix products, weights and KV is counted:
no machine reaches these figures, unless its caches hold the model. A real
prediction starts from roofs measured on the machine.
"""

import math
from typing import NamedTuple

from .cost_card import CostCard, Pass
from .devices import Device
from .passes import itemsize


class Ceiling(NamedTuple):
    """What a device allows at the very most; None where it lacks arithmetic in the dtype."""

    device: str
    source: str
    bandwidth: float
    memory_bytes: int
    peak_flops: float | None
    ridge: float | None
    batch_at_ridge: int | None  # from here on the linear layers of a decode are compute-bound
    fits: bool
    sequences_that_fit: int
    ttft_seconds: float | None
    prefill_roof: str | None
    prefill_tokens_per_second: float | None
    itl_seconds: float | None
    decode_roof: str | None
    decode_tokens_per_second: float | None


def memory_floor(weight_bytes: float, kv_bytes: float, bandwidth: float) -> float:
    """Seconds of a pass that does nothing but move its weights and the KV of its sequences."""
    return (weight_bytes + kv_bytes) / bandwidth


def floor_seconds(work: Pass, peak: float, bandwidth: float) -> tuple[float, str]:
    """max(FLOPs / peak, bytes / bandwidth), and which of the two roofs binds."""
    kv_bytes = work.kv_bytes_read + work.kv_bytes_written
    compute, memory = work.flops / peak, memory_floor(work.weight_bytes, kv_bytes, bandwidth)
    return max(compute, memory), "compute" if compute >= memory else "memory"


def ceiling(card: CostCard, device: Device) -> Ceiling:
    """The roofline of the card on a device, from its data sheet. No machine reaches it."""
    sequence = card.kv_bytes_per_token * (card.context + 1)
    left = int(device.memory_bytes) - card.weight_bytes
    sequences = max(0, left // sequence)
    known = (device.name, device.source, device.bandwidth, int(device.memory_bytes))
    fits = card.batch <= sequences
    peak = device.peak_flops.get(card.dtype)
    if peak is None:
        return Ceiling(*known, None, None, None, fits, sequences, *[None] * 6)
    ridge = peak / device.bandwidth
    ttft, prefill_roof = floor_seconds(card.prefill, peak, device.bandwidth)
    itl, decode_roof = floor_seconds(card.decode, peak, device.bandwidth)
    return Ceiling(
        *known,
        peak,
        ridge,
        math.ceil(ridge * itemsize(card.dtype) / 2),  # 2B FLOPs for w bytes of a weight
        fits,
        sequences,
        ttft,
        prefill_roof,
        card.prompt_tokens / ttft,
        itl,
        decode_roof,
        card.batch / itl,
    )


def cost_per_million(price_per_hour: float, tokens_per_second: float) -> float:
    """Of a million tokens, at a price per hour of the machine and a rate that it keeps up."""
    return 1e6 * price_per_hour / (3600 * tokens_per_second)
