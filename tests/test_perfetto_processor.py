"""Perfetto's own trace processor reads our traces: every slice, at its depth, to the nanosecond."""

import json

import pytest
from tiny_model import tiny_model
from trace_processor import ProcessorError, TraceProcessor
from trace_rules import broken_rules, nanoseconds
from trace_runs import IDS, LAYERS, coarse, recorded, slices, written

import minifer
from minifer.observe.report import EXECUTED

pytestmark = pytest.mark.slow

FAULTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
SLICES = """
select s.id, s.ts, s.dur, s.depth, s.name, s.category, s.parent_id as parent, s.arg_set_id as args,
  t.name as track, t.tid
from slice s join thread_track on thread_track.id = s.track_id join thread t using (utid)
order by s.id
"""
ARGS = """
select arg_set_id as id, key, coalesce(int_value, real_value, string_value) as value from args
where key like 'args.%'
"""
COUNTERS = """
select t.name, c.ts, c.value from counter c join track t on t.id = c.track_id order by c.ts, c.id
"""


@pytest.fixture
def load(tmp_path):
    """A recording -> (its events, the processor with the trace in it)."""

    def load_one(recording):
        path = tmp_path / "trace.json"
        events, _ = written(recording, path)
        return events, TraceProcessor(path.read_bytes())

    return load_one


def raw(events):
    return TraceProcessor(json.dumps({"traceEvents": events}).encode())


def interleaved(mode):
    """Two requests in turn, passes of two segments between them -> recording, caches."""
    model = tiny_model()
    caches = [model.new_cache(), model.new_cache()]
    with minifer.record(time=mode) as recording:
        running = [
            minifer.generate(
                model, IDS[n:], max_tokens=4, cache=cache, prefill_chunk=4, ignore_eos=True
            )
            for n, cache in enumerate(caches)
        ]
        for _ in range(4):
            for request in running:
                next(request)
            both = [minifer.Segment(IDS[:n], model.new_cache(8)) for n in (3, 5)]
            model.step(both)
    return recording, caches


@pytest.mark.parametrize("mode", ["op", "step"])
@pytest.mark.parametrize("many", [False, True], ids=["one request", "interleaved"])
def test_every_slice_arrives_as_it_was_written(load, mode, many):
    recording = interleaved(mode)[0] if many else recorded(mode)
    events, processor = load(recording)
    assert processor.query(FAULTS) == []
    found, sent = processor.query(SLICES), slices(events)
    start = min(span.begin for span in recording.spans)
    start = round(min([start, *(row.begin for row in recording.rows)]) * 1e9)
    measured = [one for one in [*recording.rows, *recording.spans] if one.seconds is not None]
    bounds = [(round(o.begin * 1e9), round((o.begin + o.seconds) * 1e9)) for o in measured]
    shown = [(one["ts"], one["dur"]) for one in found if one["category"] != "request"]
    assert sorted(shown) == sorted((begin - start, end - begin) for begin, end in bounds)
    assert len(found) == len(sent)
    key = ("tid", "ts", "dur", "name", "category")
    assert sorted(tuple(one[k] for k in key) for one in found) == sorted(
        (e["tid"], nanoseconds(e["ts"]), nanoseconds(e["dur"]), e["name"], e["cat"]) for e in sent
    )
    by_id = {one["id"]: one for one in found}
    for one in found:
        if one["parent"] is not None:
            around = by_id[one["parent"]]
            assert around["ts"] <= one["ts"]
            assert one["ts"] + one["dur"] <= around["ts"] + around["dur"]
            assert (around["tid"], around["depth"]) == (one["tid"], one["depth"] - 1)
    tracks = {one["track"] for one in found}
    assert tracks == ({"passes", "request 1", "request 2"} if many else {"request 1"})
    names = processor.query("select name from process where name is not null")
    assert names == [{"name": f"minifer {minifer.__version__}"}]


def chain(found, leaf):
    """The names from the outermost slice to one of this name, the last in the trace."""
    by_id = {one["id"]: one for one in found}
    names, one = [], [one for one in found if one["name"] == leaf][-1]
    while one is not None:
        names.append(one["name"])
        one = by_id.get(one["parent"])
    return names[::-1]


def test_an_op_stands_in_its_group_layer_pass_step_and_request(load):
    found = load(recorded())[1].query(SLICES)
    step = ["request 1", "decode, token 13"]
    layer = [*step, "pass", f"layer {LAYERS - 1}"]
    assert chain(found, "attention") == [*layer, "attend", "attention"]
    assert chain(found, "gate") == [*layer, "mlp", "gate"]
    assert chain(found, "residual") == [*layer, "residual"]
    assert chain(found, "linear") == [*step, "pass", "linear"]
    assert chain(found, "rotation") == [*step, "rotation"]
    assert {one["depth"] for one in found} == set(range(6))
    assert {one["name"] for one in load(recorded("step"))[1].query(SLICES)} == {
        "request 1", "pass", "prefill, token 11", "decode, token 12", "decode, token 13"
    }  # fmt: skip


def test_the_costs_can_be_queried(load):
    recording = recorded()
    processor = load(recording)[1]
    args = {}
    for one in processor.query(ARGS):
        args.setdefault(one["id"], {})[one["key"].removeprefix("args.")] = one["value"]
    found = [args[one["args"]] for one in processor.query(SLICES) if one["category"] == "op"]
    rows = sorted(recording.rows, key=lambda row: row.begin)
    for shown, row in zip(found, rows, strict=True):
        wanted = row.cost._asdict() | {"kernels": row.kind}
        if not row.executed_known:  # null: the processor has no such argument
            wanted = {key: value for key, value in wanted.items() if key not in EXECUTED}
        assert {key: shown[key] for key in shown if key != "flops_per_byte"} == wanted
    steps = [args[one["args"]] for one in processor.query(SLICES) if one["category"] == "step"]
    for shown, receipt in zip(steps, recording.steps, strict=True):
        for key, value in receipt._asdict().items():
            # The processor reads a decimal fraction to within one place of the last bit.
            assert shown.get(key) == (value and pytest.approx(value, rel=1e-15)), key
    summed = processor.query("""
        select sum(int_value) as flops from slice join args using (arg_set_id)
        where category = 'op' and key = 'args.flops'
    """)
    assert summed == [{"flops": recording.receipt().flops}]


@pytest.mark.parametrize("mode", ["op", "step"])
def test_counters_end_with_what_the_caches_hold(load, mode):
    recording, caches = interleaved(mode)
    processor = load(recording)[1]
    samples = {}
    for one in processor.query(COUNTERS):
        samples.setdefault(one["name"], []).append((one["ts"], one["value"]))
    assert set(samples) == {f"{name} KV bytes" for name in ("passes", "request 1", "request 2")}
    ends = {one["name"]: one["ts"] + one["dur"] for one in processor.query(SLICES)}
    for number, cache in enumerate(caches, 1):
        held = cache.length * cache.bytes_per_token
        counter = samples[f"request {number} KV bytes"]
        assert counter[-1] == (ends[f"request {number}"], held)
        assert counter[-2][1] == held
        assert counter[0][1] == 4 * cache.bytes_per_token  # the first chunk
    assert samples["passes KV bytes"][-1][1] == (3 + 5) * caches[0].bytes_per_token


def test_a_failed_step_arrives_too(load):
    model = tiny_model()

    def fail(weights):
        raise RuntimeError("a hook")

    with minifer.record(time="op") as recording:
        with model.hook("layers.1.attention.weights", fail), pytest.raises(RuntimeError):
            next(minifer.generate(model, IDS))
        model.forward(IDS)
    events, processor = load(recording)
    assert processor.query(FAULTS) == []
    found = processor.query(SLICES)
    assert len(found) == len(slices(events))
    first = [one for one in found if one["tid"] == 1]
    assert {one["name"] for one in first if one["depth"] == 2} >= {"layer 0", "rms_norm"}
    assert "pass" not in {one["name"] for one in first}


def test_of_slices_of_the_same_time_the_first_in_the_file_holds_the_next(load):
    processor = load(coarse())[1]
    assert processor.query(FAULTS) == []
    wanted = ["request 1", "decode, token 7", "pass", "layer 0", "layer 1", "attend", "mlp", "gate"]
    assert chain(processor.query(SLICES), "gate") == wanted


# ---- the proof can fail ------------------------------------------------------------------------


def event(name, ts, dur, **more):
    return {"ph": "X", "name": name, "cat": "op", "pid": 1, "tid": 1, "ts": ts, "dur": dur} | more


@pytest.mark.parametrize("late", [5, 0.001])
def test_the_processor_reports_an_overlap(late):
    processor = raw([event("outer", 0, 10), event("inner", 5, 5 + late)])
    assert processor.query(FAULTS) == [
        {"name": "slice_drop_overlapping_complete_event", "value": 1}
    ]
    assert [one["name"] for one in processor.query(SLICES)] == ["outer"]


def test_the_processor_says_nothing_of_faults_that_only_our_rules_catch():
    """Why there are rules of our own: each of these loads without an error."""
    name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "track"}}
    for rule, faulty in [
        ("phase", event("odd", 5, 1, tid=2, args={}, ph="Q")),
        ("duration", event("back", 5, -1, tid=2, args={})),
        ("ids", event("half", 5, 1, tid=2.5, args={})),
        ("ids", event("zero", 5, 1, tid=0, args={})),
    ]:
        events = [name, event("sound", 0, 1, tid=2, args={}), faulty]
        assert raw(events).query(FAULTS) == []
        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": events})
        assert broken_rules(text.encode()) == {rule}
    cut = json.dumps([event("a", 0, 1), event("b", 2, 1)])[:-20].encode()
    processor = TraceProcessor(cut)
    assert processor.query(FAULTS) == []
    assert [one["name"] for one in processor.query(SLICES)] == ["a"]
    assert broken_rules(cut) == {"json"}


def test_what_is_no_trace_and_no_query_is_an_error(load, tmp_path):
    path = tmp_path / "t.json"
    recorded("step").perfetto(path)
    with pytest.raises(ProcessorError, match="incomplete"):
        TraceProcessor(path.read_bytes()[:-400])
    with pytest.raises(ProcessorError, match="no such table"):
        TraceProcessor(path.read_bytes()).query("select * from nothing_of_that_name")
