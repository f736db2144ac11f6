"""observe/training_ledger.py, against bytes that torch's autograd really saved, and papers."""

import ast
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minifer
from minifer.config import ModelConfig, RopeConfig
from minifer.errors import ContextError, MiniferError
from minifer.families import llama
from minifer.observe import training_ledger as module
from minifer.observe.training_ledger import (
    POLICIES,
    VARIANTS,
    activation_ledger,
    parameters,
    training_ledger,
)

GOLDEN = json.loads(
    (Path(__file__).parent / "golden" / "training_ledger.json").read_text(encoding="utf-8")
)


def config_of(V, D, F, L, H, K, E, context=8192, **flags):
    rope = RopeConfig()
    return ModelConfig("llama", V, D, F, L, H, K, E, context, 1e-5, rope, **flags)


def golden_config(sizes):
    rest = {"family": "llama", "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    return ModelConfig(**sizes, **rest, rope=RopeConfig())


# V, D, F, L, H, K, E; the parameters are those of shared/facts/metrics.md.
MODELS = {
    "Llama-2-7B": (6_738_415_616, (32000, 4096, 11008, 32, 32, 32, 128)),
    "Llama-2-70B": (68_976_648_192, (32000, 8192, 28672, 80, 64, 8, 128)),
    "Llama-3-8B": (8_030_261_248, (128256, 4096, 14336, 32, 32, 8, 128)),
    "TinyLlama-1.1B": (1_100_048_384, (32000, 2048, 5632, 22, 32, 4, 64)),
    "SmolLM2-135M": (134_515_008, (49152, 576, 1536, 30, 9, 3, 64)),
}
SEVEN = config_of(*MODELS["Llama-2-7B"][1])


def model_config(name):
    return config_of(*MODELS[name][1], tie_word_embeddings=name.startswith("SmolLM2"))


# What torch's autograd saved


def measurements():
    for case in GOLDEN["cases"]:
        for row in case["measured"]:
            name = f"{case['name']}-{row['dtype']}-{row['sequences']}-{row['activations']}"
            yield pytest.param(case, row, id=name)


def ledger_of(case, row, variant):
    tokens = case["length"] * row["sequences"]
    config = golden_config(case["config"])
    return activation_ledger(config, tokens, row["sequences"], variant, row["activations"])


def saved(ops):
    return {name: size for name, size in ops.items() if size}


@pytest.mark.parametrize(("case", "row"), list(measurements()))
def test_every_op_keeps_what_autograd_saves_to_the_byte(case, row):
    for variant in ("float32",) if row["dtype"] == "float32" else ("2-byte", "fp32-master"):
        ledger, measured = ledger_of(case, row, variant), row["minimal"]
        assert saved(ledger.shared) == measured["shared"]
        assert saved(ledger.per_layer) == measured["per_layer"]
        assert saved(ledger.loss) == measured["loss"]
        assert ledger.layers == case["config"]["num_hidden_layers"]
        # Over a forward and a backward pass, layers computed again: the most held at one time.
        assert ledger.total == measured["peak"]


@pytest.mark.parametrize(("case", "row"), list(measurements()))
def test_stock_torch_keeps_more_by_what_the_docstring_says(case, row):
    sizes, t = case["config"], case["length"]
    T, H, E = t * row["sequences"], sizes["num_attention_heads"], sizes["head_dim"]
    D, F = sizes["hidden_size"], sizes["intermediate_size"]
    e = 4 if row["dtype"] == "float32" else 2
    norm = 8 * T * D + 4 * T
    stock, minimal = row["stock"], row["minimal"]
    assert stock["shared"] == minimal["shared"]
    more = {"final_norm": norm, "cross_entropy": minimal["loss"]["cross_entropy"] + 4}
    assert stock["loss"] == minimal["loss"] | more
    more = {"attention_norm": norm, "mlp_norm": norm, "gate": 3 * e * T * F}
    if row["activations"] == "kept":
        more["attention"] = 12 * T * H * E + 4 * H * T * t
    if row["activations"] == "checkpointed":
        more = {}
    assert stock["per_layer"] == minimal["per_layer"] | more
    assert stock["peak"] > minimal["peak"]
    assert "(8*T*D + 4*T)" in module.__doc__ and "(3*e*T*F)" in module.__doc__
    assert "(12*T*H*E + 4*H*T*t)" in module.__doc__


def test_the_golden_covers_both_peaks_of_a_checkpointed_step_and_every_switch():
    peaks = set()
    for case in GOLDEN["cases"]:
        for row in case["measured"]:
            if row["activations"] == "checkpointed":
                ledger = ledger_of(case, row, "float32")
                peaks.add(sum(ledger.loss.values()) > sum(ledger.recomputed.values()))
    assert peaks == {True, False}
    configs = [golden_config(case["config"]) for case in GOLDEN["cases"]]
    assert {config.tie_word_embeddings for config in configs} == {True, False}
    assert {config.mlp_bias for config in configs} == {True, False}
    groups = {config.num_attention_heads // config.num_key_value_heads for config in configs}
    assert groups == {1, 2, 3}
    assert any(c.num_attention_heads * c.head_dim != c.hidden_size for c in configs)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_gradients_and_moments_are_those_of_torch_after_a_step(case, variant):
    config = golden_config(case["config"])
    assert parameters(config) == case["parameters"]
    ledger = training_ledger(config, 4, variant=variant)
    for name, size in case["states"][variant].items():
        assert getattr(ledger, name) == size, name


# Parameters and known totals


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_published_models(name):
    assert parameters(model_config(name)) == MODELS[name][0]


sizes = st.integers(1, 40)
configs = st.builds(
    lambda V, D, F, L, K, G, E, **flags: config_of(V, D, F, L, K * G, K, 2 * E, **flags),
    *(sizes, sizes, sizes, st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), sizes),
    attention_bias=st.booleans(),
    mlp_bias=st.booleans(),
    tie_word_embeddings=st.booleans(),
)


@given(configs)
def test_parameters_are_the_elements_of_the_familys_tensors(config):
    shapes = [shape for _, shape in llama.tensors(config).values()]
    assert parameters(config) == sum(math.prod(shape) for shape in shapes)


def test_bytes_per_parameter():
    count = MODELS["Llama-2-7B"][0]
    for variant, each in (("2-byte", 8), ("fp32-master", 16), ("float32", 16)):
        ledger = training_ledger(SEVEN, 4096, variant=variant)
        assert ledger.total - ledger.activations == each * count == sum(ledger[:5])
    assert (
        training_ledger(SEVEN, 1, variant="2-byte")[:5]
        == (2 * count, 2 * count, 0) + (2 * count,) * 2
    )
    assert round(8 * count / 1e9, 1) == 53.9 and round(16 * count / 1e9, 1) == 107.8
    assert training_ledger(SEVEN, 4096).master_weights == 4 * count
    assert training_ledger(SEVEN, 4096, variant="float32").master_weights == 0


def test_one_layer_of_korthikanti_without_dropout():
    """Reducing Activation Recomputation in Large Transformer Models, section 4.1, in its letters:
    per layer s*b*h*(34 + 5*a*s/h), of it 2*s*b*h + 3*a*s*s*b dropout. We add the norms' rows."""
    for s, b, a, E in ((128, 1, 4, 24), (64, 3, 12, 32), (2048, 2, 96, 128)):
        h = a * E
        config = config_of(100, h, 8 * h // 3, 5, a, a, E)
        theirs = 34 * s * b * h + 5 * a * s * s * b
        dropout = 2 * s * b * h + 3 * a * s * s * b
        ours = sum(activation_ledger(config, s * b, b).per_layer.values())
        assert ours == theirs - dropout + 8 * s * b
    assert "(32 + 2*a*s/h) + 8*s*b" in activation_ledger.__doc__


# Properties


@settings(deadline=None)
@given(
    *(configs, st.integers(1, 50), st.integers(1, 4)),
    *(st.sampled_from(list(VARIANTS)), st.sampled_from(POLICIES)),
)
def test_more_tokens_hold_more_and_each_layer_adds_the_same(config, each, n, variant, policy):
    def total(config, tokens, sequences):
        return training_ledger(config, tokens, sequences, variant, policy).total

    def deeper(by):
        return dataclasses.replace(config, num_hidden_layers=config.num_hidden_layers + by)

    T = each * n
    assert total(config, T, n) < total(config, T + n, n)  # longer
    assert total(config, T, n) < total(config, T + each, n + 1)  # more of them
    shallow, middle, deep = (total(deeper(by), T, n) for by in (0, 1, 2))
    assert shallow < middle and deep - middle == middle - shallow
    alone = activation_ledger(config, each, 1, variant, policy).total
    assert activation_ledger(config, T, n, variant, policy).total == n * alone


@given(configs, st.integers(1, 50), st.integers(1, 4), st.sampled_from(list(VARIANTS)))
def test_each_policy_keeps_no_more_than_the_one_before(config, each, n, variant):
    kept, flash, checkpointed = (
        activation_ledger(config, each * n, n, variant, policy) for policy in POLICIES
    )
    assert checkpointed.total <= flash.total
    # A square of one or two weights is smaller than the log-sum-exp that replaces it.
    per_row = config.num_hidden_layers * config.num_attention_heads * each * n
    saving = VARIANTS[variant].weight * each - 4
    assert kept.total - flash.total == per_row * saving
    for ledger in (kept, flash, checkpointed):
        parts = ledger.shared | ledger.per_layer | ledger.loss | ledger.recomputed
        assert all(type(size) is int and size >= 0 for size in parts.values())


def test_sequences_are_told_apart():
    long, short = (training_ledger(SEVEN, 8192, n).activations for n in (1, 8))
    squares = 2 * 32 * 32 * 8192  # e, L, H, T
    assert long - short == squares * (8192 - 1024)


# Tables and refusals


def test_tables_are_narrow_and_add_up():
    huge = dataclasses.replace(SEVEN, num_hidden_layers=10_000, max_position_embeddings=2**24)
    for config, tokens in ((SEVEN, 4096), (huge, 2**24)):
        for policy in POLICIES:
            parts = activation_ledger(config, tokens, 1, "float32", policy)
            whole = training_ledger(config, tokens, 1, "float32", policy)
            lines = [*parts.lines(), *whole.lines()]
            assert max(map(len, lines)) < 78
            assert f"{parts.total:,}" in parts.lines()[-1]
            assert parts.total == whole.activations
            assert whole.lines()[-1].split() == ["total", f"{whole.total:,}", "100.0", "%"]
    assert sum(whole[:-1]) == whole.total
    assert "first moment" in whole.lines()[4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {"hidden_size": 8}}, r"config is \{'hidden_size': 8\}; allowed is a Model"),
        ({"tokens": 0}, "tokens is 0; allowed is a whole number from 1"),
        ({"tokens": 2.5}, "tokens is 2.5; allowed is a whole number from 1"),
        ({"tokens": True}, "tokens is True; allowed is a whole number from 1"),
        ({"sequences": -1}, "sequences is -1; allowed is a whole number from 1"),
        ({"sequences": 3}, "16 tokens in 3 sequences; allowed is a multiple of 3"),
        (
            {"tokens": 3 * 8193, "sequences": 3},
            "a sequence has 8193 tokens; allowed are at most 8192",
        ),
        ({"variant": "fp8"}, "variant is 'fp8'; allowed are 2-byte, fp32-master, float32"),
        ({"variant": ["2-byte"]}, r"variant is \['2-byte'\]; allowed are"),
        ({"activations": None}, "activations is None; allowed are kept, flash, checkpointed"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    arguments = {"config": SEVEN, "tokens": 16} | change
    for function in (training_ledger, activation_ledger):
        with pytest.raises(MiniferError, match=message):
            function(**arguments)


def test_a_sequence_longer_than_the_context_is_a_context_error():
    with pytest.raises(ContextError):
        training_ledger(SEVEN, 3 * 8193, 3)
    training_ledger(SEVEN, 3 * 8192, 3)


def test_numpys_whole_numbers_are_taken_and_do_not_overflow():
    config = dataclasses.replace(SEVEN, max_position_embeddings=2**31)
    tokens = 2**30
    found = training_ledger(config, np.int32(tokens), np.int32(1))
    assert found == training_ledger(config, tokens)
    assert all(type(size) is int for size in found)


def test_it_makes_no_array():
    path = Path(minifer.__file__).parent / "observe" / "training_ledger.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {"numpy", "torch"} & {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.module in ("typing", "checks", "config", "errors", "passes")
