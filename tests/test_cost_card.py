"""The cost card: published reference values to the digit, and the sums of passes.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minifer.config import ModelConfig, RopeConfig
from minifer.errors import ContextError, MiniferError
from minifer.observe import passes
from minifer.observe.cost_card import (
    attention_layer,
    cost_card,
    key_product_flops,
    layer_rows,
    linear_layer,
    parameter_split,
)
from minifer.observe.devices import Device, find_device
from minifer.observe.prediction import ceiling, cost_per_million, memory_floor


def config(V, D, F, L, H, K, E=None, context=4096, **more):
    """A llama of these letters."""
    return ModelConfig(
        "llama", V, D, F, L, H, K, E or D // H, context, 1e-5, RopeConfig(), **more
    )  # fmt: skip


LLAMA_2_7B = config(32000, 4096, 11008, 32, 32, 32)
MODELS = {
    "Llama-2-7B": LLAMA_2_7B,
    "Llama-2-70B": config(32000, 8192, 28672, 80, 64, 8),
    "Llama-3-8B": config(128256, 4096, 14336, 32, 32, 8, context=8192),
    "TinyLlama-1.1B": config(32000, 2048, 5632, 22, 32, 4, context=2048),
    "SmolLM2-135M": config(49152, 576, 1536, 30, 9, 3, context=8192, tie_word_embeddings=True),
}
FIGURES = {
    "Llama-2-7B": (6_738_415_616, 6_607_077_376, 524_288, 524_288),
    "Llama-2-70B": (68_976_648_192, 68_713_185_280, 327_680, 2_621_440),
    "Llama-3-8B": (8_030_261_248, 7_504_658_432, 131_072, 524_288),
    "TinyLlama-1.1B": (1_100_048_384, 1_034_420_224, 22_528, 180_224),
    "SmolLM2-135M": (134_515_008, 134_479_872, 23_040, 69_120),
}


# ---- reference values --------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_models_of_the_table(name):
    card = cost_card(MODELS[name], "float16")
    found = (
        card.parameters,
        card.matmul_parameters,
        card.kv_bytes_per_token,
        card.attention_flops_per_context_token,
    )
    assert found == FIGURES[name]
    assert card.weight_bytes == 2 * card.parameters


def test_the_matrices_of_llama_2_7b():
    rows = {row.name: row for row in layer_rows(cost_card(LLAMA_2_7B, "float16", None, 2048))}
    expected = {"query": ("68.72", "67.11", "1024.0"), "gate": ("184.68", "152.04", "1214.7")}
    for name, figures in expected.items():
        work = rows[name].prefill
        shown = f"{work.flops / 1e9:.2f}", f"{work.bytes / 1e6:.2f}", f"{work.intensity:.1f}"
        assert shown == figures
        assert linear_layer(rows[name].inputs, rows[name].outputs, 2048, 2, 2) == work
    assert f"{key_product_flops(LLAMA_2_7B, 2048, 0, hidden_too=True) / 1e9:.2f}" == "34.36"
    visible = key_product_flops(LLAMA_2_7B, 2048, 0)
    assert 2 * visible == rows["attention"].prefill.flops == 4 * 4096 * 2048 * 2049 // 2


@pytest.mark.parametrize("S", [1, 100, 4095])
def test_decode_of_full_heads_at_16_bits_does_one_flop_per_byte(S):
    """Counting weights of matrices and KV reads alone, as the reference does."""
    card = cost_card(LLAMA_2_7B, "float16", None, 1, S)
    flops = 2 * card.matmul_parameters + card.attention_flops_per_context_token * S
    assert flops / (2 * card.matmul_parameters + card.kv_bytes_per_token * S) == 1.0
    assert card.decode.kv_bytes_read == card.kv_bytes_per_token * S
    assert card.decode.flops == flops + card.attention_flops_per_context_token


@given(S=st.integers(1, 100_000), K=st.integers(1, 8), G=st.integers(1, 8))
def test_a_decode_attention_does_at_most_g_flops_per_byte(S, K, G):
    c = config(10, 64, 16, 2, K * G, K, 8, context=200_000)
    assert attention_layer(c, 1, S - 1, 2, 2).intensity == pytest.approx(S * G / (S + G))
    assert attention_layer(c, 1, S - 1, 4, 4).intensity == pytest.approx(S * G / (S + G) / 2)
    rows = {row.name: row for row in layer_rows(cost_card(c, "float16", None, 1, S - 1, batch=9))}
    assert rows["attention"].decode.intensity == pytest.approx(S * G / (S + G)), "whatever B"


def test_a_small_batch_of_a_linear_layer_does_two_t_over_w():
    assert linear_layer(4096, 4096, 1, 2, 2).intensity == pytest.approx(1, rel=1e-3)
    assert linear_layer(4096, 4096, 4, 4, 4).intensity == pytest.approx(2, rel=3e-3)


@pytest.mark.parametrize(
    ("batch", "ms"),
    [(1, 4.98), (8, 12.13), (16, 20.30), (32, 36.65), (64, 69.33), (240, 249.09)],
)
def test_the_step_times_of_the_scaling_book(batch, ms):
    """Llama-2-13B in the dtype and on the chips of the book: its bytes, its bandwidth."""
    assert f"{1e3 * memory_floor(26e9, batch * 6.7e9, 6.56e12):.2f}" == f"{ms:.2f}"


@pytest.mark.parametrize(("name", "ridge"), [("A100-80G", 153), ("H100-SXM", 295)])
def test_the_ridges(name, ridge):
    device = find_device(name)
    found = ceiling(cost_card(LLAMA_2_7B, "float16"), device)
    assert round(found.ridge) == ridge and found.ridge == device.ridge("float16")
    assert found.batch_at_ridge == ridge + 1  # the first whole batch beyond 153.02 and 295.3


# ---- definitions, and the sums of passes.py ----------------------------------------------------

CONFIGS = st.builds(
    lambda V, D, F, L, K, G, half, **flags: config(V, D, F, L, K * G, K, 2 * half, 64, **flags),
    *[st.integers(1, 40)] * 3,
    *[st.integers(1, 4)] * 3,
    half=st.integers(1, 8),
    attention_bias=st.booleans(),
    mlp_bias=st.booleans(),
    tie_word_embeddings=st.booleans(),
)
DTYPES = st.sampled_from(["float32", "float16", "bfloat16"])
SETTINGS = {
    "c": CONFIGS, "dtype": DTYPES, "kv_dtype": DTYPES,
    "T": st.integers(1, 64), "S": st.integers(0, 63), "B": st.integers(1, 5),
}  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(**SETTINGS)
def test_a_card_is_the_sum_of_the_ops_of_a_pass(c, dtype, kv_dtype, T, S, B):
    card = cost_card(c, dtype, kv_dtype, T, S, B)
    prefill = passes.total(passes.pass_costs(c, [(T, 0)], dtype))
    decode = passes.total(passes.pass_costs(c, [(1, S)] * B, dtype))
    assert card.prefill.flops == passes.matmul_flops(c, [(T, 0)])
    assert card.prefill.flops + card.prefill.elementwise_flops == prefill.flops
    assert card.decode.flops == passes.matmul_flops(c, [(1, S)] * B)
    assert card.decode.flops + card.decode.elementwise_flops == decode.flops
    assert card.prefill.weight_bytes == prefill.weight_bytes
    assert card.decode.weight_bytes == decode.weight_bytes
    # Our pass keeps KV in float32 and reads back the rows it has just written: S + 1, not S.
    float32 = cost_card(c, dtype, "float32", T, S, B)
    row = float32.kv_bytes_per_token
    assert float32.prefill.kv_bytes_written == prefill.kv_bytes_written == row * T
    assert float32.prefill.kv_bytes_read == prefill.kv_bytes_read - row * T == 0
    assert float32.decode.kv_bytes_written == decode.kv_bytes_written == row * B
    assert float32.decode.kv_bytes_read == decode.kv_bytes_read - row * B == row * S * B


@settings(max_examples=200, deadline=None)
@given(**SETTINGS)
def test_the_definitions(c, dtype, kv_dtype, T, S, B):
    V, D, F, L = c.vocab_size, c.hidden_size, c.intermediate_size, c.num_hidden_layers
    H, K, E = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    w, k = passes.itemsize(dtype), passes.itemsize(kv_dtype)
    layer = 2 * D * H * E + 2 * D * K * E + 3 * D * F
    biases = L * (c.attention_bias * (H * E + 2 * K * E + D) + c.mlp_bias * (2 * F + D))
    P_mm, norms = L * layer + V * D, (2 * L + 1) * D
    card, one = cost_card(c, dtype, kv_dtype, T, S, B), cost_card(c, dtype, kv_dtype, T, S)
    assert card.matmul_parameters == P_mm
    assert card.parameters == P_mm + norms + biases + (0 if c.tie_word_embeddings else V * D)
    assert card.weight_bytes == w * card.parameters
    assert card.kv_bytes_per_token == k * 2 * L * K * E
    assert card.attention_flops_per_context_token == 4 * H * E * L
    assert card.prefill.flops == 2 * T * L * layer + 2 * V * D + 4 * H * E * L * T * (T + 1) // 2
    assert one.decode.flops == 2 * P_mm + 4 * H * E * L * (S + 1)
    assert one.decode.bytes == w * (P_mm + norms + biases + D) + k * 2 * L * K * E * (S + 1)
    more = (B - 1) * (w * D + k * 2 * L * K * E * (S + 1))
    assert card.decode.bytes == one.decode.bytes + more, "the matrices once for all sequences"
    assert card.decode.flops == B * one.decode.flops and card.prefill == one.prefill
    assert card.decode.elementwise_flops == B * one.decode.elementwise_flops
    assert card.decode.intensity == card.decode.flops / card.decode.bytes


@given(**SETTINGS)
def test_the_rows_of_a_layer_add_up_to_the_pass(c, dtype, kv_dtype, T, S, B):
    card, L = cost_card(c, dtype, kv_dtype, T, S, B), c.num_hidden_layers
    for phase in ("prefill", "decode"):
        flops = {row.name: getattr(row, phase).flops for row in layer_rows(card)}
        head = flops.pop("head")
        assert L * sum(flops.values()) + head == getattr(card, phase).flops
    matrices = [row.inputs * row.outputs for row in layer_rows(card) if row.name != "attention"]
    assert L * sum(matrices[:-1]) + matrices[-1] == card.matmul_parameters
    split = parameter_split(c)
    assert sum(split.values()) == card.parameters
    assert (split["head"] == 0) == c.tie_word_embeddings


# ---- lengths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "asked", "found"),
    [
        (4096, (None, None), (512, 512)),
        (512, (None, None), (512, 511)),
        (100, (None, None), (100, 99)),
        (1, (None, None), (1, 0)),
        (4096, (4096, None), (4096, 4095)),
        (4096, (7, None), (7, 7)),
        (4096, (None, 4095), (512, 4095)),
        (4096, (4096, 0), (4096, 0)),
    ],
)
def test_lengths_nobody_names_are_what_the_context_has_room_for(limit, asked, found):
    card = cost_card(config(30, 8, 8, 2, 2, 1, context=limit), "float32", None, *asked)
    assert (card.prompt_tokens, card.context) == found


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ((101, None), "a prompt of 101 tokens: this model takes 1 to 100"),
        ((0, None), "a prompt of 0 tokens: this model takes 1 to 100"),
        ((None, 100), "100 tokens cached needs 101 places: the model's context is 100, so 0 to 99"),
        ((None, -1), "so 0 to 99 may be cached"),
        ((5.5, None), "a prompt of 5.5 tokens: this model takes 1 to 100"),
        ((True, None), "a prompt of True tokens"),
        ((None, "7"), "a decode step with '7' tokens cached: the model's context is 100, so 0 to"),
    ],
)
def test_lengths_beyond_the_context(lengths, said):
    with pytest.raises(ContextError, match=said):
        cost_card(config(30, 8, 8, 2, 2, 1, context=100), "float32", None, *lengths)


WRONG = [("dtype", "int8"), ("kv_dtype", "fp8"), ("kv_dtype", ""), ("batch", 0), ("batch", 1.5)]


@pytest.mark.parametrize("wrong", [*WRONG, ("dtype", ["x"]), ("batch", "2")])
def test_settings_that_are_none(wrong):
    with pytest.raises(MiniferError, match=f"^(kv_)?{wrong[0].removeprefix('kv_')} is .* ?allowed"):
        cost_card(LLAMA_2_7B, **dict([wrong]))


# ---- ceilings ----------------------------------------------------------------------------------


def device(peak=1e12, bandwidth=1e10, memory=1e9):
    return Device("Toy", "gpu", {"float16": peak}, bandwidth, memory, "a toy shop")


def test_a_floor_is_the_later_of_two_roofs():
    card = cost_card(LLAMA_2_7B, "float16", None, 512, 512, 4)
    found = ceiling(card, device())
    assert (found.prefill_roof, found.decode_roof) == ("compute", "memory")
    assert found.ttft_seconds == card.prefill.flops / 1e12 > card.prefill.bytes / 1e10
    assert found.itl_seconds == card.decode.bytes / 1e10 > card.decode.flops / 1e12
    assert found.prefill_tokens_per_second == 512 / found.ttft_seconds
    assert found.decode_tokens_per_second == 4 / found.itl_seconds
    slow, wide = ceiling(card, device(bandwidth=1e7)), ceiling(card, device(bandwidth=1e15))
    assert (slow.prefill_roof, wide.decode_roof) == ("memory", "compute")
    assert wide.itl_seconds == card.decode.flops / 1e12


def test_a_device_without_the_dtype_still_says_what_fits():
    card = cost_card(MODELS["SmolLM2-135M"], "bfloat16", None, 512, 511)
    found = ceiling(card, device())
    assert found.peak_flops is found.ridge is found.batch_at_ridge is None
    assert found.ttft_seconds is found.itl_seconds is found.decode_roof is None
    assert (
        found.fits
        and found.sequences_that_fit
        == ceiling(cost_card(card.config, "float16", None, 512, 511), device()).sequences_that_fit
    )


@given(memory=st.integers(1, 4 * 10**9), S=st.integers(0, 4095), B=st.integers(1, 300))
def test_sequences_that_fit_are_the_most_that_do(memory, S, B):
    card = cost_card(MODELS["SmolLM2-135M"], "float16", None, 1, S, B)
    found = ceiling(card, device(memory=float(memory)))

    def needed(sequences):
        return card.weight_bytes + sequences * card.kv_bytes_per_token * (S + 1)

    most = found.sequences_that_fit
    assert needed(most + 1) > memory and (most == 0 or needed(most) <= memory)
    assert found.fits == (needed(B) <= memory)


@pytest.mark.parametrize(("dtype", "first"), [("float16", 100), ("float32", 200)])
def test_the_batch_at_which_linear_layers_reach_the_ridge(dtype, first):
    """2B FLOPs for the w bytes of a weight; the ridge of the toy is 100."""
    toy = device()._replace(peak_flops={"float16": 1e12, "float32": 1e12})
    assert ceiling(cost_card(LLAMA_2_7B, dtype), toy).batch_at_ridge == first


def test_the_price_of_a_million_tokens():
    assert cost_per_million(3.6, 1000.0) == pytest.approx(1.0)
    assert cost_per_million(7.2, 500.0) == pytest.approx(4.0)
