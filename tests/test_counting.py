"""What the cost functions say equals what NumPy was asked to do, op by op, to the integer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import tiny_model

import minifer
from minifer.errors import OpError
from minifer.observe.counting import count
from minifer.observe.counting_array import Counted
from minifer.op import REGISTRY, TWINS, Cost, twin

IDS = list(range(10, 21))
PASSES = {  # name -> [(new tokens, tokens in the cache)]
    "prefill": [(11, 0)],
    "chunk": [(5, 4)],
    "decode": [(1, 9)],
    "first token": [(1, 0)],
    "two segments": [(3, 0), (1, 6)],
    "ragged batch": [(1, 7), (4, 0), (1, 1), (2, 3)],
    "decode batch": [(1, 5), (1, 2)],
}
ODD = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 6, "hidden_size": 20}


def run(model, shape, all_rows=False):
    """-> (logits counted, logits plain, counter) of one pass of these segments."""
    found = []
    for counted in (True, False):
        segments = []
        for new, cached in shape:
            cache = model.new_cache(24)
            if cached:
                model.forward(list(range(40, 40 + cached)), cache)
            segments.append(minifer.Segment(list(range(20, 20 + new)), cache))
        if counted:
            with count() as counter:
                found.append(model.step(segments, all_rows))
        else:
            found.append(model.step(segments, all_rows))
    return (*found, counter)


def say(rows):
    return "\n".join(
        f"{row.op} {row.scope}: {row.differs}\n says {row.cost}\n seen {row.seen}"
        for row in rows[:5]
    )


@pytest.mark.parametrize("all_rows", [False, True])
@pytest.mark.parametrize("kernels", ["reference", "numpy"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shape", PASSES.values(), ids=PASSES)
def test_every_op_costs_what_is_counted(shape, dtype, kernels, all_rows):
    model = tiny_model(dtype=dtype)
    before, model.table.kernels = model.table.kernels, kernels
    try:
        counted, plain, counter = run(model, shape, all_rows)
    finally:
        model.table.kernels = before
    assert not counter.disagreements(), say(counter.disagreements())
    assert counted.dtype == plain.dtype and type(counted) is np.ndarray
    np.testing.assert_array_equal(counted, plain)  # bit for bit
    assert {row.op for row in counter.rows} == {
        name for name, spec in REGISTRY.items() if not spec.group
    } - ({"select"} if all_rows else set())
    # Groups only pass on: between the ops nothing is computed and nothing is moved.
    assert (counter.outside.calls, counter.outside.executed_bytes) == (0, 0)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize(
    "config",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {**ODD},
        {**ODD, "num_key_value_heads": 3},
        {"num_hidden_layers": 1, "num_key_value_heads": 4, "mlp_bias": True},
    ],
    ids=str,
)
def test_other_shapes_biases_and_heads(config, dtype):
    for shape in PASSES.values():
        _, _, counter = run(tiny_model(dtype=dtype, **config), shape)
        assert not counter.disagreements(), say(counter.disagreements())


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4),
    dtype=st.sampled_from(["F32", "F16", "BF16"]),
    all_rows=st.booleans(),
)
def test_any_segments(shape, dtype, all_rows):
    _, _, counter = run(tiny_model(dtype=dtype), shape, all_rows)
    assert not counter.disagreements(), say(counter.disagreements())


def test_a_matrix_widened_in_several_blocks():
    """The twin's loop: a block too few or one more would show in the executed bytes."""
    from minifer.backend import numpy_twins

    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    weight = rng.integers(0x3C00, 0x4000, (9000, 64)).astype(np.uint16)  # about one
    bias = rng.integers(0x3C00, 0x4000, 9000).astype(np.uint16)
    for given_bias in (None, bias):
        counter = counted_op(numpy_twins.linear_in_blocks, "numpy", x, weight, given_bias)
        assert numpy_twins.block_rows(weight) < len(weight)
        assert not counter.disagreements(), say(counter.disagreements())


def counted_op(function, kind, *args):
    """One op alone, on counting arrays; the weights count as weights."""
    from functools import partial

    from minifer.backend.on_numpy import NumpyBackend
    from minifer.op import Watched

    spec = REGISTRY["linear"]
    cost = TWINS["linear", "numpy", "numpy"].cost if kind == "numpy" else spec.cost
    with count() as counter:
        call, ops = partial(function, np), FakeOps()
        watched = Watched(
            spec, function, call, ops, NumpyBackend(), {}, counter, kind, cost
        )  # fmt: skip
        for array in args[1:]:
            if array is not None:
                counter._roles[id(array)] = "weights"
        watched(*args)
    return counter


class FakeOps:
    def __init__(self):
        self.path = []


def test_visible_pairs_are_those_with_a_weight():
    """Required FLOPs leave out hidden pairs: counted here from the weights themselves."""
    model, seen = tiny_model(), []
    c = model.config
    H, E = c.num_attention_heads, c.head_dim
    for cached, new in ((0, 11), (4, 5), (9, 1)):
        cache = model.new_cache(24)
        if cached:
            model.forward(IDS[:cached], cache)
        seen.clear()
        with model.hook("layers.1.attention.weights", seen.append), minifer.record() as recording:
            model.forward(IDS[:new], cache)
        row = next(r for r in recording.rows if (r.op, r.scope) == ("attention", ("layers.1",)))
        visible, every = np.count_nonzero(seen[0]), seen[0].size
        rows = 2 * new * H + new * H * E
        assert row.cost.flops == (4 * E + 5) * visible + rows
        assert row.cost.executed_flops == (4 * E + 5) * every + rows


def test_a_swapped_op_is_counted_as_it_is():
    """The reference's cost beside what somebody's function really does."""
    model = tiny_model()

    def wasteful(xp, x, update):
        return x + update * xp.ones(update.shape, dtype=xp.float32)

    with model.swap(residual=wasteful), count() as counter:
        model.forward(IDS)
    wrong = counter.disagreements()
    assert {(row.op, row.kind) for row in wrong} == {("residual", "swapped")}
    assert len(wrong) == 2 * model.config.num_hidden_layers
    size = len(IDS) * model.config.hidden_size
    assert (wrong[0].seen.executed_flops, wrong[0].cost.executed_flops) == (2 * size, size)
    assert set(wrong[0].differs) == {"executed_flops", "executed_bytes"}


def test_a_swapped_group_has_a_row_of_what_it_computes_itself():
    """Its weights count too; nobody says what it should cost, so it is never taken for proven."""
    model = tiny_model()

    def half(ops, layer, x):
        return ops.linear(x @ layer.gate.T, layer.down)

    with model.swap(mlp=half), count() as counter:
        model.forward(IDS)
    rows = [row for row in counter.rows if row.op == "mlp"]
    c = model.config
    assert len(rows) == c.num_hidden_layers and rows == counter.disagreements()
    matrix = c.hidden_size * c.intermediate_size
    assert {row.seen.executed_flops for row in rows} == {2 * len(IDS) * matrix}
    assert {row.seen.weight_bytes for row in rows} == {4 * matrix}
    assert (rows[0].kind, rows[0].cost) == ("swapped", None)
    assert "gate" not in {row.op for row in counter.rows}
    assert counter.outside.calls == 0


def test_a_swap_with_arguments_of_its_own_stays_as_it_is():
    """A partial of a partial is flattened by Python: the bound argument may not get lost."""
    from functools import partial

    def scaled(xp, x, update, factor=1.0):
        return x + update * factor

    model = tiny_model()
    with model.swap(residual=partial(scaled, factor=3.0)):
        plain = model.forward(IDS)
        with count() as counter:
            counted = model.forward(IDS)
    np.testing.assert_array_equal(plain, counted)
    assert {row.op for row in counter.disagreements()} == {"residual"}


def test_many_passes_under_one_count_stay_apart():
    """Caches come and go, and Python gives their ids to other arrays: none may be taken for KV."""
    model, other = tiny_model(), tiny_model(seed=2, dtype="BF16")
    with count() as counter:
        for length in (17, 3, 11, 1, 17, 8, 5) * 3:
            model.forward(list(range(length)))
            other.forward(list(range(length)), last_only=True)
        list(minifer.generate(model, IDS, max_tokens=3, ignore_eos=True))
    assert not counter.disagreements(), say(counter.disagreements())


def test_a_pass_that_a_hook_runs_inside_another_is_counted_for_itself():
    model, inner = tiny_model(), tiny_model(seed=2)
    look = lambda weights: inner.forward(IDS[:4])  # noqa: E731
    with model.hook("layers.1.attention.weights", look), count() as counter:
        model.forward(IDS)
    assert not counter.disagreements(), say(counter.disagreements())
    assert [row.op for row in counter.rows].count("rotation") == 2


def test_a_hook_beside_a_count_gets_a_plain_copy():
    model, seen = tiny_model(), []
    with model.hook("layers.1.attention.weights", seen.append), count() as counter:
        model.forward(IDS)
    assert type(seen[0]) is np.ndarray
    assert not counter.disagreements()


def test_compiled_kernels_cannot_be_counted():
    @twin("residual", backend="numpy", kernels="numba", cost=lambda x, update: Cost())
    def compiled(xp, x, update):
        return x + update

    model = tiny_model(seed=4)
    model.table.kernels = "numba"
    try:
        with count(), pytest.raises(OpError, match='ran as numba on numpy; .*kernels="reference"'):
            model.forward(IDS)
    finally:
        del TWINS["residual", "numpy", "numba"]
        model.table.kernels = "auto"


def test_generate_under_a_count_gives_the_same_steps():
    model = tiny_model()
    expected = [step[:6] for step in minifer.generate(model, IDS, max_tokens=4, ignore_eos=True)]
    with count() as counter:
        found = list(minifer.generate(model, IDS, max_tokens=4, ignore_eos=True))
    assert [step[:6] for step in found] == expected
    assert all(step.receipt is None for step in found)
    scopes = {row.scope for row in counter.rows if row.op == "attention"}
    assert ("decode", "position 12", "layers.2") in scopes
    assert not counter.disagreements()


def test_every_call_is_told_as_it_happens():
    told = []
    model = tiny_model()
    with count(lambda *figures: told.append(figures)) as counter:
        model.forward(IDS)
    whole = sum((row.seen for row in counter.rows), Cost())
    assert sum(flops for flops, _, _ in told) == whole.executed_flops
    assert sum(read + written for _, read, written in told) == whole.executed_bytes


def test_nothing_of_a_count_stays_behind():
    model = tiny_model()
    with count() as counter:
        logits = model.forward(IDS)
    assert type(logits) is np.ndarray and not isinstance(logits, Counted)
    del logits
    assert counter.live_bytes == 0, "every array the pass made is gone"
    assert not any(isinstance(w, Counted) for layer in model.layers for w in layer)
