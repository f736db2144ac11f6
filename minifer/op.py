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

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from .errors import OpError
from .op_signature import Signature, check_tap, op_of, read_signature

# Read once per pass: a recording sees the passes of its own thread only. What the core asks of it:
#   per_op, opens_groups  watch every op, not the pass alone; run groups op by op
#   run(watched, path, args, kwargs)        run one op and note it
#   open_step(request, phase, position, clock), close_step(clock) -> receipt
RECORDING: ContextVar[Any] = ContextVar("recording", default=None)
REGISTRY: dict[str, "Op"] = {}
TWINS: dict[tuple[str, str, str], "Twin"] = {}  # (op, backend, kernels) -> a faster equal

# Which twins a choice of kernels prefers, best first; what has no twin runs its reference.
PREFERENCE = {
    "auto": ("cuda", "numba", "numpy"),
    "reference": (),
    "numpy": ("numpy",),
    "numba": ("numba", "numpy"),
    "cuda": ("cuda",),
}


class Cost(NamedTuple):
    """What an op costs, in whole numbers: what it requires, and what our code executes.

    A multiply-add is 2 FLOPs; a ufunc 1 per element it writes, a reduction 1 per element it reads;
    moving, comparing and widening are 0. Required bytes move once: weights as stored, KV, inputs
    and results. Executed are all pairs, hidden ones too, and the operands and results of every
    array call, temporaries and copies with them.
    """

    flops: int = 0
    executed_flops: int = 0
    weight_bytes: int = 0
    kv_bytes_read: int = 0
    kv_bytes_written: int = 0
    activation_bytes: int = 0
    executed_bytes: int = 0

    def __add__(self, other: tuple) -> "Cost":
        return Cost(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def __mul__(self, times: int) -> "Cost":
        return Cost(*(times * mine for mine in self))

    @property
    def required_bytes(self) -> int:
        """Bytes that have to move, each once."""
        kv = self.kv_bytes_read + self.kv_bytes_written
        return self.weight_bytes + kv + self.activation_bytes


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

    @property
    def is_pass(self) -> bool:
        """The group that is a whole pass."""
        return self.group and not self.layered


class Twin(NamedTuple):
    """A faster equal of an op, and what it costs where its executed column differs."""

    function: Callable
    cost: Callable[..., Cost] | None


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


def twin(
    name: str, backend: str, kernels: str, cost: Callable[..., Cost] | None = None
) -> Callable[[Callable], Callable]:
    """Register a function as a faster equal of an op, for one backend and one kind of kernels.

    Without a `cost` the required one of the op is counted, and what it executes is unknown. A
    twin of a group needs one: the ops that would have been counted do not run.
    """
    if name not in REGISTRY:
        raise OpError(f"a twin of {name!r}, which is no op; ops: {', '.join(REGISTRY)}")
    if REGISTRY[name].group and cost is None:
        raise OpError(f"the twin of the group {name} needs cost=, or it would count as nothing")

    def register(function: Callable) -> Callable:
        TWINS[name, backend, kernels] = Twin(function, cost)
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
        per_op = bool(hooks) or getattr(recording, "per_op", False)
        # A group's twin hides its ops: open it when someone looks inside.
        self.open_groups = bool(swaps or hooks) or getattr(recording, "opens_groups", False)
        self.path: list[str] = []  # the scopes now open; used only when watched
        self.kinds: dict[str, str] = {}  # op -> "reference", "numpy", ... or "swapped"
        for spec in REGISTRY.values():
            kind, function, cost = self._choose(spec, backend.name, kernels)
            if spec.name in swaps:
                kind, function, cost = "swapped", swaps[spec.name], spec.cost
            if any(op_of(name) == spec.name for name in hooks):
                if kind != "swapped":  # a twin has nothing to show
                    kind, function, cost = "reference", spec.reference, spec.cost
                check_tap(spec.name, function, hooks)
            self.kinds[spec.name] = kind
            call = partial(function, self if spec.group else self.xp)
            told = recording if spec.is_pass or getattr(recording, "per_op", False) else None
            if per_op or told is not None:
                call = Watched(spec, function, call, self, backend, hooks, told, kind, cost)
            setattr(self, spec.name, call)

    def _choose(
        self, spec: Op, backend: str, kernels: str
    ) -> tuple[str, Callable, Callable[..., Cost] | None]:
        if not (spec.group and self.open_groups):
            for kind in PREFERENCE[kernels]:
                if (spec.name, backend, kind) in TWINS:
                    return kind, *TWINS[spec.name, backend, kind]
        return "reference", spec.reference, spec.cost


class Watched:
    """One op of one pass with someone looking: checked, counted, timed, shown to hooks."""

    def __init__(
        self,
        spec: Op,
        function: Callable,
        call: partial,
        ops: Ops,
        backend: Any,
        hooks: dict[str, list[Callable]],
        recording: Any,
        kind: str,
        cost: Callable[..., Cost] | None,
    ) -> None:
        # `call` is `function` with xp or the table put in; a partial tells not what it stands for.
        self.spec, self.function, self.call = spec, function, call
        self.ops, self.backend = ops, backend
        self.recording, self.kind, self.cost = recording, kind, cost
        self.hooks = {name: found for name, found in hooks.items() if op_of(name) == spec.name}
        self.opened = spec.group and function is spec.reference

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
