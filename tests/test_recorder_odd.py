"""Recordings of odd programs: what cannot be known is not said, what cannot be told is refused."""

import json

import numpy as np
import pytest
from tiny_model import tiny_model

import minifer
from minifer.errors import MiniferError, OpError
from minifer.observe.counting import count

IDS = list(range(10, 21))
MODES = [None, "step", "op"]


@pytest.mark.parametrize("time", MODES)
@pytest.mark.parametrize("group", ["mlp", "attend", "transformer"])
def test_with_a_swapped_group_the_receipt_is_unknown(time, group, tmp_path):
    """What ran inside it nobody has counted: a sum without it would be too small."""
    swaps = {
        "mlp": lambda ops, layer, x: x @ layer.gate.T @ layer.down.T,
        "attend": lambda ops, config, layer, x, batch, index: x,
        "transformer": lambda ops, model, batch, all_rows: np.zeros((1, 300), np.float32),
    }
    model = tiny_model()
    with model.swap(**{group: swaps[group]}), minifer.record(time=time) as recording:
        (step,) = minifer.generate(model, IDS, max_tokens=1)
    for receipt in (step.receipt, recording.receipt()):
        assert receipt[:5] == (None,) * 5
        assert (receipt.seconds is None) == (time is None)
    assert recording.swapped == {group}
    last = recording.table().splitlines()
    assert next(line for line in last if line.startswith("all ")).split()[2:8] == ["?"] * 6
    data = json.loads(json.dumps(recording.to_json()))
    assert data["total"]["flops"] is None
    if time == "step":  # no op is claimed to have run
        assert list(data["ops"]) == ["transformer"]
    if time is not None:
        recording.perfetto(tmp_path / "t.json")
        events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
        steps = [e["args"] for e in events if e.get("cat") in ("step", "pass", "request")]
        assert len(steps) == 3 and all(args["flops"] is None for args in steps)


@pytest.mark.parametrize("watch", [*MODES, "count"])
def test_a_float64_result_is_refused(watch):
    """It would widen the rest of the pass, and every cost after it would be wrong."""
    model = tiny_model()
    wide = lambda xp, x, update: (x + update).astype(xp.float64)  # noqa: E731
    watcher = count() if watch == "count" else minifer.record(time=watch)
    with model.swap(residual=wide), watcher:
        if watch == "step":  # no op is watched; the pass is
            with pytest.raises(OpError, match="transformer: the result is float64"):
                model.forward(IDS)
            return
        with pytest.raises(OpError, match=r"residual: the result is float64.*astype\(xp.float32\)"):
            model.forward(IDS)


@pytest.mark.parametrize("outer", [minifer.record, count])
@pytest.mark.parametrize("inner", [minifer.record, count])
def test_a_second_watcher_is_refused_and_the_first_goes_on(outer, inner):
    model = tiny_model()
    with outer() as watcher:
        model.forward(IDS)
        rows = len(watcher.rows)
        with (
            pytest.raises(MiniferError, match="a (Recording|Counter) watches this thread already"),
            inner(),
        ):
            pass
        model.forward(IDS)
        assert len(watcher.rows) == 2 * rows
    assert model.forward(IDS) is not None
    with minifer.record() as later:
        model.forward(IDS)
    assert len(later.rows) == rows


def test_two_generators_that_hold_recordings_cannot_leave_one_behind():
    model = tiny_model()

    def holding():
        with minifer.record() as recording:
            yield recording

    first, second = holding(), holding()
    recording = next(first)
    with pytest.raises(MiniferError, match="keep none open in a generator that waits"):
        next(second)
    first.close()
    model.forward(IDS)
    assert not recording.rows


@pytest.mark.parametrize("time", MODES)
def test_a_pass_that_a_hook_runs_is_not_charged_to_the_token(time):
    model, inner = tiny_model(), tiny_model(seed=2)
    with minifer.record(time=time):
        (plain,) = minifer.generate(model, IDS, max_tokens=1)
    look = lambda weights: inner.forward(IDS[:5])  # noqa: E731
    with (
        model.hook("layers.1.attention.weights", look),
        minifer.record(time=time) as recording,
    ):
        (step,) = minifer.generate(model, IDS, max_tokens=1)
        inner.forward(IDS[:5])
    assert step.receipt[:5] == plain.receipt[:5]
    outside = sum(row.cost.flops for row in recording.rows if row.request == 0)
    with minifer.record(time=time) as alone:
        inner.forward(IDS[:5])
    assert outside == 2 * alone.receipt().flops


def test_shapes_a_cost_cannot_read_are_named_and_no_traceback_of_ours():
    model = tiny_model()
    deep = lambda ops, layer, x: ops.linear(x[None], layer.gate)  # noqa: E731
    with (
        model.swap(mlp=deep),
        minifer.record(),
        pytest.raises(OpError, match=r"linear: x has shape \(1, 11, 32\), stated is \(T, D\)"),
    ):
        model.forward(IDS)
