"""The checker of traces can fail: for every rule there is a change that breaks it, and it alone."""

import json

import pytest
from tiny_model import tiny_model
from trace_rules import RULES, broken_rules
from trace_runs import IDS, written

import minifer


def changed(events, phase, **values):
    """The last event of a phase with other values; None takes a key away."""
    event = [event for event in events if event["ph"] == phase][-1]
    event.update(values)
    for key in [key for key, value in values.items() if value is None]:
        del event[key]


def overlap(events):
    """The end of a step one nanosecond beyond its request."""
    step = [event for event in events if event.get("cat") == "step"][-1]
    step["dur"] = round(step["dur"] + 0.001, 3)


def later(events):
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] + 1, 3)


MUTATIONS = [
    ("phase", lambda e: changed(e, "X", ph="Q")),
    ("phase", lambda e: changed(e, "X", ph=None)),
    ("name", lambda e: changed(e, "X", name="")),
    ("name", lambda e: changed(e, "X", name=None)),
    ("category", lambda e: changed(e, "X", cat=None)),
    ("args", lambda e: changed(e, "X", args=None)),
    ("args", lambda e: changed(e, "X", args=[1])),
    ("ids", lambda e: changed(e, "X", tid=1.5)),
    ("ids", lambda e: changed(e, "X", tid="1")),
    ("ids", lambda e: changed(e, "X", tid=True)),
    ("ids", lambda e: changed(e, "X", tid=0)),
    ("ids", lambda e: changed(e, "X", tid=-3)),
    ("ids", lambda e: changed(e, "X", tid=2**32)),
    ("ids", lambda e: changed(e, "X", tid=None)),
    ("ids", lambda e: changed(e, "C", pid=None)),
    ("time", lambda e: changed(e, "X", ts=-0.001)),
    ("time", lambda e: changed(e, "X", ts="1.0")),
    ("time", lambda e: changed(e, "C", ts=None)),
    ("time", lambda e: changed(e, "C", ts=0.0001)),
    ("duration", lambda e: changed(e, "X", dur=-1)),
    ("duration", lambda e: changed(e, "X", dur=None)),
    ("duration", lambda e: changed(e, "X", dur=0.0004)),
    ("duration", lambda e: changed(e, "X", dur=True)),
    ("nesting", overlap),
    ("metadata", lambda e: changed(e, "M", name="thread_name", args={"name": 5})),
    ("metadata", lambda e: changed(e, "M", name="thread_name", args={})),
    ("metadata", lambda e: changed(e, "M", name="thread_name", args={"name": ""})),
    ("metadata", lambda e: changed(e, "M", args={"sort_index": "1"})),
    ("tracks", lambda e: changed(e, "M", name="thread_name", args={"name": "request 1"})),
    ("tracks", lambda e: e.remove(next(x for x in e if x["name"] == "thread_name"))),
    ("tracks", lambda e: changed(e, "M", name="thread_name", args={"name": "passes"})),
    ("counter", lambda e: changed(e, "C", args={})),
    ("counter", lambda e: changed(e, "C", args={"KV bytes": "12"})),
    ("counter", lambda e: changed(e, "C", args={"KV bytes": None})),
    ("counters apart", lambda e: changed(e, "C", name="passes")),
    ("slices", lambda e: e.__setitem__(slice(None), [x for x in e if x["ph"] == "M"][:1])),
    ("slices", lambda e: e.clear()),
    ("slices", later),
]

TEXTS = [
    ("json", lambda text: text[:-20]),
    ("json", lambda text: text.replace('"ts":0.000', '"ts":NaN')),
    ("json", lambda text: text.replace('"ts":0.000', '"ts":0.000,"ts":0.000')),
    ("json", lambda text: text.replace("\n],", ",\n],")),
    ("json", lambda text: text.replace('"name":"passes"', '"name":"\\x"')),
    ("object", lambda text: "[]"),
    ("object", lambda text: text.replace("traceEvents", "events")),
    ("object", lambda text: text.replace('"traceEvents":[', '"traceEvents":[3,')),
    ("object", lambda text: text.replace('Unit":"ns"', 'Unit":"us"')),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    model = tiny_model()
    with minifer.record(time="step") as recording:
        model.forward(IDS)
        list(minifer.generate(model, IDS, max_tokens=2))
    path = tmp_path_factory.mktemp("trace") / "sound.json"
    written(recording, path)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("rule", "mutate"), MUTATIONS)
def test_every_rule_of_the_checker_can_be_broken(sound, rule, mutate):
    trace = json.loads(sound)
    assert broken_rules(json.dumps(trace).encode()) == set()
    mutate(trace["traceEvents"])
    assert broken_rules(json.dumps(trace).encode()) == {rule}


@pytest.mark.parametrize(("rule", "change"), TEXTS)
def test_every_rule_of_the_text_can_be_broken(sound, rule, change):
    assert broken_rules(change(sound).encode()) == {rule}


def test_bytes_that_are_no_text_are_no_trace(sound):
    assert broken_rules(sound.encode().replace(b"passes", b"\xff")) == {"json"}


def test_no_rule_is_without_a_mutation():
    assert {rule for rule, _ in [*MUTATIONS, *TEXTS]} == set(RULES)
