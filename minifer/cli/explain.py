"""A receipt per token: what its passes had to read, what they computed, how long they took."""

from typing import Any

from ..observe.report import figure

HEAD = ("token", "phase", "position", "weight MB", "KV r+w", "GFLOP", "FLOP/B", "ms")
ROW = "{:<17}{:<9}{:>8}{:>11}{:>9}{:>9}{:>8}{:>8}"


NOTES = (
    "required: visible pairs, each weight once per pass; KV in MB, read and written",
    "FLOP/B: all FLOPs over weights and KV, activations left out; ms of the passes",
)


def explain_lines(model: Any, taken: list) -> list[str]:
    """A line per token, one per phase, and what to see in them; 79 columns."""
    floors = any(step.receipt.floor_seconds is not None for step in taken)
    head = ROW.format(*HEAD) + ("  floor ms" + "  wall" if floors else "")
    lines = [head]
    for step in taken:
        receipt = step.receipt
        kv_bytes = receipt.kv_bytes_read + receipt.kv_bytes_written
        cells = (
            receipt.weight_bytes / 1e6, kv_bytes / 1e6, receipt.flops / 1e9,
            receipt.intensity, 1e3 * receipt.seconds,
        )  # fmt: skip
        row = ROW.format(piece(model, step), step.phase, step.position, *map(figure, cells))
        if floors:
            row += f"{figure(1e3 * receipt.floor_seconds):>10}  {receipt.wall}"
        lines.append(row)
    return [*lines, *_summary(taken)]


def piece(model: Any, step: Any) -> str:
    """A token as Python spells it, short enough for its column."""
    text = repr(model.tokenizer.decode([step.token_id])) if model.tokenizer else str(step.token_id)
    return text if len(text) <= 16 else f"{text[:15]}…"


def _summary(taken: list) -> list[str]:
    """Per phase, what one token took on average: the difference the cache and the batch make."""
    first, *later = taken
    prompt = first.position
    lines = [_phase("prefill", prompt, [first.receipt])]
    if later:
        lines.append(_phase("decode", len(later), [step.receipt for step in later]))
    return [*lines, *NOTES]


def _phase(phase: str, tokens: int, receipts: list) -> str:
    weights = sum(r.weight_bytes for r in receipts) / tokens / 1e6
    kv_bytes = sum(r.kv_bytes_read + r.kv_bytes_written for r in receipts)
    flops = sum(r.flops for r in receipts)
    moved = sum(r.weight_bytes for r in receipts) + kv_bytes
    return (
        f"{phase}: {tokens} token{'s' * (tokens != 1)}, each {figure(weights)} MB of weights, "
        f"{figure(flops / tokens / 1e9)} GFLOP; {figure(flops / moved)} FLOP per byte"
    )
