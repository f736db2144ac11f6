"""A second, independent count: what NumPy was really asked to do, op by op.

`with count() as counted:` runs every op on counting arrays (counting_array.py) and sorts what they
see. Each distinct byte of a weight, of the KV cache, of an input or a result counts once: that has
to equal the required column of the cost functions. The operands and results of every call, each
time, have to equal the executed column. Logits stay the same bit for bit.
"""

import math
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from ..errors import OpError
from ..op import Cost, Watched
from .counting_array import Counted, Namespace, plain, root_of, unknown
from .watching import watching

COUNTED = tuple(name for name in Cost._fields if name != "flops")  # what can be seen: not the mask
Region = tuple[int, tuple[int, ...], tuple[int, ...], int]  # address, shape, strides, itemsize


class CountedRow(NamedTuple):
    """One call of one op: what its cost function says, and what was seen."""

    scope: tuple[str, ...]
    op: str
    kind: str  # "reference", "numpy" or "swapped"
    cost: Cost | None  # None for somebody's group: no one says what it should cost
    seen: Cost  # `flops` of it is executed_flops: a counting array cannot tell what is hidden
    calls: int  # of NumPy

    @property
    def differs(self) -> list[str]:
        """The columns in which the two disagree."""
        if self.cost is None:
            return list(COUNTED)
        return [name for name in COUNTED if getattr(self.cost, name) != getattr(self.seen, name)]


class Tally:
    """What one op did so far."""

    def __init__(self) -> None:
        self.flops = self.calls = self.executed_bytes = 0
        self.reads: dict[int, set[Region]] = {}  # root -> what was read of it
        self.writes: dict[int, set[Region]] = {}
        self.gathered: dict[int, int] = {}  # root -> bytes of picked rows


class Counter:
    """An observer of the op table. `rows` in the order of the calls; `outside` is between ops."""

    per_op = opens_groups = True

    def __init__(self, on_call: Callable[[int, int, int], None] | None = None) -> None:
        """`on_call(flops, bytes_read, bytes_written)` hears of every NumPy call as it happens."""
        self.rows: list[CountedRow] = []
        self.outside = self.tally = Tally()
        self.live_bytes = self.peak_bytes = 0  # of arrays the pass itself has made
        self.on_call = on_call
        self._xp = Namespace(self)
        self._roles: dict[int, str] = {}  # root -> weights or kv
        self._alive: dict[int, weakref.ref] = {}
        self._step: tuple[str, ...] = ()

    def open_step(self, request: Any, phase: str, position: int, clock: Any) -> None:
        """Begin the passes of one token."""
        self._step = (phase, f"position {position}")

    def close_step(self, clock: Any) -> None:
        """End them; a count gives no receipt."""
        self._step = ()

    def run(self, watched: Watched, path: list[str], args: tuple, kwargs: dict) -> Any:
        """Run one op on counting arrays and settle its account."""
        spec = watched.spec
        if watched.backend.name != "numpy" or watched.kind not in ("reference", "numpy", "swapped"):
            raise OpError(
                f"a count sees NumPy alone, and {spec.name} ran as {watched.kind} on "
                f'{watched.backend.name}; load the model with kernels="reference"'
            )
        if spec.is_pass:
            return self._run_pass(watched, args, kwargs)
        if watched.opened:  # its ops settle their own accounts
            return watched.call(*args, **kwargs)
        args = tuple(self.wrap(value) for value in args)
        kwargs = {name: self.wrap(value) for name, value in kwargs.items()}
        outer, self.tally = self.tally, Tally()
        try:
            first = watched.ops if spec.group else self._xp
            result = watched.function(first, *args, **kwargs)
        finally:
            tally, self.tally = self.tally, outer
        results = result if isinstance(result, (list, tuple)) else (result,)
        if any(isinstance(v, np.ndarray) and not isinstance(v, Counted) for v in results):
            raise OpError(
                f"{watched.kind} {spec.name} returns an array that escaped the count: it was made "
                "by numpy instead of xp"
            )
        taps = {name: value for name, value in kwargs.items() if name != "tap"}
        counts = watched.cost or spec.cost
        cost = counts(*plain(args), **plain_values(taps)) if counts else None
        seen = self._settle(tally, [*args, *kwargs.values()], results)
        scope = (*self._step, *path)
        self.rows.append(CountedRow(scope, spec.name, watched.kind, cost, seen, tally.calls))
        return result

    def _run_pass(self, watched: Watched, args: tuple, kwargs: dict) -> Any:
        """A pass knows which memory is weights and which KV; a hook may run one inside another."""
        outer = self._roles
        self._roles = roles_of(*args[:2])
        try:
            return plain(watched.call(*args, **kwargs))
        finally:
            self._roles = outer  # an id is used again once its array is gone

    def see(self, reads: list, writes: list[np.ndarray], flops: int) -> None:
        """A call has read some arrays and written others."""
        tally = self.tally
        regions = {_region(a): a for a in reads if isinstance(a, np.ndarray)}
        for region, array in regions.items():
            tally.reads.setdefault(id(root_of(array)), set()).add(region)
        for array in writes:
            self._own(array)
            tally.writes.setdefault(id(root_of(array)), set()).add(_region(array))
        read, written = sum(map(_size, regions)), sum(array.nbytes for array in writes)
        self._add(flops, read, written)

    def gather(self, source: np.ndarray, chosen: list[np.ndarray], result: np.ndarray) -> Any:
        """Rows of `source` were copied: as many bytes read as written, the row numbers besides."""
        if any(part.dtype == bool for part in chosen):
            raise unknown("picking by a mask")
        tally, root = self.tally, id(root_of(source))
        tally.gathered[root] = tally.gathered.get(root, 0) + result.nbytes
        self.see(chosen, [result], 0)
        self._add(0, result.nbytes, 0, calls=0)
        return self.wrap(result)

    def made(self, value: np.ndarray) -> Any:
        """A new array that nobody has written to."""
        self._own(value)
        return self.wrap(value)

    def wrap(self, value: Any) -> Any:
        """The same as counting arrays, inside lists and tuples too."""
        if type(value) is np.ndarray or isinstance(value, np.memmap):
            value = value.view(Counted)
            value.counter = self
        elif type(value) in (list, tuple):
            return type(value)(self.wrap(part) for part in value)
        elif isinstance(value, tuple) and hasattr(value, "_make"):  # a Layer, a Batch
            return value._make(self.wrap(part) for part in value)
        return value

    def disagreements(self) -> list[CountedRow]:
        """Rows in which a cost function and the count differ."""
        return [row for row in self.rows if row.differs]

    def _add(self, flops: int, read: int, written: int, calls: int = 1) -> None:
        self.tally.flops += flops
        self.tally.calls += calls
        self.tally.executed_bytes += read + written
        if self.on_call is not None:
            self.on_call(flops, read, written)

    def _settle(self, tally: Tally, args: list, results: tuple) -> Cost:
        """Each distinct byte once, by whose it is; temporaries are in the executed column alone."""
        given = {id(root_of(a)) for v in args for a in _arrays(v)}
        made = {id(root_of(a)) for v in results for a in _arrays(v)}
        found = dict.fromkeys(("weights", "kv read", "kv written", "activations"), 0)
        for verb, table in (("read", tally.reads), ("written", tally.writes)):
            for root, regions in table.items():
                role = self._roles.get(root, "")
                if role == "kv":
                    role = f"kv {verb}"
                elif not role and (root in given or (verb == "written" and root in made)):
                    role = "activations"
                if role:
                    found[role] += distinct_bytes(regions)
        for root, count in tally.gathered.items():
            found["weights" if self._roles.get(root) == "weights" else "activations"] += count
        return Cost(tally.flops, tally.flops, *found.values(), tally.executed_bytes)

    def _own(self, array: np.ndarray) -> None:
        """Follow a buffer the pass has made until it is freed."""
        root = root_of(array)
        key, size = id(root), root.nbytes
        if key in self._alive or key in self._roles:
            return

        def freed(_: Any) -> None:
            del self._alive[key]
            self.live_bytes -= size
            self.tally.writes.pop(key, None)  # the next buffer may get the same id
            self.tally.reads.pop(key, None)

        self._alive[key] = weakref.ref(root, freed)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def roles_of(model: Any, batch: Any) -> dict[int, str]:
    """Which memory is weights and which is KV. Whatever else is met is an activation."""
    weights = [model.embedding, model.head, model.final_norm]
    weights += [w for layer in model.layers for w in layer if w is not None]
    found = {id(root_of(weight)): "weights" for weight in weights}
    return found | {id(root_of(a)): "kv" for c in batch.caches for a in (c.keys, c.values)}


def plain_values(found: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments without counting."""
    return {name: plain(value) for name, value in found.items()}


def _arrays(value: Any) -> list[np.ndarray]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, np.ndarray)]


def _region(array: np.ndarray) -> Region:
    address = array.__array_interface__["data"][0]
    return address, array.shape, array.strides, array.itemsize


def _size(region: Region) -> int:
    """Bytes of a region; an axis that is only repeated counts once."""
    _, shape, strides, itemsize = region
    return math.prod(n for n, stride in zip(shape, strides, strict=True) if stride) * itemsize


def distinct_bytes(regions: set[Region]) -> int:
    """Bytes that lie in at least one of the regions."""
    if len(regions) == 1:
        return _size(next(iter(regions)))
    begin = min(_span(region)[0] for region in regions)
    end = max(_span(region)[1] for region in regions)
    touched = np.zeros(end - begin, bool)
    for address, shape, strides, itemsize in regions:
        cells = np.lib.stride_tricks.as_strided(
            touched[address - begin :], (*shape, itemsize), (*strides, 1)
        )
        cells[...] = True
    return int(np.count_nonzero(touched))


def _span(region: Region) -> tuple[int, int]:
    address, shape, strides, itemsize = region
    reach = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    low = address + sum(step for step in reach if step < 0)
    return low, address + sum(step for step in reach if step > 0) + itemsize


def count(
    on_call: Callable[[int, int, int], None] | None = None,
) -> AbstractContextManager[Counter]:
    """`with count() as counted:` counts every pass of this thread, op by op, its groups open."""
    return watching(Counter(on_call))
