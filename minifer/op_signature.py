"""What a watched op must keep to: the shapes its docstring states, and the taps its hooks need.

`x (T, D), weight (O, D) -> (T, O)` binds T, D and O at the first array that shows them and compares
from there on. A size may be a name, a number, a product `T*G` or a quotient `E/2`.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .errors import OpError

_SHAPE = re.compile(r"(\w+) \(([^()]*)\)")
_STATED = re.compile(r"((?:\w+ \([^()]*\),?\s*)+)->\s*((?:\([^()]*\),?\s*)+)")


class Signature(NamedTuple):
    """Parameter names, and the stated shape of some of them and of the results."""

    parameters: tuple[str, ...]
    shapes: dict[str, tuple[str, ...]]
    results: tuple[tuple[str, ...], ...]
    places: tuple[int, ...]  # of the stated ones among the arguments of a call
    passed: set[tuple]  # shapes and dtypes that fitted before: 30 layers ask the same question

    def argument(self, name: str, args: tuple, kwargs: dict) -> Any:
        """The value a call gives to a parameter; `xp` or `ops` is bound already and not in args."""
        if name in kwargs:
            return kwargs[name]
        place = self.parameters.index(name) - 1
        return args[place] if place < len(args) else None

    def check(self, op: str, args: tuple, kwargs: dict, result: Any) -> None:
        """Raise OpError at the first array whose shape is not as stated, or a float64 result."""
        count = len(args)
        if kwargs:
            given = [self.argument(name, args, kwargs) for name in self.shapes]
        else:
            given = [args[place] if place < count else None for place in self.places]
        results = result if isinstance(result, tuple) else (result,)
        found = tuple([getattr(value, "shape", None) for value in (*given, *results)])
        dtypes = tuple([getattr(value, "dtype", None) for value in results])
        if (found, dtypes) in self.passed:
            return
        if "float64" in map(str, dtypes):  # it would carry on through the whole pass
            raise OpError(
                f"{op}: the result is float64, a pass computes in float32; "
                "end with .astype(xp.float32)"
            )
        sizes: dict[str, int] = {}
        for (name, dims), shape in zip(self.shapes.items(), found, strict=False):
            _compare(f"{op}: {name}", shape, dims, sizes)
        for shape, dims in zip(found[len(given) :], self.results, strict=False):
            _compare(f"{op}: the result", shape, dims, sizes)
        if len(self.passed) > 1000:  # a decode of thousands of tokens
            self.passed.clear()
        self.passed.add((found, dtypes))


def read_signature(function: Callable) -> Signature:
    """Read parameters and stated shapes; a function that states nothing is checked for nothing."""
    parameters = tuple(inspect.signature(function).parameters)
    stated = _STATED.search(inspect.getdoc(function) or "")
    if stated is None:
        return Signature(parameters, {}, (), (), set())
    shapes = {name: _dims(inside) for name, inside in _SHAPE.findall(stated[1])}
    unknown = set(shapes) - set(parameters)
    if unknown:
        raise OpError(f"{function.__name__}: the docstring names {sorted(unknown)}, no parameters")
    results = tuple(_dims(inside) for inside in re.findall(r"\(([^()]*)\)", stated[2]))
    places = tuple(parameters.index(name) - 1 for name in shapes)
    return Signature(parameters, shapes, results, places, set())


def _dims(inside: str) -> tuple[str, ...]:
    return tuple(dim.strip() for dim in inside.split(",") if dim.strip())


def _compare(
    what: str, shape: tuple[int, ...] | None, dims: tuple[str, ...], sizes: dict[str, int]
) -> None:
    if shape is None:  # no array: a bias that is not there
        return
    fits = len(shape) == len(dims)
    for size, dim in zip(shape, dims, strict=False):
        fits = fits and size == _size(dim, size, sizes)
    if not fits:
        known = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        raise OpError(
            f"{what} has shape {tuple(shape)}, stated is ({', '.join(dims)}) with {known}"
        )


def _size(dim: str, found: int, sizes: dict[str, int]) -> int:
    if dim.isdigit():
        return int(dim)
    if dim.isidentifier():
        return sizes.setdefault(dim, found)
    product = re.fullmatch(r"(\w+) ?([*/]) ?(\w+)", dim)
    if product is None:
        raise OpError(f"the stated size {dim!r} is neither a name, a number, a*b nor a/b")
    left, sign, right = product.groups()
    if sign == "/":
        divisor = _size(right, found, sizes)
        return _size(left, found * divisor, sizes) // divisor
    return _size(left, found, sizes) * _size(right, found, sizes)


def op_of(hook_name: str) -> str:
    """The op a hook looks into: "layers.3.attention.weights" -> "attention"."""
    return hook_name.split(".")[-2]


def check_tap(op: str, function: Callable, hooks: dict[str, list[Callable]]) -> None:
    """Raise OpError when a swapped op has no tap through which its hook could look."""
    try:
        taken = inspect.signature(function).parameters
    except ValueError:  # a builtin tells nothing of its arguments
        taken = {}
    if "tap" in taken:
        return
    names = [name for name in hooks if op_of(name) == op]
    raise OpError(
        f"the hook {names[0]} cannot see into the swapped {op}: give that function a "
        "keyword argument tap=keep and pass the intermediate through tap(name, value)"
    )
