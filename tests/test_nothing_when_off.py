"""With nobody watching, a pass makes the very Python calls the plain functions make."""

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
from tiny_model import tiny_model

import minifer
from minifer.batch import lay_out
from minifer.checks import check_segments
from minifer.op import REGISTRY

IDS = list(range(10, 21))


def calls(function, *args):
    """Names of the Python and C functions called, in order: `function` itself first."""
    found = []

    def see(frame, event, argument):
        if event == "call":
            found.append((frame.f_code.co_filename, frame.f_code.co_qualname))
        elif event == "c_call":
            found.append(("C", getattr(argument, "__qualname__", repr(argument))))

    sys.setprofile(see)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return found[:-1]  # the last is setprofile


def plain_table():
    """The functions themselves, each given xp or the table: no minifer object in between."""
    ops = SimpleNamespace(xp=np)
    for name, spec in REGISTRY.items():
        setattr(ops, name, partial(spec.reference, ops if spec.group else np))
    return ops


def test_an_unwatched_pass_makes_the_calls_of_the_plain_functions():
    model = tiny_model(seed=6)
    model.table.kernels = "reference"
    ops, table = model.table.bind(), plain_table()
    found = []
    for chosen in (ops, table):
        pairs = check_segments([minifer.Segment(IDS, model.new_cache(32))], model.config)
        batch = lay_out(chosen, pairs, model.inverse_frequencies)
        found.append(calls(chosen.transformer, model, batch, False))
    assert found[0] == found[1]
    assert len(found[0]) > 200
    ours = {name for path, name in found[0] if "minifer" in path}
    groups_and_ops = {spec.reference.__qualname__ for spec in REGISTRY.values()} - {"rotation"}
    others = {"KVCache.append", "KVCache.length", "keep", "widen"}
    assert ours == groups_and_ops | others, "no function of the op table is among them"


def test_a_watched_pass_makes_more_calls():
    """The control: the comparison above can fail."""
    model = tiny_model(seed=6)
    counts = []
    for time in ("off", "step", "op"):
        with minifer.record(time=None if time == "off" else time) as recording:
            ops = model.table.bind(None if time == "off" else recording)
            pairs = check_segments([minifer.Segment(IDS, model.new_cache(32))], model.config)
            batch = lay_out(ops, pairs, model.inverse_frequencies)
            counts.append(len(calls(ops.transformer, model, batch, False)))
    assert counts[0] < counts[1] < counts[2]


def test_binding_an_unwatched_table_builds_nothing():
    model = tiny_model(seed=6)
    model.table.bind()
    assert len(calls(model.table.bind)) < 15
    assert "Ops.__init__" not in {name for _, name in calls(model.table.bind)}
