"""Recordings of the tiny model as traces: what the tests of the trace share."""

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

from tiny_model import tiny_model
from trace_rules import broken_rules

import minifer
from minifer.observe.perfetto import KINDS
from minifer.observe.recorder import Recording, Row, Span
from minifer.op import Cost

IDS = list(range(10, 21))
LAYERS = 3


def written(recording, path):
    """The trace, held against the rules -> (its events, its otherData)."""
    recording.perfetto(path)
    text = Path(path).read_bytes()
    assert broken_rules(text) == set()
    trace = json.loads(text, parse_float=Decimal)
    return trace["traceEvents"], trace["otherData"]


def slices(events):
    return [event for event in events if event["ph"] == "X"]


def recorded(mode="op", tokens=3, **options):
    with minifer.record(time=mode) as recording:
        list(minifer.generate(tiny_model(), IDS, max_tokens=tokens, ignore_eos=True, **options))
    return recording


def chains(events):
    """Kinds from the outermost slice to each one, by the times alone."""
    found, around = [], {}
    ordered = sorted(slices(events), key=lambda e: (e["ts"], -e["dur"], KINDS[e["cat"]]))
    for event in ordered:
        open_ = around.setdefault(event["tid"], [])
        while open_ and open_[-1]["ts"] + open_[-1]["dur"] <= event["ts"]:
            open_.pop()
        open_.append(event)
        found.append(tuple(one["cat"] for one in open_))
    return Counter(found)


def coarse():
    """What a clock that stood still would record: a step, a layer in a layer, mlp swapped."""
    recording = Recording("op")
    times, scope = (1.0, 1e-7), ("decode", "position 7", "layers.0")
    recording.rows = [
        Row(1, scope, "gate", "reference", 1, Cost(1), True, *times),
        Row(1, scope, "mlp", "swapped", 1, None, False, *times),
    ]
    recording.spans = [
        Span(1, scope, "mlp", *times),
        Span(1, scope, "attend", *times),
        Span(1, (*scope, "layers.1"), "block", *times),
        Span(1, scope, "block", *times),
        Span(1, scope[:2], "transformer", *times),
        Span(1, scope[:1], "position 7", *times),
    ]
    return recording
