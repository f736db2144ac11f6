"""A recording as a trace: strictly nested, exact to the nanosecond, and by the format's rules."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import tiny_model
from trace_rules import nanoseconds
from trace_runs import IDS, LAYERS, chains, recorded, slices, written

import minifer
from minifer.errors import MiniferError
from minifer.observe.passes import CONVENTION


def test_op_mode_shows_request_step_pass_layer_group_op(tmp_path):
    recording = recorded()
    events, about = written(recording, tmp_path / "trace.json")
    request, step, whole = ("request",), ("request", "step"), ("request", "step", "pass")
    layer = (*whole, "layer")
    ops = Counter(row.op for row in recording.rows)
    inside = sum(ops[name] for name in ("rope", "store", "attention", "join", "gate"))
    inside += 7 * LAYERS * 3  # linear, of the layers
    assert chains(events) == {
        request: 1,
        step: 3,
        (*step, "op"): 3,  # rotation, before the pass
        whole: 3,
        (*whole, "op"): 3 * 4,  # embedding, select, last norm, head
        layer: 3 * LAYERS,
        (*layer, "op"): 3 * LAYERS * 4,  # two norms, two residuals
        (*layer, "group"): 3 * LAYERS * 2,
        (*layer, "group", "op"): inside,
    }
    names = [event["name"] for event in slices(events) if event["cat"] != "op"]
    assert names[:5] == ["request 1", "prefill, token 11", "pass", "layer 0", "attend"]
    assert {"decode, token 12", "decode, token 13", "mlp", "layer 2"} < set(names)
    assert about["minifer"] == minifer.__version__
    assert about["convention"] == CONVENTION
    assert about["opened"] == ["attend", "block", "mlp", "transformer"]
    assert (about["swapped"], about["clipped"], about["dropped"]) == ([], 0, 0)
    named = {e["name"]: e["args"] for e in events if e["ph"] == "M"}
    assert named["process_name"] == {"name": f"minifer {minifer.__version__}"}
    assert named["thread_name"] == {"name": "request 1"}


def test_step_mode_shows_steps_and_passes_alone(tmp_path):
    events, _ = written(recorded("step", prefill_chunk=4), tmp_path / "trace.json")
    step = ("request", "step")
    assert chains(events) == {("request",): 1, step: 3, (*step, "pass"): 5}


def test_every_duration_is_the_recording_s_to_the_nanosecond(tmp_path):
    recording = recorded()
    events, _ = written(recording, tmp_path / "trace.json")
    start = min(span.begin for span in recording.spans)
    times = {}
    for one in [*recording.rows, *recording.spans]:
        begin, end = round(one.begin * 1e9), round((one.begin + one.seconds) * 1e9)
        times[begin - round(start * 1e9), end - begin] = one.seconds
    shown = [
        (nanoseconds(e["ts"]), nanoseconds(e["dur"]))
        for e in slices(events)
        if e["cat"] != "request"
    ]
    assert sorted(shown) == sorted(times)
    assert all(abs(times[key] * 1e9 - key[1]) <= 1 for key in shown)


def test_costs_of_an_op_and_sums_of_what_a_slice_holds(tmp_path):
    recording = recorded()
    events, _ = written(recording, tmp_path / "trace.json")
    ops = [event for event in slices(events) if event["cat"] == "op"]
    rows = sorted(recording.rows, key=lambda row: row.begin)
    for event, row in zip(ops, rows, strict=True):
        moved = row.cost.required_bytes
        wanted = row.cost._asdict() | {"kernels": row.kind}
        if not row.executed_known:
            wanted |= {"executed_flops": None, "executed_bytes": None}
        args = dict(event["args"])
        intensity = args.pop("flops_per_byte")
        assert args == wanted
        assert (intensity is None) == (moved == 0)
        assert moved == 0 or float(intensity) == row.cost.flops / moved
    steps = [event["args"] for event in slices(events) if event["cat"] == "step"]
    for args, receipt in zip(steps, recording.steps, strict=True):
        told = {key: value if value is None else float(value) for key, value in args.items()}
        assert receipt._asdict().items() <= told.items()
    total = recording.receipt()
    (request,) = [event["args"] for event in slices(events) if event["cat"] == "request"]
    assert (request["flops"], request["weight_bytes"]) == (total.flops, total.weight_bytes)


def test_step_mode_says_what_each_pass_required(tmp_path):
    """Chunks of one step have costs of their own; those that no kernel said are null."""
    recording = recorded("step", tokens=1, prefill_chunk=4)
    events, _ = written(recording, tmp_path / "trace.json")
    passes = [event["args"] for event in slices(events) if event["cat"] == "pass"]
    written_bytes = tiny_model().new_cache().bytes_per_token
    assert [args["kv_bytes_written"] for args in passes] == [4 * written_bytes] * 2 + [
        3 * written_bytes
    ]
    assert sum(args["flops"] for args in passes) == recording.receipt().flops
    assert {args["executed_flops"] for args in passes} <= {None}


def test_a_swapped_op_costs_the_reference_and_a_swapped_group_nobody_knows_what(tmp_path):
    model = tiny_model()

    def mlp(ops, layer, x):
        return ops.linear(x, layer.up)[:, : x.shape[1]]

    plain = lambda xp, gate, up: gate * up  # noqa: E731
    with model.swap(gate=plain), minifer.record(time="op") as recording:
        model.forward(IDS)
    events, about = written(recording, tmp_path / "gate.json")
    gates = [event["args"] for event in slices(events) if event["name"] == "gate"]
    assert {args["kernels"] for args in gates} == {"swapped"}
    assert all(args["flops"] > 0 and args["executed_flops"] is None for args in gates)
    assert about["swapped"] == ["gate"]

    with model.swap(mlp=mlp), minifer.record(time="op") as recording:
        model.forward(IDS)
    events, _ = written(recording, tmp_path / "mlp.json")
    groups = [event["args"] for event in slices(events) if event["name"] == "mlp"]
    assert [(args["kernels"], args["flops"]) for args in groups] == [("swapped", None)] * LAYERS
    assert chains(events)["pass", "layer", "group", "op"] == LAYERS * 10 + LAYERS  # attend, mlp
    (whole,) = [event["args"] for event in slices(events) if event["cat"] == "pass"]
    assert whole["flops"] is None


def test_interleaved_requests_and_passes_lie_on_tracks_of_their_own(tmp_path):
    model = tiny_model()
    caches = [model.new_cache(), model.new_cache()]
    with minifer.record(time="op") as recording:
        one, two = (
            minifer.generate(model, IDS[n:], max_tokens=4, cache=cache, ignore_eos=True)
            for n, cache in enumerate(caches)
        )
        for _ in range(4):
            next(one)
            model.forward(IDS)
            next(two)
    events, _ = written(recording, tmp_path / "trace.json")
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(names.values()) == ["passes", "request 1", "request 2"]
    passes = Counter(names[e["tid"]] for e in slices(events) if e["cat"] == "pass")
    assert passes == {"passes": 4, "request 1": 4, "request 2": 4}
    spans = {e["name"]: e for e in slices(events) if e["cat"] == "request"}
    first, second = spans["request 1"], spans["request 2"]
    assert first["ts"] < second["ts"] < first["ts"] + first["dur"] < second["ts"] + second["dur"]
    for number, cache in enumerate(caches, 1):
        track = [e for e in events if e["ph"] == "C" and e["name"] == f"request {number}"]
        held = cache.length * cache.bytes_per_token
        assert [e["args"]["KV bytes"] for e in track][-2:] == [held, held]
        span = spans[f"request {number}"]
        assert track[-1]["ts"] == span["ts"] + span["dur"]
        assert len(track) == 5


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("generate"), st.integers(1, 11), st.integers(1, 12), st.booleans()),
        st.tuples(st.just("next"), st.integers(0, 3)),
        st.tuples(st.just("close"), st.integers(0, 3)),
        st.tuples(st.just("forward"), st.integers(1, 5)),
        st.tuples(st.just("step"), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS, mode=st.sampled_from(["op", "step"]))
def test_any_recording_makes_a_trace_of_all_it_holds(tmp_path_factory, actions, mode):
    model, running = tiny_model(), []
    with minifer.record(time=mode) as recording:
        for action, *given_ in actions:
            if action == "generate":
                length, chunk, cached = given_
                options = {"prefill_chunk": chunk, "use_cache": cached, "max_tokens": 4}
                running.append(minifer.generate(model, IDS[:length], ignore_eos=True, **options))
            elif action == "forward":
                model.forward(IDS[: given_[0]])
            elif action == "step":
                model.step([minifer.Segment(IDS[:n], model.new_cache(8)) for n in given_[0]])
            elif given_[0] < len(running):
                running[given_[0]].close() if action == "close" else next(running[given_[0]], None)
    path = tmp_path_factory.mktemp("trace") / "t.json"
    if not recording.spans:
        with pytest.raises(MiniferError, match="empty recording"):
            recording.perfetto(path)
        return
    events, about = written(recording, path)
    timed = [row for row in recording.rows if row.seconds is not None]
    kinds = Counter(event["cat"] for event in slices(events))
    assert kinds["op"] == len(timed)
    assert sum(kinds.values()) - kinds["request"] == len(recording.spans) + len(timed)
    requests = {one.request for one in recording.spans}
    assert kinds["request"] == len(requests - {0})
    assert (about["clipped"], about["dropped"]) == (0, 0)
    held = {one.request: one.count for one in recording.kv_bytes}
    last = {e["name"]: e["args"]["KV bytes"] for e in events if e["ph"] == "C"}
    assert last == {f"request {n}" if n else "passes": count for n, count in held.items()}
