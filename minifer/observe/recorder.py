"""A recording: what every op of a pass costs and, when asked, how long it took.

    None     counts every op; no clock is read
    "step"   reads the clock once per pass and step; costs come from the closed formulas of
             passes.py, so that no op is watched
    "op"     reads it around every op and opens the groups

Logits stay the same bit for bit, unless "op" opens a group that a twin would have run whole.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import MiniferError
from ..op import REGISTRY, Cost, Watched
from .passes import Stored, pass_costs, stored_by
from .watching import watching


class Row(NamedTuple):
    """One call of one op; in step mode all its calls in one pass."""

    request: int  # which call of generate; 0 for a pass outside of any
    scope: tuple[str, ...]  # phase and step, then layer
    op: str
    kind: str  # whose function ran: "reference", "numpy", ... or "swapped"
    calls: int
    cost: Cost | None  # of a swap the reference's; None where nobody can say
    executed_known: bool  # whether the executed columns are those of what ran
    begin: float | None  # the clock, where it was read; in step mode as its pass began
    seconds: float | None

    @property
    def swapped(self) -> bool:
        """Somebody's function: its cost is the reference's, unproven."""
        return self.kind == "swapped"


class Span(NamedTuple):
    """A stretch of time that holds others: a step, a pass, a layer, a group."""

    request: int
    scope: tuple[str, ...]
    name: str
    begin: float
    seconds: float


class KVBytes(NamedTuple):
    """Bytes of keys and values a request holds after a pass."""

    request: int
    clock: float
    count: int


class OpenStep(NamedTuple):
    """A step that has begun: whose it is, its scope, the row and the clock at its beginning."""

    request: int
    scope: tuple[str, ...]
    first_row: int
    begin: float


class OpenPass(NamedTuple):
    """A pass that runs: its table, its step, and how many steps were open when it began."""

    ops: Any
    step: OpenStep
    opened: int


class Receipt(NamedTuple):
    """What one token, or a whole recording, required. What is not known is None."""

    weight_bytes: int | None
    kv_bytes_read: int | None
    kv_bytes_written: int | None
    flops: int | None
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
        self.per_op, self.opens_groups = time != "step", time == "op"
        self.rows: list[Row] = []
        self.spans: list[Span] = []  # in the order in which they ended
        self.steps: list[Receipt] = []
        self.kv_bytes: list[KVBytes] = []
        self.opened: set[str] = set()  # groups whose ops were looked into
        self.swapped: set[str] = set()  # ops and groups somebody's function stood in for
        self.backend: Any = None  # of the last pass
        self._requests: list[Any] = []
        self._stored: dict[int, tuple[Any, Stored]] = {}
        self._open: list[OpenStep] = [OpenStep(0, (), 0, 0.0)]  # a hook may call generate itself
        self._inside = False
        self._passes: list[OpenPass] = []  # and may call the model

    def run(self, watched: Watched, path: list[str], args: tuple, kwargs: dict) -> Any:
        """Run one op for the table and note what it took."""
        spec, clock, seconds, begin = watched.spec, watched.backend.clock, None, None
        if self._inside:  # a group's twin that calls ops: its own cost stands for all of them
            return watched.call(*args, **kwargs)
        step = self._step_of(watched)
        self._inside = spec.group and watched.kind not in ("reference", "swapped")
        if spec.is_pass:
            self._passes.append(OpenPass(watched.ops, step, len(self._open)))
        if self.time == "op" or (self.time == "step" and spec.is_pass):
            begin = clock()
        try:
            result = watched.call(*args, **kwargs)
        finally:
            self._inside = False
            if spec.is_pass:
                self._passes.pop()
        if begin is not None:
            seconds = clock() - begin
        scope = (*step.scope, *path)
        if seconds is not None and (spec.group or not self.per_op):
            self.spans.append(Span(step.request, scope, spec.name, begin, seconds))
        if spec.is_pass:
            self._note_pass(watched, args, scope, step.request)
        if watched.opened and self.per_op:
            self.opened.add(spec.name)  # its ops have noted themselves
        elif self.per_op:
            shown = {name: value for name, value in kwargs.items() if name != "tap"}
            counts = watched.cost or spec.cost
            try:
                cost = counts(*args, **shown) if counts else None
            except Exception:  # shapes it cannot read: say which, in words
                spec.signature.check(spec.name, args, kwargs, result)
                raise
            known = watched.cost is not None and watched.kind != "swapped"
            self.rows.append(
                Row(
                    step.request, scope, spec.name, watched.kind, 1, cost, known, begin, seconds
                )
            )  # fmt: skip
        return result

    def _step_of(self, watched: Watched) -> "OpenStep":
        """The step an op belongs to; none for a pass that a hook runs inside another pass."""
        if not self._passes:
            return self._open[-1]
        ops, step, opened = self._passes[-1]
        if watched.ops is ops:
            return step
        return self._open[-1] if len(self._open) > opened else self._open[0]

    def _note_pass(
        self, watched: Watched, args: tuple, scope: tuple[str, ...], request: int
    ) -> None:
        """What only the pass knows: its swaps, its caches and, in step mode, all its costs."""
        model, batch, all_rows = args
        kinds = watched.ops.kinds
        self.backend = watched.backend
        self.swapped |= {name for name, kind in kinds.items() if kind == "swapped"}
        if self.time is not None:
            end = self.spans[-1].begin + self.spans[-1].seconds
            held = sum(
                cache.bytes_per_token * (cache.length + part.stop - part.start)
                for part, cache in zip(batch.rows, batch.caches, strict=True)
            )
            self.kv_bytes.append(KVBytes(request, end, held))
        if self.per_op:
            return
        segments = [
            (part.stop - part.start, cache.length)
            for part, cache in zip(batch.rows, batch.caches, strict=True)
        ]
        groups = [name for name in kinds if kinds[name] == "swapped" and REGISTRY[name].group]
        begin = self.spans[-1].begin
        if groups:  # which ops ran inside, no formula can know
            row = (request, scope, watched.spec.name, "swapped", 1, None, False, begin, None)
            self.rows.append(Row(*row))
            return
        if id(model) not in self._stored:  # the model is kept with it, so the id stays its own
            self._stored[id(model)] = model, stored_by(model)
        _, stored = self._stored[id(model)]
        for name, (calls, cost) in pass_costs(model.config, segments, stored, all_rows).items():
            kind = kinds[name]
            known = kind == "reference"
            row = (request, scope, name, kind, calls, cost, known, begin, None)
            self.rows.append(Row(*row))

    def open_step(self, request: Any, phase: str, position: int, clock: Any) -> None:
        """Begin the passes of one token of one call of generate."""
        if not any(known is request for known in self._requests):
            self._requests.append(request)
        number = 1 + next(i for i, known in enumerate(self._requests) if known is request)
        begin = clock() if self.time else 0.0
        scope = (phase, f"position {position}")
        self._open.append(OpenStep(number, scope, len(self.rows), begin))

    def close_step(self, clock: Any) -> Receipt:
        """End them -> their receipt."""
        request, (phase, position), first, begin = self._open.pop()
        seconds = clock() - begin if self.time else None
        rows = [row for row in self.rows[first:] if row.request == request]
        receipt = _receipt(rows, seconds)
        self.steps.append(receipt)
        if seconds is not None:
            self.spans.append(Span(request, (phase,), position, begin, seconds))
        return receipt

    def receipt(self) -> Receipt:
        """Everything recorded, added up; seconds are those of the steps and of other passes."""
        passes = [s.seconds for s in self.spans if s.name == "transformer" and not s.request]
        seconds = [step.seconds for step in self.steps if step.seconds is not None] + passes
        return _receipt(self.rows, sum(seconds) if seconds else None)

    def by_op(self, phase: str | None = None) -> dict[str, dict[str, Any]]:
        """op -> calls, cost, seconds, whether a swap was in its place, what is known of it."""
        from .report import by_op

        return by_op(self, phase)

    def to_json(self) -> dict[str, Any]:
        """The recording as plain data: per op and in all."""
        from .report import to_json

        return to_json(self)

    def table(self, phase: str | None = None) -> str:
        """Required and executed costs per op, 80 columns wide, and what watching took.

        phase: "prefill" or "decode" alone; everything unless given.
        """
        from .report import table

        return table(self, phase)

    def perfetto(self, path: str | Path) -> None:
        """Write the times as a trace for ui.perfetto.dev. Raises MiniferError without times."""
        from .perfetto import write_trace

        write_trace(self, Path(path))


def _receipt(rows: list[Row], seconds: float | None) -> Receipt:
    if any(row.cost is None for row in rows):  # a sum without it would be too small
        return Receipt(None, None, None, None, None, seconds)
    total = Cost()
    for row in rows:
        total += row.cost
    moved = total.weight_bytes + total.kv_bytes_read + total.kv_bytes_written
    return Receipt(
        total.weight_bytes,
        total.kv_bytes_read,
        total.kv_bytes_written,
        total.flops,
        total.flops / moved if moved else None,
        seconds,
    )


def record(time: str | None = None) -> AbstractContextManager[Recording]:
    """`with minifer.record(time="op") as recording:` watches every pass of this thread.

    time: None counts every op and reads no clock; "step" reads it around every step and pass, and
    watches no op; "op" reads it around every op and opens the groups. `steps` has a receipt per
    token of generate; a pass outside of it is in `rows` and `receipt()`.
    """
    return watching(Recording(time))
