"""Recording changes nothing, sees its own thread, and adds up to the closed formulas."""

import json

import numpy as np
import pytest
from tiny_model import tiny_model

import minifer
from minifer.errors import MiniferError

IDS = list(range(10, 21))


@pytest.mark.parametrize("time", [None, "step", "op"])
def test_recorded_equals_unrecorded_bit_for_bit(time):
    model = tiny_model()
    expected = [step[:7] for step in minifer.generate(model, IDS, max_tokens=6)]
    with minifer.record(time=time) as recording:
        found = list(minifer.generate(model, IDS, max_tokens=6))
    for step, plain in zip(found, expected, strict=True):
        assert step[:6] == plain[:6]
        assert (step.receipt.seconds is None) == (time is None)
    timed = {row.seconds is not None for row in recording.rows}
    assert timed == {time == "op"}
    assert bool(recording.spans) == (time is not None)
    assert recording.receipt().flops == sum(step.receipt.flops for step in found)


def test_nothing_is_recorded_outside():
    model = tiny_model()
    with minifer.record() as recording:
        pass
    steps = list(minifer.generate(model, IDS, max_tokens=2))
    assert not recording.rows
    assert [step.receipt for step in steps] == [None, None]


def matrix_flops(recording):
    """What the closed formulas of the cost card count: matrix products alone."""
    wanted = 0
    for row in recording.rows:
        wanted += row.cost.flops if row.op == "linear" else 0
    return wanted


@pytest.mark.parametrize(("T", "cached"), [(1, 0), (11, 0), (1, 9), (5, 4)])
def test_linear_flops_and_bytes_equal_the_closed_formulas(T, cached):
    """2TL(2DHE + 2DKE + 3DF) + 2VD; every weight once, one embedding row per token; KV once."""
    model = tiny_model()
    c = model.config
    D, F, V, L = c.hidden_size, c.intermediate_size, c.vocab_size, c.num_hidden_layers
    H, K, E = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    cache = model.new_cache()
    if cached:
        model.forward(IDS[:cached], cache)
    with minifer.record() as recording:
        model.forward(IDS[:T], cache, last_only=True)
    block = 2 * D * H * E + 2 * D * K * E + 3 * D * F
    assert matrix_flops(recording) == 2 * T * L * block + 2 * V * D
    receipt = recording.receipt()
    norms = (2 * L + 1) * D
    assert receipt.weight_bytes == 4 * (L * block + V * D + norms + T * D)
    assert receipt.kv_bytes_read == 4 * 2 * L * K * E * (cached + T)
    assert receipt.kv_bytes_written == 4 * 2 * L * K * E * T
    pairs = T * cached + T * (T + 1) // 2
    attention = recording.by_op()["attention"]["cost"]
    assert attention.flops == L * (H * pairs * (4 * E + 5) + 2 * T * H + T * H * E)
    assert attention.executed_flops >= attention.flops
    assert receipt.intensity == receipt.flops / sum(receipt[:3])


def test_half_the_stored_bytes_are_half_the_weight_bytes():
    wide, narrow = tiny_model(), tiny_model(dtype="BF16")
    with minifer.record() as one:
        wide.forward(IDS)
    with minifer.record() as two:
        narrow.forward(IDS)
    assert one.receipt().weight_bytes == 2 * two.receipt().weight_bytes
    assert one.receipt().flops == two.receipt().flops


@pytest.mark.parametrize("time", [None, "step", "op"])
def test_table_and_json_show_each_op_and_mark_a_swap(time):
    model = tiny_model()
    plain = lambda xp, gate, up: gate * up  # noqa: E731
    with model.swap(gate=plain), minifer.record(time=time) as recording:
        model.forward(IDS)
    table = recording.table()
    assert max(len(line) for line in table.splitlines()) <= 80
    assert "gate*" in table
    assert "swapped: gate; the cost shown is the reference's, not proven" in unwrapped(table)
    assert "2 per multiply-add" in table, "the convention stands under the figures"
    data = json.loads(json.dumps(recording.to_json()))
    assert data["ops"]["gate"]["swapped"] is True
    assert data["swapped"] == ["gate"]
    assert data["ops"]["gate"]["flops"] > 0
    assert data["ops"]["gate"]["executed_flops"] is None
    assert data["ops"]["linear"]["calls"] == 3 * 7 + 1
    opened = {"transformer", "block", "attend", "mlp"}
    assert set(data["opened"]) == (set() if time == "step" else opened)
    if time == "step":
        return
    scopes = {row.scope for row in recording.rows if row.op == "attention"}
    assert scopes == {("layers.0",), ("layers.1",), ("layers.2",)}


def unwrapped(text):
    return " ".join(text.split())


def test_step_mode_says_what_count_mode_counts():
    """Closed formulas of a pass beside a watched op each: the same figures, request by request."""
    for config in ({}, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}):
        model = tiny_model(dtype="BF16", **config)
        found = []
        for time in (None, "step"):
            with minifer.record(time=time) as recording:
                list(minifer.generate(model, IDS, max_tokens=3, ignore_eos=True, prefill_chunk=4))
                model.forward(IDS)
                segments = [minifer.Segment([5, 6], model.new_cache()) for _ in range(2)]
                model.step(segments)
            ops = {n: (e["calls"], e["cost"][:6]) for n, e in recording.by_op().items()}
            found.append((ops, [r[:5] for r in recording.steps], recording.receipt()[:5]))
        assert found[0] == found[1]


def test_step_mode_watches_the_pass_and_nothing_else():
    model = tiny_model()
    with minifer.record(time="step"):
        from minifer.op import RECORDING, Watched

        ops = model.table.bind(RECORDING.get())
    watched = {name for name, call in vars(ops).items() if isinstance(call, Watched)}
    assert watched == {"transformer"}


def test_step_mode_beside_a_hook_counts_once():
    model = tiny_model()
    with minifer.record(time="step") as plain:
        model.forward(IDS)
    seen = []
    with (
        model.hook("layers.0.attention.weights", seen.append),
        minifer.record(time="step") as hooked,
    ):
        model.forward(IDS)
    assert len(seen) == 1
    assert hooked.receipt()[:5] == plain.receipt()[:5]


def test_a_step_without_twins_knows_what_was_executed():
    model = tiny_model(seed=5)
    model.table.kernels = "reference"
    with minifer.record(time="step") as recording:
        model.forward(IDS)
    assert all(entry["executed_known"] for entry in recording.by_op().values())
    assert "?" not in recording.table()
    model.table.kernels = "numpy"
    with minifer.record(time="step") as recording:
        model.forward(IDS)
    assert not recording.by_op()["linear"]["executed_known"]
    assert "? not known: step mode uses closed formulas" in recording.table()


def test_a_swapped_group_is_named_and_not_taken_for_nothing():
    model = tiny_model()
    with model.swap(mlp=lambda ops, layer, x: x), minifer.record() as recording:
        model.forward(IDS)
    entry = recording.by_op()["mlp"]
    assert entry["swapped"] and not entry["required_known"]
    line = next(line for line in recording.table().splitlines() if line.startswith("mlp*"))
    assert line.split()[2:] == ["?"] * 6 + ["-"]
    assert recording.to_json()["ops"]["mlp"]["flops"] is None


def test_kv_bytes_grow_with_each_pass():
    model = tiny_model()
    with minifer.record(time="step") as recording:
        list(minifer.generate(model, IDS, max_tokens=3, ignore_eos=True, prefill_chunk=8))
    each = model.new_cache().bytes_per_token
    assert each == 4 * model.config.kv_elements_per_token
    assert [kv.count // each for kv in recording.kv_bytes] == [8, 11, 12, 13]


def test_two_requests_taken_in_turn_are_told_apart():
    model = tiny_model()
    with minifer.record(time="op") as recording:
        first = minifer.generate(model, IDS, max_tokens=3, ignore_eos=True)
        second = minifer.generate(model, IDS[:4], max_tokens=3, ignore_eos=True)
        for _ in range(3):
            next(first), next(second)
        model.forward(IDS)
    steps = [span for span in recording.spans if span.name.startswith("position")]
    assert [(s.request, s.name) for s in steps[:4]] == [
        (1, "position 11"), (2, "position 4"), (1, "position 12"), (2, "position 5"),
    ]  # fmt: skip
    assert {row.request for row in recording.rows} == {0, 1, 2}


def test_op_mode_says_what_watching_took():
    model = tiny_model()
    with minifer.record(time="op") as recording:
        model.forward(IDS)
    found = recording.to_json()["watching"]
    assert found["calls"] == len(recording.rows) + len(recording.spans)
    assert found["seconds"] == found["calls"] * found["seconds_per_call"] > 0
    assert "watching took about" in recording.table()
    assert "groups run op by op: attend, block, mlp, transformer" in unwrapped(recording.table())
    with minifer.record() as nothing:
        pass
    assert nothing.to_json()["watching"] is None
    assert "watching" not in nothing.table()


def test_figures_have_four_digits_and_say_when_they_are_not_known():
    from minifer.observe.report import figure

    cases = {68857.4: "68857", 268.96: "269.0", 12.345: "12.35", 1.2345: "1.234", 0.00123: "0.0012"}
    assert {value: figure(value) for value in cases} == cases
    assert (figure(0), figure(None)) == ("0", "?")


def test_scopes_name_phase_position_and_layer():
    model = tiny_model()
    with minifer.record() as recording:
        list(minifer.generate(model, IDS, max_tokens=2, ignore_eos=True))
    found = [row.scope for row in recording.rows if row.op == "attention"][::3]
    assert found == [
        ("prefill", "position 11", "layers.0"),
        ("decode", "position 12", "layers.0"),
    ]


def test_a_step_that_fails_or_ends_leaves_no_scope_behind():
    model = tiny_model()

    def fail(weights):
        raise RuntimeError("a hook")

    with minifer.record() as recording:
        with (
            model.hook("layers.1.attention.weights", fail),
            pytest.raises(RuntimeError, match="a hook"),
        ):
            next(minifer.generate(model, IDS))
        failed = len(recording.rows)
        model.forward(IDS)
        next(minifer.generate(model, IDS))
        ended = len(recording.rows)
        model.forward(IDS)
    plain = recording.rows[failed : failed + 5] + recording.rows[ended:]
    assert {row.scope[0] for row in plain if row.scope} == {"layers.0", "layers.1", "layers.2"}


def test_an_unknown_time_is_refused():
    with (
        pytest.raises(MiniferError, match="allowed are None, 'step' and 'op'"),
        minifer.record(time="layer"),
    ):
        pass


def test_no_float64_in_a_pass():
    """Every op of a pass gives float32; positions and ids are whole numbers."""
    from minifer.op import REGISTRY

    model = tiny_model(dtype="BF16")
    found = set()

    def spy(name, function):
        def call(xp, *args):
            result = function(xp, *args)
            for array in result if isinstance(result, tuple) else (result,):
                if array is not None:
                    found.add((name, str(array.dtype)))
            return result

        return call

    spies = {n: spy(n, spec.reference) for n, spec in REGISTRY.items() if not spec.group}
    with model.swap(**spies):
        logits = model.forward(np.array(IDS), last_only=True)
    assert logits.dtype == np.float32
    assert {dtype for _, dtype in found} == {"float32"}
    assert {name for name, _ in found} == set(spies) - {"store"}
