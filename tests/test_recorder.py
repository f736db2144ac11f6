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
