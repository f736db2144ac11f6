"""The counting array: what it knows is counted, what it does not know is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import tiny_model

from minifer.errors import OpError
from minifer.observe.counting import count, distinct_bytes

IDS = list(range(10, 21))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("ndarray.dot", lambda xp, x, u: x.dot(u.T)),
        ("ndarray.fill", lambda xp, x, u: u.fill(0)),
        ("ndarray.argmax", lambda xp, x, u: x.argmax()),
        ("ndarray.sort", lambda xp, x, u: x.sort()),
        ("ndarray.item", lambda xp, x, u: x[:1, 0].item()),
        ("ndarray.tolist", lambda xp, x, u: x.tolist()),
        ("ndarray.__float__", lambda xp, x, u: float(x.sum())),
        ("ndarray.cumsum", lambda xp, x, u: x.cumsum()),
        ("numpy.argsort", lambda xp, x, u: xp.argsort(x)),
        ("numpy.tril", lambda xp, x, u: xp.tril(x)),
        ("numpy.linalg|numpy.norm", lambda xp, x, u: xp.linalg.norm(x)),
        ("numpy.erf|numpy.spacing", lambda xp, x, u: xp.spacing(x)),
        ("numpy.add.accumulate", lambda xp, x, u: xp.add.accumulate(x)),
        ("numpy.add.outer", lambda xp, x, u: xp.add.outer(x, u)),
        ("numpy.add.__call__ with where", lambda xp, x, u: xp.add(x, u, where=x > 0)),
        ("one element", lambda xp, x, u: x[0, 0]),
        ("a mask", lambda xp, x, u: x[x > 0]),
        ("a mask", lambda xp, x, u: x[:, [True] + [False] * (x.shape[1] - 1)]),
        ("ndarray.round", lambda xp, x, u: x.round(2)),
        ("ndarray.data", lambda xp, x, u: x.data),
        ("ndarray.flat", lambda xp, x, u: x.flat[0]),
        ("ndarray.view of ndarray", lambda xp, x, u: x.view(np.ndarray)),
        ("ndarray.__reduce", lambda xp, x, u: __import__("pickle").dumps(x)),
        ("elements", lambda xp, x, u: [value for row in x for value in row]),
        ("a list of arrays", lambda xp, x, u: xp.multiply(x, [u, u])),
        ("a list of arrays", lambda xp, x, u: xp.add(x, list(u))),
        ("numpy.full", lambda xp, x, u: xp.full(x.shape, u)),
        ("numpy.full_like", lambda xp, x, u: xp.full_like(x, u)),
        ("keyword", lambda xp, x, u: xp.copyto(dst=x, src=u)),
        ("keyword", lambda xp, x, u: xp.stack(arrays=[x, u])),
        ("keyword", lambda xp, x, u: xp.concatenate([x, u], out=xp.empty((22, 32)))),
        ("rows picked", lambda xp, x, u: x.__setitem__([0, 1], 0)),
        ("einsum of more", lambda xp, x, u: xp.einsum("ij,ij,ij->ij", x, u, u)),
        ("einsum without", lambda xp, x, u: xp.einsum("ij,ij", x, u)),
    ],
)
def test_what_no_protocol_shows_is_refused(name, function):
    model = tiny_model()
    pattern = "|".join(f"does not know .*{part}" for part in name.split("|"))
    with model.swap(residual=function), count(), pytest.raises(OpError, match=pattern):
        model.forward(IDS)


def buffered(xp, x, u):
    total = np.zeros(x.shape, np.float32)
    total += x
    return xp.exp(total) + u


def poured(xp, x, u):
    total = np.empty(x.shape, np.float32)
    total[...] = x
    return u + np.exp(total)


def into_numpy(xp, x, u):
    total = np.empty(x.shape, np.float32)
    np.multiply(x, u, out=total)
    return total


@pytest.mark.parametrize(
    "function",
    [
        lambda xp, x, u: np.asarray(x + u),
        lambda xp, x, u: np.array(x + u),
        lambda xp, x, u: np.ascontiguousarray(x),
        lambda xp, x, u: xp.asarray(np.exp(np.asarray(x))),
        lambda xp, x, u: x + xp.exp(np.asfortranarray(u)),
        lambda xp, x, u: x + np.lib.stride_tricks.as_strided(u),
        lambda xp, x, u: x * np.frombuffer(memoryview(u), np.float32).reshape(u.shape),
        lambda xp, x, u: x + xp.sum([x, u], axis=0),
        lambda xp, x, u: x + xp.maximum.reduce([x, u]),
        lambda xp, x, u: x + xp.exp(xp.tri(*x.shape)),
        lambda xp, x, u: x + xp.linspace(0, 1, x.shape[1]),
        buffered,
        poured,
        into_numpy,
    ],
)
def test_an_array_that_escapes_is_noticed(function):
    model = tiny_model()
    with model.swap(residual=function), count(), pytest.raises(OpError, match="escaped"):
        model.forward(IDS)


@pytest.mark.parametrize(
    ("function", "flops", "calls"),
    [  # per element of a (T, D); E elements of a row of T
        (lambda xp, x, u: x + u, 1, 1),
        (lambda xp, x, u: xp.sqrt(xp.abs(x)) - u, 3, 3),
        (lambda xp, x, u: xp.where(x > u, x, u), 0, 2),
        (lambda xp, x, u: (x.T.reshape(-1)[: x.size]).reshape(x.shape), 0, 1),
        (lambda xp, x, u: xp.einsum("td,td->td", x, u), 1, 1),
        (lambda xp, x, u: xp.einsum("td->dt", x).T, 0, 0),  # a view
        (lambda xp, x, u: xp.take(x, list(range(len(x))), axis=0), 0, 1),
        (lambda xp, x, u: x.take(np.arange(len(x)), 0), 0, 1),
        (lambda xp, x, u: x[list(range(len(x)))], 0, 1),
        (lambda xp, x, u: xp.stack([x, u])[0], 0, 1),
        (lambda xp, x, u: xp.array(x), 0, 1),
        (lambda xp, x, u: xp.dot(x, xp.ones((x.shape[1], x.shape[1]), dtype=xp.float32)), 64, 1),
        (lambda xp, x, u: x.copy(), 0, 1),
        (lambda xp, x, u: xp.concatenate([x[:3], u[3:]]), 0, 1),
        (lambda xp, x, u: xp.zeros_like(x) + u, 1, 1),
        (lambda xp, x, u: xp.broadcast_to(xp.swapaxes(x, 0, 0), x.shape) * 2, 1, 1),
        (lambda xp, x, u: xp.clip(x, -1, 1), 1, 1),
        (lambda xp, x, u: x.astype(xp.float64).astype(xp.float32), 0, 2),
    ],
)
def test_what_is_known_is_counted(function, flops, calls):
    model = tiny_model()
    with model.swap(residual=function), count() as counter:
        model.forward(IDS)
    rows = [row for row in counter.rows if row.op == "residual"]
    size = len(IDS) * model.config.hidden_size
    assert {row.seen.executed_flops for row in rows} == {flops * size}
    assert {row.calls for row in rows} == {calls}


def test_reductions_count_what_they_read():
    model = tiny_model()
    T, D = len(IDS), model.config.hidden_size

    def centred(xp, x, update):
        return x - xp.mean(x, axis=-1, keepdims=True)  # T*D to add, T to divide, T*D to subtract

    with model.swap(residual=centred), count() as counter:
        model.forward(IDS)
    row = next(row for row in counter.rows if row.op == "residual")
    assert row.seen.executed_flops == 2 * T * D + T
    # Sum: whole in, column out; divide: both columns; subtract: whole and column in, whole out.
    assert row.seen.executed_bytes == 4 * (T * D + T + 2 * T + 2 * T * D + T)


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 4), st.integers(1, 4)),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_distinct_bytes_is_the_size_of_the_union(rectangles):
    base = np.zeros((10, 10), np.float32)
    touched, regions = np.zeros((10, 10), bool), set()
    for row, column, height, width in rectangles:
        view = base[row : row + height, column : column + width]
        touched[row : row + height, column : column + width] = True
        regions.add((view.ctypes.data, view.shape, view.strides, 4))
    assert distinct_bytes(regions) == 4 * touched.sum()
