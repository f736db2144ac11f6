"""Traces of steps that fail, of clocks that misbehave, of a great many ops; and what is refused."""

import os
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import tiny_model
from trace_rules import nanoseconds
from trace_runs import IDS, chains, coarse, recorded, slices, written

import minifer
from minifer.errors import MiniferError
from minifer.observe.perfetto import write_trace
from minifer.observe.recorder import KVBytes, Recording, Row, Span
from minifer.op import Cost


@pytest.mark.parametrize("mode", ["op", "step"])
def test_a_step_that_fails_leaves_a_trace_that_nests(tmp_path, mode):
    model, shots = tiny_model(), []

    def fail(weights):
        if len(shots) == 1:
            raise RuntimeError("a hook")
        shots.append(weights)

    with minifer.record(time=mode) as recording:
        steps = minifer.generate(model, IDS, max_tokens=5)
        with model.hook("layers.1.attention.weights", fail):
            next(steps)
            with pytest.raises(RuntimeError, match="a hook"):
                next(steps)
        model.forward(IDS)
    events, about = written(recording, tmp_path / "trace.json")
    assert (about["clipped"], about["dropped"]) == (0, 0)
    found = chains(events)
    assert found["request", "step"] == 2
    assert found["request", "step", "pass"] == 1
    assert found["pass",] == 1
    if mode == "op":  # what ran before the failure, without a pass around it
        assert found["request", "step", "layer"] == 1
        assert found["request", "step", "layer", "group", "op"] > 0
    tail = [event for event in slices(events) if event["name"] == "decode, token 12"]
    assert len(tail) == 1


def test_a_trace_written_in_the_middle_of_a_pass(tmp_path):
    model, found = tiny_model(), []
    with minifer.record(time="op") as recording:

        def see(weights):
            found.append(written(recording, tmp_path / f"{len(found)}.json")[0])

        with model.hook("layers.2.attention.weights", see):
            next(minifer.generate(model, IDS))
    (events,) = found
    assert chains(events)["request", "layer"] == 2
    assert not [event for event in events if event.get("cat") in ("step", "pass")]


def test_slices_of_the_same_time_stand_in_the_file_as_they_hold_one_another(tmp_path):
    """Viewers take the first of them as the outermost."""
    events, about = written(coarse(), tmp_path / "trace.json")
    names = [event["name"] for event in slices(events)]
    assert names == [
        "request 1", "decode, token 7", "pass", "layer 0", "layer 1", "attend", "mlp", "gate"
    ]  # fmt: skip
    assert {nanoseconds(event["dur"]) for event in slices(events)} == {100}
    assert (about["clipped"], about["dropped"]) == (0, 0)


def test_slices_that_touch_are_not_cut(tmp_path):
    recording = Recording("op")
    for layer in range(3):
        recording.spans.append(Span(0, (f"layers.{layer}",), "block", 1 + layer * 1e-6, 1e-6))
    recording.spans.append(Span(0, ("layers.3",), "block", 1 + 3e-6, 0.0))
    recording.spans.append(Span(0, (), "transformer", 1.0, 3e-6))
    events, about = written(recording, tmp_path / "trace.json")
    found = [(nanoseconds(e["ts"]), nanoseconds(e["dur"]), e["name"]) for e in slices(events)]
    assert found == [
        (0, 3000, "pass"),
        (0, 1000, "layer 0"),
        (1000, 1000, "layer 1"),
        (2000, 1000, "layer 2"),
        (3000, 0, "layer 3"),
    ]
    assert about["clipped"] == 0


CLOCK = st.floats(0, 2e-6, allow_nan=False)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), CLOCK, st.floats(-2e-7, 1e-6))),
    spans=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["transformer", "block", "mlp", "position 3"]),
            CLOCK,
            st.floats(-2e-7, 2e-6),
        ),
        min_size=1,
    ),
    held=st.lists(st.tuples(st.integers(0, 2), CLOCK)),
)
def test_whatever_the_clock_says_the_trace_nests(tmp_path_factory, rows, spans, held):
    """Times that cross each other are cut, those that run backwards left out, and both are told."""
    recording = Recording("op")
    recording.rows = [Row(r, (), "gate", "x", 1, Cost(1), True, *at) for r, *at in rows]
    recording.spans = [Span(r, ("decode", "layers.0"), name, *at) for r, name, *at in spans]
    recording.kv_bytes = [KVBytes(request, clock, 8) for request, clock in held]
    path = tmp_path_factory.mktemp("trace") / "t.json"
    given_ = [*recording.rows, *recording.spans]
    bounds = [(round(o.begin * 1e9), round((o.begin + o.seconds) * 1e9)) for o in given_]
    backwards = sum(end < begin for begin, end in bounds)
    if backwards == len(given_):
        with pytest.raises(MiniferError, match="empty recording"):
            recording.perfetto(path)
        return
    events, about = written(recording, path)
    shown = [event for event in slices(events) if event["cat"] != "request"]
    assert (len(shown), about["dropped"]) == (len(given_) - backwards, backwards)
    lengths = Counter(end - begin for begin, end in bounds if begin <= end)
    lengths.subtract(Counter(nanoseconds(event["dur"]) for event in shown))
    assert sum(n for n in lengths.values() if n > 0) <= about["clipped"]


# ---- what is refused ---------------------------------------------------------------------------


def test_a_recording_without_times_or_passes_says_what_to_do(tmp_path):
    with minifer.record() as counted:
        tiny_model().forward(IDS)
    with pytest.raises(MiniferError, match=r'only counted \(time=None\).*record\(time="op"\)'):
        counted.perfetto(tmp_path / "t.json")
    with minifer.record(time="step") as empty:
        pass
    with pytest.raises(MiniferError, match=r"empty recording.*record\(time='step'\)"):
        empty.perfetto(tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []


def test_paths_that_cannot_be_written_are_named(tmp_path):
    recording = recorded(tokens=1)
    (tmp_path / "file").write_text("old", encoding="utf-8")
    for path, reason in [
        (tmp_path, "is a folder; give the name of a file"),
        (tmp_path / "absent" / "t.json", "absent does not exist; make it"),
        (tmp_path / "file" / "t.json", "file is not a folder"),
        (tmp_path / ("x" * 300), "name too long"),
        (tmp_path / "a\0b", "null"),
    ]:
        with pytest.raises(MiniferError, match=reason) as caught:
            recording.perfetto(path)
        assert str(path) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full: Linux alone")
def test_a_full_disk_is_named():
    with pytest.raises(MiniferError, match="/dev/full: the trace could not be written"):
        recorded(tokens=1).perfetto("/dev/full")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "t.json"
    target.write_text("old", encoding="utf-8")
    recording = recorded()

    def refuse(source, to):
        raise OSError(5, "the disk says no")

    with monkeypatch.context() as patched, pytest.raises(MiniferError, match="the disk says no"):
        patched.setattr(os, "replace", refuse)
        recording.perfetto(target)
    row = recording.rows[-1]
    recording.rows[-1] = row._replace(kind=object())  # JSON refuses it in the middle of the file
    with pytest.raises(TypeError):
        recording.perfetto(target)
    assert target.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]
    recording.rows[-1] = row
    written(recording, target)


def test_a_large_recording_takes_seconds(tmp_path):
    """200,000 ops in 2,000 steps: about 6 s on the slow machine of the authors."""
    recording, ops, steps = Recording("op"), 100, 2000
    cost = Cost(10, 10, 4, 4, 4, 4, 8)
    for step in range(steps):
        begin = step * 1e-3
        scope = ("decode", f"position {step}")
        for i in range(ops):
            at = begin + (i + 1) * 1e-6
            recording.rows.append(Row(1, scope, "linear", "reference", 1, cost, True, at, 9e-7))
        recording.spans.append(Span(1, scope, "transformer", begin + 1e-7, 9e-4))
        recording.spans.append(Span(1, ("decode",), f"position {step}", begin, 9.5e-4))
    began = time.perf_counter()
    write_trace(recording, tmp_path / "t.json")
    assert time.perf_counter() - began < 30
    found = (tmp_path / "t.json").read_bytes().count(b'"ph":"X"')
    assert found == steps * (ops + 2) + 1
