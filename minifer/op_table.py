"""One model's own choices of its ops: backend, kernels, hooks and swaps. A pass asks it to bind."""

import difflib
import threading
from collections.abc import Callable
from typing import Any

from .debugger import kernels_for_auto
from .errors import DeviceError, OpError
from .op import PREFERENCE, REGISTRY, TWINS, Ops


class OpTable:
    """Bound once per pass. `changes` are the hooks and swaps in force, the latest last."""

    def __init__(self, backend: Any, kernels: str, layers: int) -> None:
        self.backend, self.kernels, self.layers = backend, kernels, layers
        self.changes: tuple[Change, ...] = ()  # replaced, never altered: other threads read it
        self.lock = threading.Lock()
        self._bound: tuple[Any, Ops | None] = (None, None)
        self.allowed = available_kernels(backend.name)
        if kernels not in self.allowed:
            raise DeviceError(
                f"kernels {kernels!r} are not here for {backend.name}; "
                f"allowed: {', '.join(self.allowed)}"
            )

    def bind(self, recording: Any = None) -> Ops:
        """The table of one pass. Unwatched it is kept and shared; watched it is built anew."""
        kernels = self.kernels
        if kernels == "auto":
            kernels = kernels_for_auto(self.allowed)
        changes = self.changes  # one read each: another thread may replace them meanwhile
        bound, ops = self._bound
        if recording is not None or any(change.hook for change in changes):
            return Ops(self.backend, kernels, *active(changes), recording)
        key = (len(TWINS), kernels, changes)  # a twin may be registered late
        if bound != key or ops is None:
            ops = Ops(self.backend, kernels, *active(changes))
            self._bound = (key, ops)
        return ops

    def in_use(self) -> str:
        """The best kind of kernels a pass would run now: "reference" where no twin is wanted."""
        kernels = kernels_for_auto(self.allowed) if self.kernels == "auto" else self.kernels
        return next((kind for kind in PREFERENCE[kernels] if kind in self.allowed), "reference")

    def swapped(self) -> list[str]:
        """Names of the ops that somebody's function stands in for."""
        return sorted(active(self.changes)[0])

    def swap(self, functions: dict[str, Callable]) -> "Undo":
        """Put functions in the place of ops. In force until undone."""
        for name, function in functions.items():
            _known(name, list(REGISTRY), "op")
            if not callable(function):
                raise OpError(f"the swap of {name} needs a function, found {function!r:.60}")
        return self._apply([Change(name, f, False) for name, f in functions.items()])

    def hook(self, name: str, function: Callable) -> "Undo":
        """Show an intermediate to a function. In force until undone."""
        _known(name, self.hook_names(), "hook")
        if not callable(function):
            raise OpError(f"the hook {name} needs a function, found {function!r:.60}")
        return self._apply([Change(name, function, True)])

    def hook_names(self) -> list[str]:
        """Every name a hook may have."""
        return [
            f"{place}{spec.name}.{tap}"
            for spec in REGISTRY.values()
            for tap in spec.taps
            for place in ([f"layers.{i}." for i in range(self.layers)] if spec.layered else [""])
        ]

    def _apply(self, changes: list["Change"]) -> "Undo":
        with self.lock:
            self.changes += tuple(changes)
        return Undo(self, changes)


class Change:
    """One hook or one swap. Compared by identity, so each is undone alone and in any order."""

    def __init__(self, name: str, function: Callable, hook: bool) -> None:
        self.name, self.function, self.hook = name, function, hook


class Undo:
    """Hooks or swaps in force from now on, or, used with `with`, until the block ends."""

    def __init__(self, table: OpTable, changes: list[Change]) -> None:
        self.table, self.changes = table, changes

    def undo(self) -> None:
        """Take back what was put in place; twice is once."""
        with self.table.lock:
            self.table.changes = tuple(c for c in self.table.changes if c not in self.changes)

    def __enter__(self) -> "Undo":
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


def active(
    changes: "tuple[Change, ...]",
) -> tuple[dict[str, Callable], dict[str, list[Callable]]]:
    """-> ({op: swapped function}, {hook name: functions}), the latest swap of an op winning."""
    swaps = {change.name: change.function for change in changes if not change.hook}
    hooks: dict[str, list[Callable]] = {}
    for change in changes:
        if change.hook:
            hooks.setdefault(change.name, []).append(change.function)
    return swaps, hooks


def available_kernels(backend: str) -> list[str]:
    """The choices of kernels that mean something on this backend, in this installation."""
    kinds = {kind for _, name, kind in TWINS if name == backend}
    return ["auto", "reference", *(kind for kind in PREFERENCE if kind in kinds)]


def _known(name: str, names: list[str], kind: str) -> None:
    if not isinstance(name, str):
        raise OpError(f"the name of a {kind} is {name!r:.40}, expected a text")
    if name not in names:
        near = difflib.get_close_matches(name, names, 3) or names[:8]
        raise OpError(f"there is no {kind} {name!r}; near it: {', '.join(near)}")
