"""What a recording shows: a table, plain data, and what watching itself took."""

import textwrap
import time
from typing import TYPE_CHECKING, Any

from ..errors import MiniferError
from ..op import Cost, Ops
from .passes import CONVENTION

if TYPE_CHECKING:
    from .recorder import Recording

MEGA = 1e6
COLUMNS = ("MFLOP", "weight MB", "KV MB", "act. MB", "MFLOP", "MB", "ms")
WIDTHS = (9, 10, 8, 9, 9, 9, 7)


def by_op(recording: "Recording", phase: str | None = None) -> dict[str, dict[str, Any]]:
    """op -> calls, cost, seconds, kinds of kernels, swapped, what is known of its cost."""
    found: dict[str, dict[str, Any]] = {}
    for row in recording.rows:
        if phase is not None and row.scope[:1] != (phase,):
            continue
        entry = found.setdefault(
            row.op,
            {
                "calls": 0, "cost": Cost(), "seconds": None, "kernels": [], "swapped": False,
                "required_known": True, "executed_known": True,
            },
        )  # fmt: skip
        entry["calls"] += row.calls
        entry["swapped"] |= row.swapped
        entry["required_known"] &= row.cost is not None
        entry["executed_known"] &= row.executed_known
        if row.kind not in entry["kernels"]:
            entry["kernels"].append(row.kind)
        if row.cost is not None:
            entry["cost"] += row.cost
        if row.seconds is not None:
            entry["seconds"] = (entry["seconds"] or 0.0) + row.seconds
    return found


def to_json(recording: "Recording") -> dict[str, Any]:
    """Per op and in all. Executed columns that nobody can know are None."""
    return {
        "time": recording.time,
        "convention": CONVENTION,
        "opened": sorted(recording.opened),
        "swapped": sorted(recording.swapped),
        "watching": watching(recording),
        "total": recording.receipt()._asdict(),
        "steps": [step._asdict() for step in recording.steps],
        "ops": _plain(by_op(recording)),
        "phases": {phase: _plain(by_op(recording, phase)) for phase in PHASES},
    }


EXECUTED = ("executed_flops", "executed_bytes")
PHASES = ("prefill", "decode")


def _plain(ops: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {}
    for name, entry in ops.items():
        cost = entry["cost"]._asdict()
        for known, names in (("required_known", tuple(cost)), ("executed_known", EXECUTED)):
            if not entry[known]:
                cost |= dict.fromkeys(names)
        found[name] = cost | {key: value for key, value in entry.items() if key != "cost"}
    return found


def table(recording: "Recording", phase: str | None = None) -> str:
    """A row per op and one for all, 80 columns wide; what is not known is a question mark."""
    if phase not in (None, *PHASES):
        raise MiniferError(f"phase is {phase!r:.40}; allowed: {', '.join(PHASES)}, or none for all")
    ops = by_op(recording, phase)
    if not ops:
        return f"nothing was recorded{f' of {phase}' if phase else ''}"
    lines = [f"{'':21}{' required ':-^34}  {' executed ':-^16}"]
    lines.append(f"{'op':<12}{'calls':>7}" + "".join(map("{:>{}}".format, COLUMNS, WIDTHS)))
    whole = {
        "calls": sum(entry["calls"] for entry in ops.values()),
        "cost": sum((entry["cost"] for entry in ops.values()), Cost()),
        "seconds": _seconds(recording, phase),
        "swapped": False,
        "required_known": all(entry["required_known"] for entry in ops.values()),
        "executed_known": all(entry["executed_known"] for entry in ops.values()),
    }
    lines += [_line(name, entry) for name, entry in {**ops, "all": whole}.items()]
    notes = [CONVENTION, *_notes(recording, ops)]
    if whole["seconds"] is not None:
        notes.append("ms of all: of whole steps and passes, with what stands between their ops")
    return "\n".join(lines + [part for note in notes for part in textwrap.wrap(note, 80)])


def _seconds(recording: "Recording", phase: str | None) -> float | None:
    """Of the steps and other passes, what stands between their ops included."""
    if phase is None:
        return recording.receipt().seconds
    steps = [s.seconds for s in recording.spans if s.scope == (phase,)]
    return sum(steps) if steps else None


def _line(name: str, entry: dict[str, Any]) -> str:
    cost, asked, ran = entry["cost"], entry["required_known"], entry["executed_known"]
    kv_bytes = cost.kv_bytes_read + cost.kv_bytes_written
    figures = [
        *(x / MEGA if asked else None for x in (cost.flops, cost.weight_bytes, kv_bytes)),
        cost.activation_bytes / MEGA if asked else None,
        *(x / MEGA if ran else None for x in (cost.executed_flops, cost.executed_bytes)),
    ]
    cells = "".join(f"{figure(x):>{width}}" for x, width in zip(figures, WIDTHS, strict=False))
    seconds = entry["seconds"]
    spent = "-" if seconds is None else figure(1e3 * seconds)
    mark = "*" if entry["swapped"] else ""
    return f"{name + mark:<12}{entry['calls']:>7}{cells}{spent:>{WIDTHS[-1]}}"


def figure(value: float | None) -> str:
    """Four digits that say something: 68857, 268.9, 1.234, 0.0012; ? for what is not known."""
    if value is None:
        return "?"
    if value == 0:
        return "0"
    least = ((1000, 0), (100, 1), (10, 2), (1, 3), (0, 4))
    return f"{value:.{next(digits for low, digits in least if value >= low)}f}"


def _notes(recording: "Recording", ops: dict[str, dict[str, Any]]) -> list[str]:
    notes = []
    if recording.swapped:
        notes.append(
            f"* swapped: {', '.join(sorted(recording.swapped))}; the cost shown is the "
            "reference's, not proven for what ran"
        )
    if not all(entry["executed_known"] for entry in ops.values()):
        why = "a kernel or a swap that does not say what it executes"
        if not recording.per_op:
            why = "step mode uses closed formulas, and those are of the reference kernels"
        notes.append(f"? not known: {why}")
    if recording.opened:
        notes.append(f"groups run op by op: {', '.join(sorted(recording.opened))}")
    found = watching(recording)
    if found and found["seconds"] is not None:
        spent = recording.receipt().seconds or 0
        share = f", {found['seconds'] / spent:.1%} of the time above" if spent else ""
        notes.append(
            f"watching took about {1e3 * found['seconds']:.2f} ms{share}: {found['calls']} calls, "
            f"{1e6 * found['seconds_per_call']:.1f} us each (just measured: an op watched and not)"
        )
    return notes


def watching(recording: "Recording", rounds: int = 7, calls: int = 50) -> dict[str, Any] | None:
    """What the recording added to what it watched: calls x (watched - plain) of a tiny op.

    Measured here and now, alternating, the median of the rounds. None before a first pass.
    """
    from .recorder import Recording

    if recording.backend is None:
        return None
    count = len(recording.spans) + (len(recording.rows) if recording.per_op else 0)
    backend = recording.backend
    one = backend.xp.zeros((1, 1), dtype=backend.xp.float32)
    gaps = []
    for _ in range(rounds):
        spent = []
        for watcher in (None, Recording("op" if recording.time == "op" else None)):
            residual = Ops(backend, "reference", {}, {}, watcher).residual
            begin = time.perf_counter()
            for _ in range(calls):
                residual(one, one)
            spent.append(time.perf_counter() - begin)
        gaps.append((spent[1] - spent[0]) / calls)
    each = max(0.0, sorted(gaps)[rounds // 2])
    return {"calls": count, "seconds_per_call": each, "seconds": count * each}
