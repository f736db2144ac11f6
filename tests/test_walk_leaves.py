"""walk(model, ids): one layer, the times, what it leaves behind and what it refuses."""

import sys

import pytest
from test_walk import odd
from tiny_model import CONFIG, tiny_model, write_tiny_model
from walk_runs import IDS, LAYERS, ORDER, load, of_function, statement, walked

import minifer
from minifer.observe.walk import walk
from minifer.observe.walk_source import read_function, watched_functions
from minifer.observe.walk_trace import Look, Tracer, tracing
from minifer.op import RECORDING, REGISTRY

# ---- one layer ---------------------------------------------------------------------------------


def test_the_layers_add_up_to_their_loop():
    model, whole = load(), walked()
    layers = [walk(model, IDS, layer=index, repeats=1) for index in range(LAYERS)]
    for phase in ("prefill", "decode"):
        loop = whole.phases[phase].figures[statement(whole, "transformer", "x = ops.block")].whole
        totals = [found.phases[phase].total for found in layers]
        assert sum(t.flops for t in totals) == loop.flops
        assert sum(t.bytes for t in totals) == loop.bytes
    names = {function.name for function in layers[2].functions}
    assert names == set(ORDER) - {
        "Model.step", "lay_out", "rotation", "transformer", "embedding", "select"
    }  # fmt: skip
    figures = layers[2].phases["decode"].figures
    assert figures["block", layers[2].functions[0].first].made["index"] == {"2": 1}
    assert {figures[place].hits for place in figures if place[0] == "attention"} == {1}


# ---- time --------------------------------------------------------------------------------------


def test_times_add_up_to_the_pass():
    found = walk(load(), IDS, repeats=1)
    for name, phase in found.phases.items():
        root = sum(f.whole.seconds for f in of_function(found, name, "Model.step"))
        assert root == pytest.approx(phase.total.seconds, rel=1e-9)
        assert 0 < phase.total.seconds < phase.traced_seconds
        assert all(0 <= f.own.seconds <= f.whole.seconds for f in phase.figures.values())
        own = [phase.figures[place].own.seconds for place in phase.hottest()]
        assert len(own) == 5 and own == sorted(own, reverse=True)
        assert own[0] == max(f.own.seconds for f in phase.figures.values())


def test_the_tracer_leaves_its_own_work_out():
    """A clock that ticks at each reading: every stretch of a line is one tick, however many."""
    function = read_function(odd, False, None)
    ticks = iter(range(10**6))
    tracer = Tracer([function], None, lambda: next(ticks))
    with tracing(tracer):
        odd([1, 2])
    for figures in tracer.figures.values():
        assert figures.own.seconds >= figures.hits
    # Readings come in pairs, the last alone; what lies between two pairs is counted, once.
    assert sum(f.own.seconds for f in tracer.figures.values()) == (next(ticks) - 1) // 2


def test_the_median_of_the_runs(monkeypatch):
    model = load()
    found = walk(model, IDS, repeats=3)
    assert found.repeats == 3 and found.phases["decode"].plain_seconds > 0
    seconds = iter([9.0, 1.0, 4.0])

    class Still(Tracer):
        def __init__(self, *args):
            super().__init__(*args)
            self.tick = next(seconds) if len(made) % 2 == 0 else self.tick_of_before()
            made.append(self)

        def tick_of_before(self):
            return made[-1].tick

        def close(self, visit, frame, returned):
            visit.own = self.tick
            return super().close(visit, frame, returned)

    made = []
    monkeypatch.setattr("minifer.observe.walk.Tracer", Still)
    found = walk(model, IDS, repeats=3)
    for phase in found.phases.values():
        for figures in phase.figures.values():
            assert figures.own.seconds == 4.0 * figures.hits


# ---- what it leaves, and what it refuses -------------------------------------------------------


class Interrupted(list):
    """Layers that stop the pass the n-th time somebody goes through them."""

    def __init__(self, layers, after, error):
        super().__init__(layers)
        self.after, self.error, self.stood = after, error, []

    def __iter__(self):
        self.after -= 1
        if self.after < 0:
            self.stood.append(sys.gettrace())
            raise self.error
        return super().__iter__()


@pytest.mark.parametrize("after", range(0, 8))
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("no room")])
def test_everything_is_put_back_whatever_happens(after, error):
    model = load()
    layers = model.layers
    model.layers = stopping = Interrupted(layers, after, error)
    with pytest.raises(type(error)):
        walk(model, IDS, repeats=1)
    # A count goes through the layers twice per pass: 4, then 2 plain passes, then 2 traced ones.
    traced = after not in (4, 5)
    assert [isinstance(trace, Tracer) for trace in stopping.stood] == [traced]
    assert isinstance(stopping.stood[0], Look) == (after < 4)
    assert sys.gettrace() is None and RECORDING.get() is None and model.table.changes == ()
    model.layers = layers
    assert walk(model, IDS, repeats=1).decoded_token_id == walk(model, IDS).decoded_token_id


def test_a_recording_around_it_sees_nothing_and_stays():
    with minifer.record() as recording:
        walk(load(), IDS, repeats=1)
        assert recording.rows == [] and RECORDING.get() is recording


def test_the_model_answers_as_before():
    model = load()
    before = model.forward(IDS)
    found = walk(model, IDS, repeats=1)
    assert (model.forward(IDS) == before).all()
    (step,) = minifer.generate(model, IDS, max_tokens=1)
    assert found.decoded_token_id == step.token_id and found.prompt_token_ids == IDS
    prefill, decode = found.phases.values()
    assert (prefill.tokens, prefill.visible, decode.tokens, decode.visible) == (5, 5, 1, 6)


def test_somebody_elses_tracer_is_left_alone():
    def mine(frame, event, arg):
        return None

    model = load()
    sys.settrace(mine)
    try:
        with pytest.raises(
            minifer.MiniferError, match=r"test_walk_leaves\..*mine has it: a debugger"
        ):
            walk(model, IDS)
        assert sys.gettrace() is mine
    finally:
        sys.settrace(None)


def test_what_is_refused(tmp_path):
    model = load()
    for options, said in (
        ({"layer": 3}, "layer 3: the model has the layers 0 to 2"),
        ({"layer": -1}, "layer"),
        ({"repeats": 0}, "repeats"),
    ):
        with pytest.raises(minifer.MiniferError, match=said):
            walk(model, IDS, **options)
    with pytest.raises(minifer.MiniferError, match='load it with kernels="reference"'):
        walk(tiny_model(), IDS)
    with (
        model.swap(rope=REGISTRY["rope"].reference),
        pytest.raises(minifer.MiniferError, match=r"in force \(rope\); undo"),
    ):
        walk(model, IDS)
    with (
        model.hook("layers.0.block.output", print),
        pytest.raises(minifer.MiniferError, match=r"in force \(layers.0.block.output\)"),
    ):
        walk(model, IDS)
    context = CONFIG["max_position_embeddings"]
    with pytest.raises(minifer.MiniferError, match="has no room for a decode step"):
        walk(model, [5] * context)
    assert walk(model, [5] * (context - 1), repeats=1).phases["decode"].visible == context
    folder = write_tiny_model(tmp_path, max_position_embeddings=1000)
    with pytest.raises(minifer.MiniferError, match="has 513 tokens; walk shows one pass, of at"):
        walk(minifer.load(folder, kernels="reference"), [5] * 513)


def test_without_source_it_says_so(monkeypatch):
    def gone(function):
        raise OSError("could not get source code")

    monkeypatch.setattr("inspect.getsourcelines", gone)
    with pytest.raises(minifer.MiniferError, match="the source is not here, and walk shows it"):
        watched_functions()


def test_an_op_without_source_counts_where_it_is_called(monkeypatch):
    """One typed at a prompt, say: nothing is lost."""
    read = read_function

    def no_gate(function, *rest):
        return None if function.__name__ == "gate" else read(function, *rest)

    monkeypatch.setattr("minifer.observe.walk_source.read_function", no_gate)
    found = walk(load(), IDS, repeats=1)
    assert "gate" not in {function.name for function in found.functions}
    gated = found.phases["prefill"].figures[statement(found, "mlp", "gated = ")]
    gate = of_function(walked(), "prefill", "gate")
    assert gated.own.flops == sum(f.own.flops for f in gate) > 0
    assert found.phases["prefill"].total.bytes == walked().phases["prefill"].total.bytes
