"""A tracer that knows our functions: what each statement took, made, and how often it ran.

`own` is what a statement did itself; `whole` has the shown functions it called in it, too. `own` of
all statements adds up to the pass.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import MiniferError
from .walk_source import Function

Place = tuple[str, int]  # function, first line of a statement


@dataclass
class Share:
    """What a statement, or a whole pass, took."""

    seconds: float = 0.0
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __iadd__(self, other: "Share") -> "Share":
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.bytes else None


@dataclass
class Figures:
    """One statement in one phase."""

    hits: int = 0
    own: Share = field(default_factory=Share)
    whole: Share = field(default_factory=Share)
    # name -> {shape: how often}; "return" is what a function returned
    made: dict[str, dict[str, int]] = field(default_factory=dict)

    def shown(self, function: Function) -> Share:
        """Of what calls ops the whole, else what the statement did itself."""
        return self.whole if function.group else self.own


class Visit:
    """One call of a shown function, still running."""

    __slots__ = ("first", "function", "inner", "own", "since", "statement_of", "total")

    def __init__(self, function: Function, statement_of: dict[int, int]) -> None:
        self.function, self.statement_of = function, statement_of
        self.first = function.first  # of the statement it is at
        self.own = self.inner = self.total = self.since = 0.0


class Tracer:
    """What sys.settrace calls: the time of each statement, and how often it ran.

    Its own work lies between two readings of the clock and is in no statement's time.
    """

    def __init__(
        self, functions: list[Function], layer: int | None, clock: Callable[[], float]
    ) -> None:
        self.watched = {f.code: (f, f.statement_of()) for f in functions}
        self.layer, self.clock = layer, clock
        self.stack: list[Visit] = []
        self.figures: dict[Place, Figures] = {}
        self.entered: dict[Place, None] = {}  # the functions, in the order of their first calls

    def __call__(self, frame: Any, event: str, arg: Any) -> Callable | None:
        """A function begins: watch its lines, or leave it alone."""
        found = self.watched.get(frame.f_code)
        if found is None:
            return None
        now, stack, scope = self.clock(), self.stack, found[0].scope
        if stack:
            stack[-1].own += now - stack[-1].since
        elif self.layer is not None and (scope is None or frame.f_locals[scope] != self.layer):
            return None
        stack.append(Visit(*found))
        self.entered[found[0].name, found[0].first] = None
        stack[-1].since = self.clock()
        return self.inside

    def inside(self, frame: Any, event: str, arg: Any) -> Callable:
        """A line begins, or the function ends."""
        now, stack = self.clock(), self.stack
        visit = stack[-1]
        visit.own += now - visit.since
        if event == "line":
            first = visit.statement_of.get(frame.f_lineno, visit.first)
            if first != visit.first:
                self.close(visit, frame, None)
                visit.first = first
        elif event == "return":
            self.close(visit, frame, arg)
            stack.pop()
            if stack:
                stack[-1].inner += visit.total
        if stack:
            stack[-1].since = self.clock()
        return self.inside

    def close(self, visit: Visit, frame: Any, returned: Any) -> Figures:
        """A statement has ended."""
        place = (visit.function.name, visit.first)
        figures = self.figures.get(place)
        if figures is None:
            figures = self.figures[place] = Figures()
        figures.hits += 1
        figures.own.seconds += visit.own
        figures.whole.seconds += visit.own + visit.inner
        visit.total += visit.own + visit.inner
        visit.own = visit.inner = 0.0
        return figures


class Look(Tracer):
    """The same, looking at what each statement made and told of every NumPy call."""

    def close(self, visit: Visit, frame: Any, returned: Any) -> Figures:
        """A statement has ended: what it set is there now."""
        figures = super().close(visit, frame, returned)
        statement = next(s for s in visit.function.statements if s.first == visit.first)
        local = frame.f_locals
        seen = {name: local[name] for name in statement.names if name in local}
        for name, value in [*seen.items(), ("return", returned)]:
            text = describe(value)
            if text:
                times = figures.made.setdefault(name, {})
                times[text] = times.get(text, 0) + 1
        return figures

    def work(self, flops: int, bytes_read: int, bytes_written: int) -> None:
        """A NumPy call, wherever the innermost shown function now stands."""
        share = Share(0.0, flops, bytes_read, bytes_written)
        for visit in self.stack:
            figures = self.figures.setdefault((visit.function.name, visit.first), Figures())
            figures.whole += share
        if self.stack:
            figures.own += share


def describe(value: Any) -> str:
    """An array's shape, its dtype too unless float32; several arrays; a whole number; else ""."""
    if type(value) in (list, tuple):
        arrays = [describe(part) for part in value if hasattr(part, "dtype")]
        if not arrays or len(arrays) < len(value):
            return ""
        return ", ".join(arrays) if type(value) is tuple else f"[{', '.join(arrays)}]"
    if type(value) is int:
        return str(value)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None:
        return ""
    return str(tuple(shape)) + ("" if str(dtype) == "float32" else f" {dtype}")


@contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """sys.settrace for a while. Raises MiniferError where somebody else has it."""
    other = sys.gettrace()
    if other is not None:
        name = getattr(other, "__qualname__", type(other).__qualname__)
        module = getattr(other, "__module__", None) or type(other).__module__
        raise MiniferError(
            f"walk needs sys.settrace, and {module}.{name} has it: a debugger, or coverage; "
            "run it without: python -m minifer walk"
        )
    try:
        sys.settrace(tracer)
        yield
    finally:
        sys.settrace(None)
