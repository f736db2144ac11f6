"""Would the goldens notice? Break one thing at a time and look: every case it touches has to fail.

What a break does not touch (a bias that is not there) is left out by its condition, never by luck.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from golden.llama_cases import CASES, build, deviation, in_chunks, open_case, parts_of

from minifer.attention import attention
from minifer.kv_cache import store
from minifer.layers import linear, rms_norm
from minifer.mlp import gate
from minifer.rope import rope, rotation

NOTICED = 5  # tolerances; what passes stays below 0.2 of one


def worst(model, reference, sizes):
    logits = in_chunks(model, reference["ids_0"].tolist(), sizes)
    return deviation(logits, reference["logits_0"])


# ---- configuration -------------------------------------------------------------------------------


def other_rope(**changes):
    return lambda config: replace(config, rope=replace(config.rope, **changes))


def scaled(config):
    return config.rope.kind != "default"


def llama3(config):
    return config.rope.kind == "llama3"


CONFIG_BREAKS = {
    "theta 2 % off": (
        lambda c: replace(c, rope=replace(c.rope, theta=c.rope.theta * 1.02)),
        lambda c: c.head_dim > 2,  # the first pair turns by 1, whatever theta is
    ),
    "theta the default": (other_rope(theta=1e4), lambda c: c.rope.theta != 1e4 and c.head_dim > 2),
    "scaling dropped": (other_rope(kind="default"), scaled),
    "llama3 read as linear": (other_rope(kind="linear"), llama3),
    "factor 5 % off": (
        lambda c: replace(c, rope=replace(c.rope, factor=c.rope.factor * 1.05)),
        scaled,
    ),
    "low_freq_factor the default of another model": (other_rope(low_freq_factor=2.0), llama3),
    "high_freq_factor the default of another model": (other_rope(high_freq_factor=8.0), llama3),
    "original length from the context": (
        other_rope(original_max_position_embeddings=640),
        llama3,
    ),
    "epsilon 1e-6": (lambda c: replace(c, rms_norm_eps=1e-6), lambda c: c.rms_norm_eps > 1e-5),
    "epsilon none": (lambda c: replace(c, rms_norm_eps=1e-30), lambda c: c.rms_norm_eps > 1e-5),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_broken_passes(name):
    _, reference = open_case(name)
    assert worst(build(*parts_of(name)), reference, [9, 1]) <= 1


@pytest.mark.parametrize("what", CONFIG_BREAKS)
def test_a_wrong_switch_is_noticed(what):
    change, touches = CONFIG_BREAKS[what]
    touched = 0
    for name in CASES:
        config, weights = parts_of(name)
        if touches(config):
            touched += 1
            assert worst(build(change(config), weights), open_case(name)[1], [100]) > NOTICED, name
    assert touched


# ---- weights -------------------------------------------------------------------------------------


def without(part):
    return lambda w, c: {key: value for key, value in w.items() if not key.endswith(part)}


def exchanged(one, other):
    """The two tensors of every layer change places."""

    def change(weights, config):
        pairs = {f"layers.{i}.{a}": f"layers.{i}.{b}"
                 for i in range(config.num_hidden_layers)
                 for a, b in ((one, other), (other, one))}  # fmt: skip
        return {key: weights[pairs.get(key, key)] for key in weights}

    return change


def heads_interleaved(weights, config):
    """Rows of q and k in the order of GGUF files: pairs (2i, 2i + 1) instead of (i, i + E/2)."""
    E, changed = config.head_dim, dict(weights)
    order = np.arange(E).reshape(2, E // 2).T.reshape(-1)
    for key, value in weights.items():
        if key.endswith((".query", ".key", ".query_bias", ".key_bias")):
            heads = value.reshape(-1, E, *value.shape[1:])
            changed[key] = heads[:, order].reshape(value.shape)
    return changed


def heads_transposed(weights, config):
    """Query rows read as (E, H) instead of (H, E)."""
    E, changed = config.head_dim, dict(weights)
    for key, value in weights.items():
        if key.endswith(".query"):
            changed[key] = value.reshape(-1, E, value.shape[1]).swapaxes(0, 1).reshape(value.shape)
    return changed


def another_head(weights, config):
    head = weights.get("head", weights["embedding"])
    return {**weights, "head": head[::-1].copy()}


MLP_BIASES = ("gate_bias", "up_bias", "down_bias")
WEIGHT_BREAKS = {
    **{
        f"{part} dropped": (without(f".{part}"), lambda w, p=part: f"layers.0.{p}" in w)
        for part in ("query_bias", "key_bias", "value_bias", "output_bias", *MLP_BIASES)
    },
    "untied head taken for tied": (without("head"), lambda w: "head" in w),
    "head of other rows": (another_head, lambda w: True),
    "norms exchanged": (exchanged("attention_norm", "mlp_norm"), lambda w: True),
    "gate and up exchanged": (exchanged("gate", "up"), lambda w: True),
    "rows of q and k interleaved": (
        heads_interleaved,
        lambda w: w["layers.0.query"].shape[0] != 14,  # E = 2 has one pair only
    ),
    "rows of q transposed": (heads_transposed, lambda w: True),
    "final norm left out": (
        lambda w, c: {**w, "final_norm": np.ones(c.hidden_size, np.float32)},
        lambda w: True,
    ),
    "one weight four steps off": (
        lambda w, c: {**w, "layers.0.down": four_steps_off(w["layers.0.down"])},
        lambda w: w["layers.0.down"].dtype != np.float32,
    ),
}


def four_steps_off(words):
    """The largest weight of a 16-bit matrix moves by four of the numbers it can be."""
    changed = words.copy().view(np.uint16)
    place = np.abs(words.astype(np.float32) if words.dtype == np.float16 else words & 0x7FFF)
    changed.reshape(-1)[place.argmax()] += 4
    return changed.view(words.dtype)


@pytest.mark.parametrize("what", WEIGHT_BREAKS)
def test_a_wrong_weight_is_noticed(what):
    change, touches = WEIGHT_BREAKS[what]
    touched = 0
    for name in CASES:
        config, weights = parts_of(name)
        if touches(weights):
            touched += 1
            broken = build(config, change(weights, config))
            assert worst(broken, open_case(name)[1], [100]) > NOTICED, name
    assert touched


# ---- arithmetic, put in place with model.swap ----------------------------------------------------


def tiled(xp, query, key, value, query_positions, key_positions, *, tap=None):
    """Query head h reads KV head h % K instead of h // G."""
    H, K = query.shape[1], len(key)
    order = np.arange(H).reshape(H // K, K).T.reshape(-1)
    mixed = attention(xp, query[:, order], key, value, query_positions, key_positions)
    result = np.empty_like(mixed)
    result[:, order] = mixed
    return result


def see(query_shift=0, scale=1.0, window=None):
    """Attention with another mask or another scale."""

    def broken(xp, query, key, value, query_positions, key_positions, *, tap=None):
        places = key_positions.copy()
        if window is not None:
            places = np.where(places <= query_positions.max() - window, 10**6, places)
        return attention(xp, query * np.float32(scale), key, value,
                         query_positions + query_shift, places)  # fmt: skip

    return broken


def from_the_top_left(xp, query, key, value, query_positions, key_positions, *, tap=None):
    """A causal mask that forgets what is cached: only the square of the new tokens."""
    fresh = np.arange(len(query))
    return attention(xp, query, key, value, fresh, key_positions)


def gelu(xp, gate, up):
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return (0.5 * gate * (1 + np.tanh(inner)) * up).astype(np.float32)


def interleaved(xp, heads, cos, sin):
    turned = np.empty_like(heads)
    cos, sin = cos[:, None], sin[:, None]
    turned[..., ::2] = heads[..., ::2] * cos - heads[..., 1::2] * sin
    turned[..., 1::2] = heads[..., 1::2] * cos + heads[..., ::2] * sin
    return turned


def centred(xp, x, weight, epsilon):
    return rms_norm(xp, x - x.mean(axis=-1, keepdims=True), weight, epsilon)


def always(config):
    return True


SWAPS = {
    "GQA tiled": (
        {"attention": tiled},
        lambda c: 1 < c.num_key_value_heads < c.num_attention_heads,
    ),
    "the next token visible": ({"attention": see(query_shift=1)}, always),
    "a token blind to itself": ({"attention": see(query_shift=-1)}, always),
    "everything visible": ({"attention": see(query_shift=1000)}, always),
    "a window of five": ({"attention": see(window=5)}, always),
    "scale of one head less": ({"attention": see(scale=1.1)}, always),
    "mask of a chunk from the top left": ({"attention": from_the_top_left}, always),
    "no rope": ({"rope": lambda xp, heads, cos, sin: heads}, always),
    "rope backwards": ({"rope": lambda xp, heads, cos, sin: rope(xp, heads, cos, -sin)}, always),
    "rope interleaved": ({"rope": interleaved}, lambda c: c.head_dim > 2),
    "each chunk from position 0": (
        {"rotation": lambda xp, places, inverse: rotation(xp, places - places[0], inverse)},
        always,
    ),
    "tanh GELU instead of SiLU": ({"gate": gelu}, always),
    "gate and up in each other's place": ({"gate": lambda xp, g, up: gate(xp, up, g)}, always),
    "a residual left out": ({"residual": lambda xp, x, update: update}, always),
    "LayerNorm's mean taken off": ({"rms_norm": centred}, always),
    "a projection in half precision": (
        {"linear": lambda xp, x, w, b=None: linear(xp, x, w, b).astype("f2").astype("f4")},
        always,
    ),
    "keys stored one head on": (
        {"store": lambda xp, kept, new: store(xp, kept, np.roll(new, 1, axis=1))},
        lambda c: c.num_key_value_heads > 1,
    ),
}


@pytest.mark.parametrize("what", SWAPS)
def test_wrong_arithmetic_is_noticed(what):
    functions, touches = SWAPS[what]
    touched = 0
    for name in CASES:
        model, reference = open_case(name, "reference")
        if touches(model.config):
            touched += 1
            with model.swap(**functions):
                assert worst(model, reference, [9, 1]) > NOTICED, name
    assert touched
