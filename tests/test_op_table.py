"""The op table: dispatch, taps, swaps, and what is refused; per model and per pass."""

import numpy as np
import pytest
from tiny_model import tiny_model

import minifer
from minifer.errors import DeviceError, OpError
from minifer.op import REGISTRY, TWINS, Cost, twin

IDS = [5, 17, 200, 33, 5, 8]
LINEAR = REGISTRY["linear"].reference


@pytest.fixture
def model():
    found = tiny_model()
    assert not found.table.changes
    yield found
    assert not found.table.changes, "a test left a hook or a swap behind"


def test_unwatched_an_op_is_the_function_itself(model):
    ops = model.table.bind()
    for name, spec in REGISTRY.items():
        function = getattr(ops, name)
        fast = TWINS.get((name, "numpy", "numpy"))
        assert function.func is (fast.function if fast else spec.reference)
        assert function.args[0] is (ops if spec.group else np)
    assert model.table.bind() is ops, "an unwatched table is built once"


def test_a_twin_runs_when_the_kernels_ask_for_it():
    calls = []
    plain = tiny_model(seed=3)
    expected = plain.forward(IDS)

    @twin("residual", backend="numpy", kernels="numpy")
    def counted_residual(xp, x, update):
        calls.append(1)
        return REGISTRY["residual"].reference(xp, x, update)

    try:
        np.testing.assert_array_equal(plain.forward(IDS), expected)  # bound anew: the twin is new
        assert len(calls) == 2 * plain.config.num_hidden_layers
        plain.table.kernels = "reference"
        calls.clear()
        np.testing.assert_array_equal(plain.forward(IDS), expected)
        assert not calls
    finally:
        plain.table.kernels = "auto"
        del TWINS["residual", "numpy", "numpy"]


def test_a_group_twin_is_opened_when_somebody_looks_inside(model):
    calls = []

    @twin("mlp", backend="numpy", kernels="numpy", cost=lambda layer, x: Cost(flops=x.size))
    def counted_mlp(ops, layer, x):
        calls.append(1)
        return REGISTRY["mlp"].reference(ops, layer, x)

    def used(**how):
        calls.clear()
        with minifer.record(**how):
            model.forward(IDS)
        return bool(calls)

    try:
        model.forward(IDS)
        assert calls
        assert used()
        assert used(time="step")
        with minifer.record() as recording:
            model.forward(IDS)
        rows = [row for row in recording.rows if row.scope == ("layers.0",)]
        assert [row.op for row in rows].count("linear") == 4, "the twin's own ops are not counted"
        assert [row.cost.flops for row in rows if row.op == "mlp"] == [len(IDS) * 32]
        assert not used(time="op")
        calls.clear()
        with model.swap(gate=REGISTRY["gate"].reference):
            model.forward(IDS)
        with model.hook("layers.0.attention.weights", lambda weights: None):
            model.forward(IDS)
        assert not calls
    finally:
        del TWINS["mlp", "numpy", "numpy"]


@pytest.mark.parametrize("kernels", ["cuda", "numba", "fast", "", "Reference"])
def test_kernels_that_are_not_here_are_named(kernels):
    from tiny_model import write_tiny_model

    with pytest.raises(DeviceError, match=r"allowed: auto, reference, numpy"):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            minifer.load(write_tiny_model(folder), kernels=kernels)


def test_swap_belongs_to_one_model_and_ends_with_its_block(model):
    other = tiny_model(seed=1)
    before, others = model.forward(IDS), other.forward(IDS)
    calls = []

    def no_rope(xp, heads, cos, sin):
        calls.append(heads.shape)
        return heads

    with model.swap(rope=no_rope):
        assert not np.array_equal(model.forward(IDS), before)
        assert calls == [(6, 4, 8), (6, 2, 8)] * 3
        np.testing.assert_array_equal(other.forward(IDS), others)
        assert model.table.swapped() == ["rope"]
    np.testing.assert_array_equal(model.forward(IDS), before)


def test_swapping_an_op_for_itself_changes_no_bit(model):
    before = model.forward(IDS)
    originals = {name: spec.reference for name, spec in REGISTRY.items() if not spec.group}
    with model.swap(**originals):
        np.testing.assert_array_equal(model.forward(IDS), before)


def test_swaps_nest_and_are_undone_in_any_order(model):
    before = model.forward(IDS)
    zero = model.swap(gate=lambda xp, gate, up: 0 * up)
    zeroed = model.forward(IDS)
    up_only = model.swap(gate=lambda xp, gate, up: up)
    latest = model.forward(IDS)
    assert not np.array_equal(latest, zeroed)
    zero.undo()
    np.testing.assert_array_equal(model.forward(IDS), latest)
    up_only.undo()
    up_only.undo()
    np.testing.assert_array_equal(model.forward(IDS), before)


def test_a_swap_ends_even_when_its_block_fails(model):
    with pytest.raises(ZeroDivisionError), model.swap(rope=lambda *args: 1 // 0):
        model.forward(IDS)
    assert not model.table.changes


def test_a_hook_sees_a_copy_and_changes_nothing(model):
    before, seen = model.forward(IDS), []

    def spoil(weights):
        seen.append(weights.copy())
        weights[...] = 7
        return 0 * weights

    with model.hook("layers.1.attention.weights", spoil):
        np.testing.assert_array_equal(model.forward(IDS), before)
    np.testing.assert_array_equal(model.forward(IDS), before)
    assert [weights.shape for weights in seen] == [(2, 6, 2, 6)]
    np.testing.assert_allclose(seen[0].sum(axis=-1), 1, rtol=1e-6)


def test_every_hook_name_fires_once_per_pass_and_layer(model):
    names, fired = model.table.hook_names(), []
    undos = [model.hook(name, lambda value, name=name: fired.append(name)) for name in names]
    try:
        model.forward(IDS)
    finally:
        for undo in undos:
            undo.undo()
    assert sorted(fired) == sorted(names)
    assert "layers.2.attention.mixed" in names
    assert "transformer.normed" in names


def test_several_hooks_of_one_name_all_see_it(model):
    seen = []
    with (
        model.hook("layers.0.mlp.gated", lambda x: seen.append(1)),
        model.hook("layers.0.mlp.gated", lambda x: seen.append(2)),
    ):
        model.forward(IDS)
    assert seen == [1, 2]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("layers.1.attention.weight", "layers.1.attention.weights"),
        ("layers.3.attention.weights", "attention.weights"),
        ("layers.0.attnetion.scores", "layers.0.attention.scores"),
        ("attention.weights", "layers.0.attention.weights"),
        ("", "layers.0.attention.scores"),
    ],
)
def test_a_mistyped_hook_lists_the_near_ones(model, name, near):
    with pytest.raises(OpError, match=f"there is no hook '{name}'; near it: .*{near}"):
        model.hook(name, print)


def test_a_mistyped_swap_lists_the_near_ones(model):
    with pytest.raises(OpError, match="there is no op 'atention'; near it: attention"):
        model.swap(atention=print)
    with pytest.raises(OpError, match="needs a function, found 3"):
        model.swap(rope=3)
    with pytest.raises(OpError, match="needs a function, found None"):
        model.hook("layers.0.attention.weights", None)


def test_a_hook_into_a_swapped_op_without_a_tap_says_what_to_do(model):
    blind = lambda xp, query, key, value, places, kept: query  # noqa: E731
    with (
        model.swap(attention=blind),
        model.hook("layers.0.attention.weights", print),
        pytest.raises(OpError, match="keyword argument tap=keep"),
    ):
        model.forward(IDS)


def test_a_builtin_in_the_place_of_an_op_cannot_be_looked_into(model):
    with (
        model.swap(attention=print),
        model.hook("layers.0.attention.weights", print),
        pytest.raises(OpError, match="keyword argument tap=keep"),
    ):
        model.forward(IDS)
    with pytest.raises(OpError, match="the name of a hook is None"):
        model.hook(None, print)


def test_a_twin_steps_aside_for_its_reference_when_a_hook_looks_inside(model):
    calls, seen = [], []

    @twin("attention", backend="numpy", kernels="numpy")
    def blind(xp, query, key, value, query_positions, key_positions):
        calls.append(1)
        reference = REGISTRY["attention"].reference
        return reference(xp, query, key, value, query_positions, key_positions)

    try:
        expected = model.forward(IDS)
        assert len(calls) == 3
        with model.hook("layers.1.attention.scores", lambda scores: seen.append(scores.shape)):
            np.testing.assert_array_equal(model.forward(IDS), expected)
        assert (len(calls), len(seen)) == (3, 1)
    finally:
        del TWINS["attention", "numpy", "numpy"]


def test_a_watched_run_catches_a_shape_that_is_not_as_stated(model):
    turned = lambda xp, x, update: (x + update).T  # noqa: E731
    with (
        model.swap(residual=turned),
        minifer.record(),
        pytest.raises(OpError, match=r"residual: the result has shape .*stated is \(T, D\)"),
    ):
        model.forward(IDS)


def test_every_op_states_its_shapes():
    silent = {name for name, spec in REGISTRY.items() if not spec.signature.shapes}
    assert silent <= {"join", "transformer"}, "their arguments are lists or objects"


def test_a_twin_of_nothing_or_of_a_group_without_cost_is_refused():
    with pytest.raises(OpError, match="a twin of 'lineer', which is no op; ops: .*linear"):
        twin("lineer", backend="numpy", kernels="numpy")
    with pytest.raises(OpError, match="the twin of the group block needs cost="):
        twin("block", backend="numpy", kernels="numpy")
