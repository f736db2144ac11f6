"""What each mode of a recording watches, opens, knows and takes."""

import numpy as np
import pytest
from tiny_model import tiny_model

import minifer

IDS = list(range(10, 21))


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


def test_step_mode_looks_at_the_weights_once(monkeypatch):
    from minifer.observe import recorder

    model, calls = tiny_model(), []
    original = recorder.stored_by
    monkeypatch.setattr(recorder, "stored_by", lambda m: calls.append(m) or original(m))
    with minifer.record(time="step"):
        list(minifer.generate(model, IDS, max_tokens=5, ignore_eos=True))
    assert calls == [model]


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


@pytest.mark.parametrize("time", [None, "step", "op"])
def test_the_phases_are_shown_apart_and_add_up(time):
    model = tiny_model()
    with minifer.record(time=time) as recording:
        list(minifer.generate(model, IDS, max_tokens=4, ignore_eos=True))
    whole, data = recording.by_op(), recording.to_json()
    parts = [recording.by_op(phase) for phase in ("prefill", "decode")]
    for name, entry in whole.items():
        assert entry["cost"] == parts[0][name]["cost"] + parts[1][name]["cost"]
        assert data["phases"]["decode"][name]["flops"] == parts[1][name]["cost"].flops
    prefill, decode = (recording.table(phase=phase) for phase in ("prefill", "decode"))
    assert prefill.splitlines()[2] != decode.splitlines()[2]
    if time is not None:
        spent = [s.seconds for s in recording.steps]
        from minifer.observe.report import _seconds

        assert _seconds(recording, "prefill") == pytest.approx(spent[0])
        assert _seconds(recording, "decode") == pytest.approx(sum(spent[1:]))
    from minifer.errors import MiniferError

    with pytest.raises(MiniferError, match="phase is 'train'; allowed: prefill, decode"):
        recording.table(phase="train")


def test_nothing_recorded_is_said():
    with minifer.record() as recording:
        pass
    assert recording.table() == "nothing was recorded"
    tiny_model().forward(IDS)
    with minifer.record() as recording:
        tiny_model().forward(IDS)
    assert recording.table(phase="decode") == "nothing was recorded of decode"


def test_kv_bytes_grow_with_each_pass():
    model = tiny_model()
    with minifer.record(time="step") as recording:
        list(minifer.generate(model, IDS, max_tokens=3, ignore_eos=True, prefill_chunk=8))
    each = model.new_cache().bytes_per_token
    assert each == 4 * model.config.kv_elements_per_token
    assert [kv.count // each for kv in recording.kv_bytes] == [8, 11, 12, 13]


def test_only_op_mode_opens_a_groups_twin():
    """Off, counting and in step mode the logits are those of the twin, bit for bit."""
    from minifer.op import REGISTRY, TWINS, Cost, twin

    @twin("mlp", backend="numpy", kernels="numpy", cost=lambda layer, x: Cost())
    def rounded(ops, layer, x):
        return REGISTRY["mlp"].reference(ops, layer, x) * np.float32(1 + 2**-20)

    model = tiny_model()
    try:
        off = model.forward(IDS)
        for time in (None, "step", "op"):
            with minifer.record(time=time):
                found = model.forward(IDS)
            assert np.array_equal(found, off) == (time != "op")
            assert np.abs(found - off).max() <= 2e-5 * max(5, np.abs(off).max())
    finally:
        del TWINS["mlp", "numpy", "numpy"]


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


@pytest.mark.parametrize("time", [None, "step", "op"])
def test_a_hook_that_generates_itself_has_steps_of_its_own(time):
    """A step opened inside another: each gets its own receipt, and the outer one stays open."""
    model, inner = tiny_model(), tiny_model(seed=2)

    def look(weights):
        list(minifer.generate(inner, IDS[:3], max_tokens=1))

    with minifer.record(time=time) as alone:
        expected = [s.receipt for s in minifer.generate(model, IDS, max_tokens=2, ignore_eos=True)]
    with (
        model.hook("layers.0.attention.weights", look),
        minifer.record(time=time) as recording,
    ):
        found = [s.receipt for s in minifer.generate(model, IDS, max_tokens=2, ignore_eos=True)]
    assert [receipt[:5] for receipt in found] == [receipt[:5] for receipt in expected]
    assert len(recording.steps) == 4, "two of the outer call, two of the hook's calls"
    # A call that begins inside another is numbered after it.
    assert {row.request for row in recording.rows} == {1, 2, 3}
    outer = [row.scope for row in recording.rows if row.request == 1]
    assert outer == [row.scope for row in alone.rows]


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
