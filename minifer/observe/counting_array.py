"""An array that tells its counter of every NumPy call it takes part in, and refuses what it cannot.

NumPy asks an ndarray subclass before ufuncs (__array_ufunc__) and before most functions
(__array_function__). What it does without asking (indexing, reshape, astype, ...) is overridden
here; every other method is refused. A call this file does not know is an error, never a zero, and
so is a plain array met beside a counted one: what was done to it nobody has seen. Only arithmetic
on Python's own numbers stays out of sight.

FLOPs: a matrix product two per multiply-add, a ufunc one per element it writes, a reduction one per
element it reads; comparing, choosing, moving, widening are none.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import OpError

# Ufuncs by name.
PRODUCTS = {"matmul", "vecdot", "matvec", "vecmat"}
ONE = set(
    "add subtract multiply divide negative absolute fabs sign reciprocal square sqrt cbrt power "
    "float_power exp exp2 expm1 log log2 log10 log1p sin cos tan arctan arctan2 sinh cosh tanh "
    "maximum minimum fmax fmin clip floor ceil rint trunc floor_divide remainder hypot".split()
)
FREE = set(
    "greater greater_equal less less_equal equal not_equal logical_and logical_or logical_not "
    "logical_xor isfinite isinf isnan signbit left_shift right_shift bitwise_and bitwise_or "
    "bitwise_xor invert".split()
)
# Functions that move and compute nothing; that only look at shapes; that call ufuncs themselves.
MOVES = {np.where, np.concatenate, np.stack, np.copyto, np.repeat}
SHAPES = {
    np.shape, np.ndim, np.size, np.transpose, np.swapaxes, np.moveaxis, np.expand_dims, np.squeeze,
    np.broadcast_to, np.split, np.array_split, np.result_type, np.can_cast, np.shares_memory,
    np.may_share_memory,
}  # fmt: skip
MAKES = {np.empty_like, np.zeros_like, np.ones_like}
THROUGH = {
    np.sum, np.prod, np.max, np.min, np.mean, np.var, np.std, np.any, np.all, np.clip, np.reshape
}  # fmt: skip
CREATE = {"empty", "zeros", "ones", "full", "arange", "asarray", "ascontiguousarray", "array"}
OPTIONS = {"axis", "keepdims", "dtype", "casting", "subok", "initial"}

COPYING = ("reshape", "astype", "copy", "flatten", "ravel", "repeat")
# Seen through the ufuncs they call, or views, or facts about the array.
HARMLESS = set(
    "sum prod max min mean var std any all clip transpose swapaxes squeeze diagonal T mT dtype "
    "flags itemsize nbytes ndim shape size strides device".split()
)


def plain(value: Any) -> Any:
    """The same without counting, inside lists and tuples too."""
    if isinstance(value, Counted):
        return np.ndarray.view(value, np.ndarray)
    if isinstance(value, (list, tuple)):
        return type(value)(plain(part) for part in value)
    return value


class Counted(np.ndarray):
    """A view of an array. `counter.see(reads, writes, flops)` hears of each call."""

    counter: Any = None

    def __array_finalize__(self, source: Any) -> None:
        self.counter = getattr(source, "counter", None)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        counter = _counter(*inputs, *(out or ()))
        if options.get("where") is True:  # what a plain reduction passes on
            del options["where"]
        if method not in ("__call__", "reduce") or set(options) - OPTIONS:
            what = f"numpy.{ufunc.__name__}.{method}" + (
                f" with {', '.join(options)}" * bool(options)
            )
            raise unknown(what)
        _refuse_plain([*inputs, *(out or ())])
        bare = [plain(value) for value in inputs]
        given = {} if out is None else {"out": tuple(plain(value) for value in out)}
        result = np.asarray(getattr(ufunc, method)(*bare, **given, **options))
        if ufunc.__name__ in PRODUCTS:
            flops = 2 * result.size * bare[0].shape[-1]
        elif ufunc.__name__ in FREE:
            flops = 0
        elif ufunc.__name__ in ONE:
            flops = bare[0].size if method == "reduce" else result.size
        else:
            raise unknown(f"numpy.{ufunc.__name__}")
        counter.see(bare, [result], flops)
        return out[0] if out else counter.wrap(result)

    def __array_function__(
        self, function: Callable, types: Any, args: tuple, options: dict[str, Any]
    ) -> Any:
        counter = _counter(*_flat(args), *options.values())
        if function in THROUGH:
            return super().__array_function__(function, types, args, options)
        _refuse_plain(_flat(args))
        bare, named = plain(args), {name: plain(value) for name, value in options.items()}
        if any(isinstance(p, np.ndarray) for p in _flat(tuple(named.values()))) or not bare:
            raise unknown(f"numpy.{function.__name__} with an array by keyword")
        if function in SHAPES:
            return counter.wrap(function(*bare, **named))
        if function is np.take:
            return counter.gather(bare[0], [np.asarray(bare[1])], function(*bare, **named))
        if function in MAKES:
            return counter.made(function(*bare, **named))
        known = (*MOVES, np.einsum, np.dot)
        if function not in known or (function is np.dot and min(map(np.ndim, bare[:2])) == 0):
            raise unknown(f"numpy.{function.__name__}")
        result = function(*bare, **named)
        flops = 0
        if function is np.einsum:
            flops = _einsum_flops(*bare)
        elif function is np.dot:
            flops = 2 * np.asarray(result).size * bare[0].shape[-1]
        read, written = _flat(bare), bare[0] if result is None else np.asarray(result)
        if result is None:  # copyto writes into its first array
            read = read[1:]
        elif any(root_of(written) is root_of(a) for a in read if isinstance(a, np.ndarray)):
            return counter.wrap(result)  # a view: einsum that only turns axes
        counter.see(read, [written], flops)
        return counter.wrap(written if result is not None else None)

    def __getitem__(self, key: Any) -> Any:
        bare, key = plain(self), _as_arrays(plain(key))
        result = bare[key]
        if not isinstance(result, np.ndarray):
            raise unknown("taking one element out of an array")
        if root_of(result) is not root_of(bare):  # rows picked by number are copied
            chosen = [part for part in _flat((key,)) if isinstance(part, np.ndarray)]
            if any(part.dtype == bool for part in chosen):
                raise unknown("picking by a mask")
            return self.counter.gather(bare, chosen, result)
        return self.counter.wrap(result)

    def view(self, dtype: Any) -> Any:
        """The same bytes read as another dtype. Another kind of array would leave the count."""
        if isinstance(dtype, type) and issubclass(dtype, np.ndarray):
            raise unknown(f"ndarray.view of {dtype.__name__}")
        return self.counter.wrap(plain(self).view(dtype))

    def take(self, indices: Any, axis: int | None = None) -> Any:
        """Rows picked by number, as np.take."""
        indices = np.asarray(plain(indices))
        return self.counter.gather(plain(self), [indices], plain(self).take(indices, axis))

    def __setitem__(self, key: Any, value: Any) -> None:
        _refuse_plain([value])
        target, key, value = plain(self), _as_arrays(plain(key)), plain(value)
        if any(isinstance(part, np.ndarray) for part in _flat((key,))):
            raise unknown("writing to rows picked by number or mask")
        place = target[key]
        if isinstance(value, np.ndarray) and _same_memory(place, value):
            return  # `x[...] += y`: the sum is there already, NumPy does not copy it onto itself
        target[key] = value
        self.counter.see([value], [np.asarray(place)], 0)

    def __iter__(self) -> Any:
        if self.ndim < 2:  # elements would be Python's own numbers
            raise unknown("going through the elements of an array")
        return (self[place] for place in range(len(self)))

    def __repr__(self) -> str:
        return repr(plain(self))

    __str__ = __repr__


def _copying(name: str) -> Callable:
    def method(self: Counted, *args: Any, **options: Any) -> Any:
        bare = plain(self)
        result = getattr(bare, name)(*plain(args), **options)
        if root_of(result) is not root_of(bare):  # else it is a view: nothing moved
            self.counter.see([bare], [result], 0)
        return self.counter.wrap(result)

    return method


def _refused(name: str) -> Callable:
    def method(self: Counted, *args: Any, **options: Any) -> Any:
        raise unknown(f"ndarray.{name}")

    return method


for _name in COPYING:
    setattr(Counted, _name, _copying(_name))
for _name in {name for name in dir(np.ndarray) if not name.startswith("_")} - HARMLESS:
    if _name in (*COPYING, "take", "view", "base"):
        continue
    if callable(getattr(np.ndarray, _name)):
        setattr(Counted, _name, _refused(_name))
    else:
        setattr(Counted, _name, property(_refused(_name)))
for _name in """__float__ __int__ __complex__ __index__ __copy__ __deepcopy__ __reduce__
__reduce_ex__ __dlpack__ __array__""".split():
    setattr(Counted, _name, _refused(_name))


class Namespace:
    """numpy, except that what it creates counts too."""

    def __init__(self, counter: Any) -> None:
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        if name not in CREATE:
            return value
        return lambda *args, **options: self._create(value, args, options)

    def _create(self, function: Callable, args: tuple, options: dict[str, Any]) -> Any:
        _refuse_plain([*_flat(args), *options.values()])
        if function is np.full and any(isinstance(value, np.ndarray) for value in args[1:]):
            raise unknown("numpy.full with an array")
        result = function(*plain(args), **{name: plain(v) for name, v in options.items()})
        given = [a for a in _flat(plain(args)) if isinstance(a, np.ndarray)]
        if not given:
            return self._counter.made(result)
        if root_of(given[0]) is not root_of(result):  # asarray and its like copied
            self._counter.see(given, [result], 0)
        return self._counter.wrap(result)


def _refuse_plain(values: list) -> None:
    """Raise for an array that is not counted, alone or in a list."""
    for value in values:
        if isinstance(value, (list, tuple)):
            _refuse_plain(list(value))
            if any(isinstance(part, np.ndarray) for part in value):
                raise unknown("a list of arrays in the place of an array")
        elif isinstance(value, np.ndarray) and not isinstance(value, Counted):
            raise OpError(
                "an array has escaped the count: it was made by numpy instead of xp, or taken out "
                "by asarray, a view or a buffer; inside an op make arrays with xp, from counted "
                "ones or from numbers"
            )


def _as_arrays(key: Any) -> Any:
    """A key with its lists of row numbers as the arrays NumPy makes of them."""
    if isinstance(key, tuple):
        return tuple(np.asarray(part) if isinstance(part, list) else part for part in key)
    return np.asarray(key) if isinstance(key, list) else key


def _same_memory(one: np.ndarray, other: np.ndarray) -> bool:
    address = one.__array_interface__["data"] == other.__array_interface__["data"]
    return address and (one.shape, one.strides) == (other.shape, other.strides)


def root_of(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory, or the first above a buffer that is none."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def unknown(what: str) -> OpError:
    """The error for a call nobody has declared a cost for."""
    return OpError(
        f"the counting array does not know {what}: write the op with xp's operators and "
        "functions, or declare the call in observe/counting_array.py"
    )


def _counter(*values: Any) -> Any:
    for value in values:
        if isinstance(value, Counted):
            return value.counter
    raise unknown("a call whose counted arrays stand inside a list or behind a keyword")


def _flat(values: Any) -> list:
    return [p for v in values for p in (v if isinstance(v, (list, tuple)) else [v])]


def _einsum_flops(subscripts: Any, *operands: np.ndarray) -> int:
    if not isinstance(subscripts, str) or "..." in subscripts or "->" not in subscripts:
        raise unknown("numpy.einsum without letters and an arrow")
    sizes: dict[str, int] = {}
    terms = subscripts.replace(" ", "").split("->")[0].split(",")
    for term, operand in zip(terms, operands, strict=True):
        sizes.update(zip(term, operand.shape, strict=True))
    if len(operands) > 2:
        raise unknown("numpy.einsum of more than two arrays")
    summed = bool(set(sizes) - set(subscripts.split("->")[1]))
    # Two arrays: a product, and where letters vanish a sum; one array: a sum, or only a move.
    return (len(operands) - 1 + summed) * math.prod(sizes.values())
