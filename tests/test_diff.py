"""Where two runs part: names, tolerance, equal runs and planted faults, on real passes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import tiny_model, write_tiny_model

import minifer
from minifer.errors import ContextError, MiniferError
from minifer.observe.capture import Run, capture, kept_bytes
from minifer.observe.differences import allowed, compare
from minifer.op import RECORDING, REGISTRY
from minifer.rope import inverse_frequencies

IDS = [5, 100, 299, 7, 9, 31, 200, 4, 4, 77, 150, 260]
IN_A_LAYER = """rms_norm attention_norm, attend.linear query, attend.linear key, attend.linear value
attend.rope query, attend.rope key, attend.store key, attend.store value, attend.attention
attend.join, attend.linear output, attend, residual attended, rms_norm mlp_norm, mlp.linear gate
mlp.linear up, mlp.gate, mlp.linear down, mlp, residual output, block""".replace("\n", ", ")


def reference():
    return tiny_model(seed=3)


# ---- what a run shows --------------------------------------------------------------------------


def test_every_result_has_a_name_in_the_order_computed():
    layers = [f"layers.{i}.{name}" for i in range(3) for name in IN_A_LAYER.split(", ")]
    ends = ["rms_norm final_norm", "linear head"]
    found = capture(reference(), IDS, 5)
    assert list(found.parts) == ["rotation cos", "rotation sin", "embedding", *layers, *ends]


@pytest.mark.parametrize("chunk", [1, 5, 12])
def test_what_it_shows_is_what_the_model_computes(chunk):
    model, cache = reference(), reference().new_cache()
    found, logits = capture(model, IDS, chunk), model.forward(IDS, cache)
    assert np.allclose(found.array("linear head"), logits, atol=1e-4)
    keys = cache.keys[1, :, : len(IDS)].transpose(1, 0, 2).reshape(len(IDS), -1)
    values = cache.values[2, :, : len(IDS)].transpose(1, 0, 2).reshape(len(IDS), -1)
    assert np.allclose(found.array("layers.1.attend.store key"), keys, atol=1e-5)
    assert np.allclose(found.array("layers.2.attend.store value"), values, atol=1e-5)
    assert sum(found.array(name).nbytes for name in found.parts) == kept_bytes(model.config, 12)


def test_two_uses_of_one_weight_and_a_tied_head_are_told_apart():
    model = tiny_model(tie_word_embeddings=True)
    layer, found = model.layers[0], capture(model, IDS)
    assert "linear head" in found.parts and "embedding" in found.parts
    model.layers[0] = layer._replace(value=layer.key)
    try:
        names = list(capture(model, IDS).parts)
    finally:
        model.layers[0] = layer
    assert len(names) == len(found.parts) and "layers.0.attend.linear value 2" in names


def test_a_run_that_fails_leaves_nobody_watching():
    with pytest.raises(ContextError, match="129 tokens, the model's context holds 128; shorten"):
        capture(reference(), [1] * 129)
    with pytest.raises(MiniferError), reference().swap(gate=lambda xp, a, b: a[:1]):
        capture(reference(), IDS)
    assert RECORDING.get() is None


# ---- runs that are equal -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_model_equals_itself_bit_for_bit(dtype):
    found = compare(capture(tiny_model(dtype=dtype), IDS), capture(tiny_model(dtype=dtype), IDS))
    assert found.equal and found.equal_bits and len(found.ops) == 68
    assert (found.first_bit, found.first_beyond) == (None, None)
    assert (found.greedy, found.only_left, found.only_right) == ([], [], [])
    assert all(op.tolerances == op.difference == 0 and op.problem is None for op in found.ops)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_chunkings_are_equal_within_the_tolerance(data):
    ids = data.draw(st.lists(st.integers(0, 299), min_size=1, max_size=40))
    one, other = (data.draw(st.integers(1, 45)) for _ in range(2))
    found = compare(capture(reference(), ids, one), capture(reference(), ids, other))
    assert found.equal, found.first_beyond
    assert len(found.ops) == 68 and not any(op.problem for op in found.ops)


def test_kernels_and_dtypes_are_equal_within_the_tolerance(tmp_path):
    folder = write_tiny_model(tmp_path, dtype="BF16", seed=3)
    words = {kind: minifer.load(folder, kernels=kind) for kind in ("reference", "numpy")}
    runs = {kind: capture(model, IDS, 5) for kind, model in words.items()}
    assert compare(runs["reference"], runs["numpy"]).equal
    assert compare(capture(reference(), IDS), runs["numpy"]).equal


# ---- faults ------------------------------------------------------------------------------------


def slightly(result):
    return result * np.float32(1.001)


def at_call(name, number, wrong):
    """A swap that is the op itself but for one call, counted over a whole pass."""
    calls = iter(range(10**6))

    def function(xp, *args):
        result = REGISTRY[name].reference(xp, *args)
        return result if next(calls) != number else wrong(result)

    return {name: function}


FAULTS = {
    "embedding": ("embedding", 0),
    "layers.0.rms_norm attention_norm": ("rms_norm", 0),
    "layers.2.rms_norm mlp_norm": ("rms_norm", 5),
    "layers.1.attend.linear query": ("linear", 7),
    "layers.1.attend.linear key": ("linear", 8),
    "layers.1.attend.linear value": ("linear", 9),
    "layers.1.attend.linear output": ("linear", 10),
    "layers.2.mlp.linear gate": ("linear", 18),
    "layers.2.mlp.linear up": ("linear", 19),
    "layers.2.mlp.linear down": ("linear", 20),
    "layers.2.attend.rope query": ("rope", 4),
    "layers.2.attend.rope key": ("rope", 5),
    "layers.1.attend.attention": ("attention", 1),
    "layers.0.attend.join": ("join", 0),
    "layers.1.residual attended": ("residual", 2),
    "layers.1.residual output": ("residual", 3),
    "layers.0.mlp.gate": ("gate", 0),
    "rms_norm final_norm": ("rms_norm", 6),
    "linear head": ("linear", 21),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_first(name):
    op, number = FAULTS[name]
    left = capture(reference(), IDS)
    with reference().swap(**at_call(op, number, slightly)):
        found = compare(left, capture(reference(), IDS))
    assert found.first_beyond.name == found.first_bit.name == name
    assert found.first_beyond.tolerances > 4 and not found.equal and not found.equal_bits
    later = [op.name for op in found.ops]
    assert all(op.equal_bits for op in found.ops[: later.index(name)])
    again = compare(left, capture(reference(), IDS))
    assert again.equal_bits


def test_the_cache_is_compared():
    def store(xp, kept, new):
        kept[...] = new.transpose(1, 0, 2)
        kept[1, :, -1] = 0

    left = capture(reference(), IDS)
    with reference().swap(store=store):
        found = compare(left, capture(reference(), IDS))
    assert found.first_bit.name == found.first_beyond.name == "layers.0.attend.store key"
    assert found.first_beyond.element == 15 and found.first_beyond.right == 0


def test_a_swapped_group_is_compared_as_a_whole():
    left = capture(reference(), IDS)
    with reference().swap(mlp=lambda ops, layer, x: ops.linear(x, layer.gate)[:, :32]):
        found = compare(left, capture(reference(), IDS))
    assert found.first_beyond.name == "layers.0.mlp"
    assert "layers.2.mlp.linear down" in found.only_left and found.only_right == []


def test_one_weight_the_angles_and_the_mask():
    model, left = reference(), capture(reference(), IDS)
    layer, key = model.layers[2], np.array(model.layers[2].key)
    key[3, 5] += 0.05
    model.layers[2] = layer._replace(key=key)
    try:
        assert compare(left, capture(model, IDS)).first_bit.name == "layers.2.attend.linear key"
    finally:
        model.layers[2] = layer
    kept, rope = model.inverse_frequencies, model.config.rope
    turned = replace(rope, theta=1.01 * rope.theta)
    model.inverse_frequencies = inverse_frequencies(np, turned, model.config.head_dim)
    try:
        assert compare(left, capture(model, IDS)).first_beyond.name == "rotation cos"
    finally:
        model.inverse_frequencies = kept
    attention = REGISTRY["attention"].reference
    with model.swap(attention=lambda xp, q, k, v, at, seen: attention(xp, q, k, v, at, seen - 1)):
        found = compare(left, capture(model, IDS))
    assert found.first_beyond.name == "layers.0.attend.attention" and found.greedy


@pytest.mark.default_model
def test_the_default_model_runs_that_should_be_equal_and_faults():
    """The figures in the docstring of differences.py."""
    model = minifer.load("default", kernels="reference", offline=True)
    ids = model.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    left = capture(model, ids)

    def worst(other, chunk=512):
        found = compare(left, capture(other, ids, chunk))
        return max(op.tolerances for op in found.ops), found

    bfloat16 = minifer.load("default", dtype="bfloat16", offline=True)
    for other, chunk in ((model, 1), (model, 7), (bfloat16, 512), (bfloat16, 3)):
        tolerances, found = worst(other, chunk)
        assert found.equal and not found.greedy and tolerances < 0.55

    rms_norm = REGISTRY["rms_norm"].reference
    with model.swap(rms_norm=lambda xp, x, weight, epsilon: rms_norm(xp, x, weight, 1e-6)):
        found = worst(model)[1]
    assert found.first_beyond.name == "layers.0.rms_norm attention_norm"
    assert found.first_beyond.tolerances > 4
    layer, key = model.layers[12], np.array(model.layers[12].key)
    key[100, 77] *= 1.1
    model.layers[12] = layer._replace(key=key)
    found = worst(model)[1]
    assert found.first_beyond.name == "layers.12.attend.linear key"
    assert found.first_beyond.tolerances > 4


# ---- the tolerance, on results made by hand ----------------------------------------------------


def run_of(**results):
    found = Run()
    for name, values in results.items():
        found.take(name.replace("_", " "), np.array(values, np.float32))
    return found


def test_the_tolerance_of_rows():
    rows = np.array([[0.5, -1000], [2, 1], [-4, 0], [1, 1]], np.float32)
    # The median row's largest is 2 (the lower of 2 and 4): quiet rows are held to 8 times it.
    assert np.allclose(allowed("x", rows) / 5e-5, [1000, 16, 16, 16])
    assert np.allclose(allowed("x", rows[1:]) / 5e-5, 4)
    assert np.allclose(allowed("linear head", rows) / 2e-5, 1000)
    assert np.allclose(allowed("linear head", rows[1:]) / 2e-5, 5)
    assert np.allclose(allowed("x", np.array([[np.nan, 3], [np.inf, 1]])) / 5e-5, 3)
    long = np.ones((200, 2), np.float32)
    long[150] = 7
    assert np.allclose(allowed("x", long) / 5e-5, 7)


def test_the_largest_difference_and_where_it_is():
    left = np.ones((150, 3), np.float32)
    right = left.copy()
    right[70, 2] += 2e-4  # rows are compared 64 at a time: the last of them are equal
    right[7, 1] += 1e-4
    op = compare(run_of(x=left), run_of(x=right)).ops[0]
    assert (op.token, op.element, op.left, op.layer) == (70, 2, 1.0, None)
    assert op.difference == pytest.approx(2e-4, rel=1e-3)
    assert op.tolerances == pytest.approx(4, rel=1e-3) and not op.equal and not op.equal_bits


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_equal(wrong):
    good, bad = run_of(x=[[1, 2], [3, 4]]), run_of(x=[[1, wrong], [3, 4]])
    for left, right, counts in (
        (good, bad, "left 0, right 1"),
        (bad, good, "left 1, right 0"),
        (bad, bad, "left 1, right 1"),
    ):
        found = compare(left, right)
        assert not found.equal and found.first_beyond.tolerances == np.inf
        assert found.equal_bits is (left is right)
        assert (found.ops[0].token, found.ops[0].element) == (0, 1)
        assert found.ops[0].problem == f"values that are not finite: {counts}"


def test_bits_shapes_and_types():
    zero = compare(run_of(x=[[0.0, 1]]), run_of(x=[[-0.0, 1]]))
    assert zero.equal and not zero.equal_bits and zero.first_bit.difference == 0
    whole = Run()
    whole.take("x", np.array([[0, 0]], np.int32))
    assert compare(run_of(x=[[0, 0]]), whole).equal and whole.array("x").itemsize == 4
    assert not compare(run_of(x=[[0, 0]]), whole).equal_bits
    assert not compare(run_of(x=[[0, 0]]), run_of(x=[[0, 1e-30]])).equal
    for other, shape in (([[1, 2, 3]], "(1, 3)"), ([[1, 2]] * 3, "(3, 2)"), ([[1, 2]], "(1, 2)")):
        found = compare(run_of(x=[[1, 2]] * 2), run_of(x=other))
        assert found.ops[0].problem == f"shape (2, 2) against {shape}" and not found.equal
    with pytest.raises(MiniferError, match="no result in common"):
        compare(run_of(x=[[1]]), run_of(y=[[1]]))
    some = compare(run_of(x=[[1]], y=[[1]]), run_of(y=[[1]], z=[[1]]))
    assert (some.only_left, some.only_right) == (["x"], ["z"])


def test_the_likeliest_tokens():
    found = compare(run_of(linear_head=[[1, 2], [2, 1]]), run_of(linear_head=[[1, 2], [2, 3]]))
    assert found.greedy == [(1, 0, 1)] and found.by_layer()[0][0] == "logits"
    rows = np.zeros((150, 2))
    rows[130, 1] = 1
    assert compare(run_of(linear_head=0 * rows), run_of(linear_head=rows)).greedy == [(130, 0, 1)]
