"""The op table: where a named piece of arithmetic is dispatched, counted, timed, tapped or swapped.

An op is a plain function `f(xp, ...)`, registered here and returned untouched: it can be imported,
called and stepped into without any of this. A model reaches its ops through a table, built once per
pass. With nobody watching, `ops.linear` *is* the function (a functools.partial, which a debugger
does not see). With someone watching it is a Watched. A group is an op that calls other ops and does
no arithmetic itself: its first argument is the table `ops` instead of `xp`.

    @op(cost=residual_cost)                     # layers.py: the arithmetic, on any array module
    def residual(xp, x, update):
        return x + update

    x = ops.residual(x, update)                 # model.py: how a model calls it
    model.swap(residual=mine)                   # a learner: mine(xp, x, update) in its place

At a first reading the registry (`op`, `keep`) is enough; come back for twins, taps and costs.
"""

import inspect
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from .errors import OpError
from .op_signature import Signature, read_signature

# Read once per pass: a recording sees the passes of its own thread only.
RECORDING: ContextVar[Any] = ContextVar("recording", default=None)
REGISTRY: dict[str, "Op"] = {}
TWINS: dict[tuple[str, str, str], Callable] = {}  # (op, backend, kernels) -> a faster equal

# Which twins a choice of kernels prefers, best first; what has no twin runs its reference.
PREFERENCE = {
    "auto": ("cuda", "numba", "numpy"),
    "reference": (),
    "numpy": ("numpy",),
    "numba": ("numba", "numpy"),
    "cuda": ("cuda",),
}


class Cost(NamedTuple):
    """What an op requires, in whole numbers: FLOPs, and bytes that have to move once.

    A multiply-add is 2 FLOPs; a ufunc 1 per element it writes, a reduction 1 per element it reads;
    moving, comparing and widening are 0. `executed_flops` adds what is computed and then hidden.
    """

    flops: int = 0
    executed_flops: int = 0
    weight_bytes: int = 0
    kv_bytes_read: int = 0
    kv_bytes_written: int = 0
    activation_bytes: int = 0

    def __add__(self, other: tuple) -> "Cost":
        return Cost(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Op(NamedTuple):
    """One entry of the registry."""

    name: str
    reference: Callable
    cost: Callable[..., Cost] | None
    group: bool
    taps: tuple[str, ...]  # names of intermediates it shows to a hook
    scope: str | None  # the name of the argument that counts layers, for a group that is one
    layered: bool  # it runs inside a layer
    signature: Signature


def op(
    cost: Callable[..., Cost] | None = None,
    *,
    group: bool = False,
    taps: Iterable[str] = (),
    scope: str | None = None,
    layered: bool = False,
) -> Callable[[Callable], Callable]:
    """Register a function as an op under its own name and return it untouched."""

    def register(function: Callable) -> Callable:
        name = function.__name__
        shapes = read_signature(function)
        REGISTRY[name] = Op(name, function, cost, group, tuple(taps), scope, layered, shapes)
        return function

    return register


def twin(name: str, backend: str, kernels: str) -> Callable[[Callable], Callable]:
    """Register a function as a faster equal of an op, for one backend and one kind of kernels."""

    def register(function: Callable) -> Callable:
        TWINS[name, backend, kernels] = function
        return function

    return register


def keep(name: str, value: Any) -> Any:
    """The tap when nobody looks: the value, unchanged."""
    return value


class Ops:
    """The table of one pass: an attribute per op. Never changed after it is built."""

    def __init__(
        self,
        backend: Any,
        kernels: str,
        swaps: dict[str, Callable],
        hooks: dict[str, list[Callable]],
        recording: Any = None,
    ) -> None:
        self.xp = backend.xp
        watched = recording is not None or bool(hooks)
        # A group's twin hides its ops: open it when someone looks inside.
        self.open_groups = bool(swaps or hooks) or getattr(recording, "time", None) == "op"
        self.path: list[str] = []  # the scopes now open; used only when watched
        for spec in REGISTRY.values():
            function = swaps.get(spec.name)
            swapped = function is not None
            if function is None:
                function = self._choose(spec, backend.name, kernels)
            if any(op_of(name) == spec.name for name in hooks):
                function = function if swapped else spec.reference  # a twin has nothing to show
                _check_tap(spec, function, hooks)
            call = partial(function, self if spec.group else self.xp)
            if watched:
                call = Watched(spec, call, self, backend, hooks, recording, swapped)
            setattr(self, spec.name, call)

    def _choose(self, spec: Op, backend: str, kernels: str) -> Callable:
        if not (spec.group and self.open_groups):
            for kind in PREFERENCE[kernels]:
                if (spec.name, backend, kind) in TWINS:
                    return TWINS[spec.name, backend, kind]
        return spec.reference


class Watched:
    """One op of one pass with someone looking: checked, counted, timed, shown to hooks."""

    def __init__(
        self,
        spec: Op,
        call: partial,
        ops: Ops,
        backend: Any,
        hooks: dict[str, list[Callable]],
        recording: Any,
        swapped: bool,
    ) -> None:
        self.spec, self.call, self.ops, self.backend = spec, call, ops, backend
        self.recording, self.swapped = recording, swapped
        self.hooks = {name: found for name, found in hooks.items() if op_of(name) == spec.name}
        self.opened = spec.group and call.func is spec.reference

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        path, spec = self.ops.path, self.spec
        depth = len(path)
        if spec.scope is not None:
            path.append(f"layers.{spec.signature.argument(spec.scope, args, kwargs)}")
        try:
            if self.hooks:
                kwargs["tap"] = partial(self.tap, ".".join([*path, spec.name]))
            if self.recording is None:
                result = self.call(*args, **kwargs)
            else:
                result = self.recording.run(self, path, args, kwargs)
        finally:
            del path[depth:]
        spec.signature.check(spec.name, args, kwargs, result)
        return result

    def tap(self, path: str, name: str, value: Any) -> Any:
        """Hand a host copy to each hook of this name; what a hook returns is ignored."""
        for function in self.hooks.get(f"{path}.{name}", ()):
            function(self.backend.copy_to_host(value))
        return value


def op_of(hook_name: str) -> str:
    """The op a hook looks into: "layers.3.attention.weights" -> "attention"."""
    return hook_name.split(".")[-2]


def _check_tap(spec: Op, function: Callable, hooks: dict[str, list[Callable]]) -> None:
    try:
        taken = inspect.signature(function).parameters
    except ValueError:  # a builtin tells nothing of its arguments
        taken = {}
    if "tap" in taken:
        return
    names = [name for name in hooks if op_of(name) == spec.name]
    raise OpError(
        f"the hook {names[0]} cannot see into the swapped {spec.name}: give that function a "
        "keyword argument tap=keep and pass the intermediate through tap(name, value)"
    )
