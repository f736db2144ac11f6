"""A recording: what every op of a pass requires and, when asked, how long it took."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..errors import MiniferError
from ..op import RECORDING, Cost, Watched


class Row(NamedTuple):
    """One call of one op."""

    scope: tuple[str, ...]  # phase and step, then layer
    op: str
    cost: Cost
    seconds: float | None  # None unless each op is timed
    swapped: bool  # somebody's function: its cost is the reference's, unproven


class Receipt(NamedTuple):
    """What one token, or a whole recording, required. What is not known is None."""

    weight_bytes: int
    kv_bytes_read: int
    kv_bytes_written: int
    flops: int
    intensity: float | None  # FLOPs per byte of weights and KV
    seconds: float | None
    floor_seconds: float | None = None
    wall: str | None = None


class Recording:
    """Rows in the order of the calls. `time` is None (count only), "step" or "op"."""

    def __init__(self, time: str | None = None) -> None:
        if time not in (None, "step", "op"):
            raise MiniferError(f"record(time={time!r}); allowed are None, 'step' and 'op'")
        self.time = time
        self.rows: list[Row] = []
        self.steps: list[Receipt] = []
        self.opened: set[str] = set()  # groups whose ops were looked into
        self._step: tuple[str, ...] = ()
        self._begin: tuple[int, float] = (0, 0.0)

    def run(self, watched: Watched, path: list[str], args: tuple, kwargs: dict) -> Any:
        """Run one op for the table and note what it took."""
        spec, clock = watched.spec, watched.backend.clock
        begin = clock() if self.time == "op" else 0.0
        result = watched.call(*args, **kwargs)
        seconds = clock() - begin if self.time == "op" else None
        if watched.opened:
            self.opened.add(spec.name)  # its ops have noted themselves
            return result
        shown = {name: value for name, value in kwargs.items() if name != "tap"}
        cost = spec.cost(*args, **shown) if spec.cost else Cost()
        row = Row((*self._step, *path), spec.name, cost, seconds, watched.swapped)
        self.rows.append(row)
        return result

    def open_step(self, phase: str, position: int, clock: Any) -> None:
        """Begin the passes of one token."""
        self._step = (phase, f"position {position}")
        self._begin = (len(self.rows), clock() if self.time else 0.0)

    def close_step(self, clock: Any) -> Receipt:
        """End them -> their receipt."""
        first, begin = self._begin
        receipt = _receipt(self.rows[first:], clock() - begin if self.time else None)
        self.steps.append(receipt)
        self._step = ()
        return receipt

    def receipt(self) -> Receipt:
        """Everything recorded, added up; seconds are those of the steps, when timed."""
        seconds = [step.seconds for step in self.steps if step.seconds is not None]
        return _receipt(self.rows, sum(seconds) if seconds else None)

    def by_op(self) -> dict[str, dict[str, Any]]:
        """op -> calls, required costs, seconds, whether a swap was in its place."""
        found: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            entry = found.setdefault(
                row.op, {"calls": 0, "cost": Cost(), "seconds": None, "swapped": False}
            )
            entry["calls"] += 1
            entry["cost"] += row.cost
            entry["swapped"] |= row.swapped
            if row.seconds is not None:
                entry["seconds"] = (entry["seconds"] or 0.0) + row.seconds
        return found

    def to_json(self) -> dict[str, Any]:
        """The recording as plain data: per op and in all."""
        ops = {
            name: {**entry["cost"]._asdict(), **{k: v for k, v in entry.items() if k != "cost"}}
            for name, entry in self.by_op().items()
        }
        total = self.receipt()._asdict()
        return {"time": self.time, "opened": sorted(self.opened), "total": total, "ops": ops}

    def table(self) -> str:
        """Required costs per op, 78 columns wide."""
        head = ("op", "calls", "MFLOP", "weight MB", "KV MB", "act. MB", "ms")
        lines = [("{:<12}" + "{:>8}" + "{:>11}" * 5).format(*head)]
        for name, entry in self.by_op().items():
            cost = entry["cost"]
            kv_bytes = cost.kv_bytes_read + cost.kv_bytes_written
            figures = (cost.flops, cost.weight_bytes, kv_bytes, cost.activation_bytes)
            cells = "".join(f"{figure / 1e6:>11.3f}" for figure in figures)
            spent = "-" if entry["seconds"] is None else f"{1e3 * entry['seconds']:.2f}"
            mark = "*" if entry["swapped"] else ""
            lines.append(f"{name + mark:<12}{entry['calls']:>8}{cells}{spent:>11}")
        if any(entry["swapped"] for entry in self.by_op().values()):
            lines.append("* swapped: the cost shown is the reference's, not proven for this one")
        return "\n".join(lines)


def _receipt(rows: list[Row], seconds: float | None) -> Receipt:
    total = Cost()
    for row in rows:
        total += row.cost
    moved = total.weight_bytes + total.kv_bytes_read + total.kv_bytes_written
    intensity = total.flops / moved if moved else None
    return Receipt(
        total.weight_bytes,
        total.kv_bytes_read,
        total.kv_bytes_written,
        total.flops,
        intensity,
        seconds,
    )


@contextmanager
def record(time: str | None = None) -> Iterator[Recording]:
    """`with minifer.record(time="op") as recording:` watches every pass of this thread.

    time: None counts only, "step" reads the clock once per token, "op" once per op.
    """
    recording = Recording(time)
    token = RECORDING.set(recording)
    try:
        yield recording
    finally:
        RECORDING.reset(token)
