"""walk(model, ids): counts that add up to the Counter's, hits, shapes, the source itself."""

import textwrap

import numpy as np
import pytest
from cli_runs import cli
from tiny_model import CONFIG, tiny_model, write_tiny_model
from walk_runs import IDS, LAYERS, MODELS, ORDER, counted, load, of_function, statement, walked

from minifer.errors import ContextError
from minifer.observe.walk import walk
from minifer.observe.walk_source import ROOT, read_function, watched_functions
from minifer.observe.walk_trace import Tracer, describe, tracing
from minifer.op import REGISTRY

# ---- what is counted ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_lines_of_an_op_add_up_to_the_counter(name, phase):
    found, expected = walked(name), counted(load(name))[phase]
    ops = {op for op, _ in expected if op}
    assert {"linear", "attention", "rms_norm", "rotation", "embedding", "store"} <= ops
    for op in ops:
        lines = of_function(found, phase, op)
        assert sum(f.whole.flops for f in lines) == expected[op, "flops"], op
        assert sum(f.whole.bytes for f in lines) == expected[op, "bytes"], op
    total = found.phases[phase].total
    assert total.flops == sum(n for (_, what), n in expected.items() if what == "flops") > 0
    assert total.bytes == sum(n for (_, what), n in expected.items() if what == "bytes") > 0


def test_what_a_helper_does_is_its_own():
    """`widen` is a line of its own: in F32 it moves nothing, in BF16 every weight."""
    place = statement(walked("BF16"), "widen", "return xp.left_shift")
    calls = 7 * LAYERS + 1 + 2 * LAYERS + 1 + 1  # linear, norm, embedding
    for phase in ("prefill", "decode"):
        assert place not in walked().phases[phase].figures
        figures = walked("BF16").phases[phase].figures
        assert figures[place].hits == calls and figures[place].own.flops == 0
        assert figures[place].own.bytes_written == 2 * figures[place].own.bytes_read > 0
        called = figures[statement(walked("BF16"), "linear", "wide = widen")]
        assert called.own.bytes == 0 < called.whole.bytes
        assert sum(f.whole.bytes for f in of_function(walked(), phase, "widen")) == 0


def test_a_group_shows_what_it_calls():
    found = walked()
    figures = found.phases["prefill"].figures[statement(found, "mlp", "gated = ")]
    assert figures.own.bytes == 0
    gate = of_function(found, "prefill", "gate")
    assert figures.whole.bytes == sum(f.own.bytes for f in gate)
    by_name = {function.name: function for function in found.functions}
    assert figures.shown(by_name["mlp"]) is figures.whole
    assert figures.shown(by_name["gate"]) is figures.own


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_prefill_and_decode_do_the_same_lines(phase):
    lines = {place for place, f in walked().phases[phase].figures.items() if f.hits}
    assert lines == set(walked().phases["prefill"].figures)


# ---- how often a line ran ----------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_hits(phase):
    found = walked()
    figures = found.phases[phase].figures
    calls = {
        "Model.step": 1, "lay_out": 1, "rotation": 1, "transformer": 1, "embedding": 1,
        "block": LAYERS, "attend": LAYERS, "attention": LAYERS, "mlp": LAYERS, "gate": LAYERS,
        "join": LAYERS, "KVCache.append": LAYERS, "rope": 2 * LAYERS, "store": 2 * LAYERS,
        "residual": 2 * LAYERS, "rms_norm": 2 * LAYERS + 1, "linear": 7 * LAYERS + 1, "select": 1,
        "widen": 9 * LAYERS + 3,
    }  # fmt: skip
    assert {f.name: figures[f.name, f.first].hits for f in found.functions} == calls
    for name in ("attention", "gate", "rope", "rms_norm", "mlp", "block"):
        assert {f.hits for f in of_function(found, phase, name)} == {calls[name]}, name
    # The head of a loop runs once more than what is in it.
    assert figures[statement(found, "transformer", "for index")].hits == LAYERS + 1
    assert figures[statement(found, "transformer", "x = ops.block")].hits == LAYERS
    assert figures[statement(found, "attend", "for rows")].hits == 2 * LAYERS
    assert statement(found, "linear", "return product + widen") not in figures


def odd(rows):
    total = 0
    for row in rows:  # of several kinds
        if row > 2:
            total += sum(
                [
                    row,
                    1,
                ]
            )
        elif row == 2:
            total -= 1
        else:
            total = max(
                total,
                row,
            )
    while total > 100:
        total //= 2
    return total


def test_a_statement_of_several_lines_counts_once():
    function = read_function(odd, False, None)
    tracer = Tracer([function], None, iter(range(10**6)).__next__)
    with tracing(tracer):
        odd([1, 2, 2, 3, 4, 5])
    texts = {line: text[0].strip() for line, _, text in function.blocks()}
    hits = {texts[line]: figures.hits for (_, line), figures in tracer.figures.items()}
    assert hits == {
        "def odd(rows):": 1,
        "total = 0": 1,
        "for row in rows:  # of several kinds": 7,
        "if row > 2:": 6,
        "total += sum(": 3,
        "elif row == 2:": 3,
        "total -= 1": 2,
        "total = max(": 1,
        "while total > 100:": 1,
        "return total": 1,
    }
    assert [s.names for s in function.statements[:4]] == [("rows",), ("total",), ("row",), ()]


# ---- what a line made --------------------------------------------------------------------------


def test_shapes_are_those_that_hooks_see():
    model = load()
    found, seen = walk(model, IDS, layer=1, repeats=1), []
    with (
        model.hook("layers.1.attention.scores", lambda a: seen.append(("scores", a.shape))),
        model.hook("layers.1.attention.weights", lambda a: seen.append(("weights", a.shape))),
        model.hook("layers.1.attention.mixed", lambda a: seen.append(("return", a.shape))),
    ):
        cache = model.new_cache(16)
        model.forward(IDS, cache)
        prefill, seen = dict(seen), []
        model.forward([7], cache)
    begins = {"scores": "scores =", "weights": "weights =", "return": "return tap"}
    for phase, shapes in (("prefill", prefill), ("decode", dict(seen))):
        assert set(shapes) == set(begins)
        for name, shape in shapes.items():
            place = statement(found, "attention", begins[name])
            assert found.phases[phase].figures[place].made == {name: {str(shape): 1}}


def test_every_shape_a_call_had_is_kept_and_numbers_too():
    found = walked("BF16")
    figures = found.phases["prefill"].figures
    made = figures[statement(found, "linear", "product = ")].made
    assert made == {"product": {
        "(5, 32)": 3 * LAYERS, "(5, 16)": 2 * LAYERS, "(5, 48)": 2 * LAYERS,
        f"(1, {CONFIG['vocab_size']})": 1,
    }}  # fmt: skip
    assert figures[statement(found, "attention", "T, H, E")].made == {
        "T": {"5": LAYERS}, "H": {"4": LAYERS}, "E": {"8": LAYERS}
    }  # fmt: skip
    weights = figures[statement(found, "linear", "def")].made["weight"]
    assert all(shape.endswith(" uint16") for shape in weights)
    hidden = figures[statement(found, "attention", "hidden = ")].made
    assert hidden == {"hidden": {"(5, 5) bool": LAYERS}}


def test_describe():
    one = np.zeros((2, 3), np.float32)
    assert describe(one) == "(2, 3)" and describe(one.astype(int)) == "(2, 3) int64"
    assert describe((one, one[0])) == "(2, 3), (3,)" and describe([one]) == "[(2, 3)]"
    assert describe(7) == "7"
    nothing = (None, True, [], [one, 1], "text", slice(3), tiny_model().new_cache(4), (1, 2))
    assert [describe(value) for value in nothing] == [""] * len(nothing)


# ---- the source --------------------------------------------------------------------------------


def test_every_line_shown_is_a_line_of_the_file():
    for function in walked().functions:
        lines = (ROOT / function.file).read_text(encoding="utf-8").splitlines()
        shown = []
        for line, _, text in function.blocks():
            assert line == function.first + len(shown)
            shown += text
        own = lines[function.first - 1 : function.first - 1 + len(shown)]
        assert textwrap.dedent("\n".join(own)).splitlines() == shown == list(function.lines)
        assert shown[0].startswith(f"def {function.name.rsplit('.', 1)[-1]}(")
        after = lines[function.first - 1 + len(shown) :]
        indented = len(own[0]) - len(own[0].lstrip())
        beyond = next((line for line in after if line.strip()), "")
        assert len(beyond) - len(beyond.lstrip()) <= indented  # nothing of it is missing


def test_comments_are_told_from_code():
    function = read_function(odd, False, None)
    parts = [function.code_and_comment(n, t) for n, t in enumerate(function.lines, function.first)]
    assert parts[2] == ("    for row in rows:", "# of several kinds")
    assert [part for part in parts if part[1]] == [parts[2]]
    assert parts[0] == ("def odd(rows):", "") and len(parts) == len(function.lines)


def test_the_functions_stand_in_the_order_of_a_prompt():
    assert [function.name for function in walked().functions] == ORDER


def test_every_op_is_watched():
    names = {function.name for function in watched_functions()}
    missing = [s.name for s in REGISTRY.values() if s.reference.__qualname__ not in names]
    assert not missing


def test_a_context_of_one_token_is_no_fault_of_the_prompt(capsys, tmp_path):
    model = tiny_model(max_position_embeddings=1)
    folder = write_tiny_model(tmp_path / "one", max_position_embeddings=1)
    refusals = []
    for ids in ([5], [5, 6, 7]):
        with pytest.raises(ContextError) as caught:
            model.table.kernels = "reference"
            walk(model, ids)
        refusals.append(str(caught.value))
    refusals.append(cli(capsys, "walk", "-m", folder).err)
    for said in refusals:
        assert "the model's context is 1 token; walk shows a prompt and a decode" in said
        assert "shorten" not in said and "walk another model" in said
