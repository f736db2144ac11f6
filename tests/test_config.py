"""config.py and families/llama.py: what config.json may say, and what is refused by name."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import CONFIG

from minifer.config import RopeConfig
from minifer.errors import ConfigError
from minifer.families import family_of
from minifer.load import read_model_config


def read(changes=(), **more):
    data = CONFIG | dict(changes) | more
    return family_of(data, "config.json").read_config(data, "config.json")


def without(*keys):
    return {key: value for key, value in CONFIG.items() if key not in keys}


def test_the_tiny_configuration():
    config = read()
    assert (config.family, config.vocab_size, config.hidden_size) == ("llama", 300, 32)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 8)
    assert config.rope == RopeConfig(10000.0) and config.rms_norm_eps == 1e-5
    assert config.bos_token_id == 1 and config.eos_token_ids == {2}
    assert config.kv_elements_per_token == 2 * 3 * 2 * 8
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.vocab_size = 1


OPTIONAL = [
    *("num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "rope_parameters"),
    *("hidden_act", "tie_word_embeddings", "attention_bias", "mlp_bias", "bos_token_id"),
    *("eos_token_id", "rms_norm_eps", "max_position_embeddings", "quantization_config"),
]


def test_null_is_absent():
    read_config = family_of(CONFIG, "x").read_config
    absent = read_config(without(*OPTIONAL), "x")
    assert read_config(CONFIG | dict.fromkeys(OPTIONAL), "x") == absent
    assert absent.num_key_value_heads == 4 and absent.head_dim == 8
    assert absent.bos_token_id is None and absent.eos_token_ids == frozenset()


REQUIRED = [
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    "num_attention_heads",
]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(key):
    for data in (without(key), CONFIG | {key: None}):
        with pytest.raises(ConfigError, match=f"^here: the key {key} is missing$"):
            family_of(data, "here").read_config(data, "here")


@pytest.mark.parametrize("value", [True, 2.0, "2", [2], {"a": 2}, 0, -1, 2**31, 10**400, ""])
@pytest.mark.parametrize(
    "key", [*REQUIRED, "num_key_value_heads", "head_dim", "max_position_embeddings"]
)
def test_sizes_are_whole_numbers(key, value):
    with pytest.raises(ConfigError, match=f"^config.json: {key} is .*a whole number from 1 to "):
        read({key: value})


def test_a_stack_of_layers_nobody_could_hold_is_refused_at_once():
    with pytest.raises(
        ConfigError, match=r"num_hidden_layers is 2147483647, expected .* to 10000$"
    ):
        read(num_hidden_layers=2**31 - 1)


@pytest.mark.parametrize("value", [True, "1e-5", [1], 0, -1e-5, float("nan"), float("inf"), 1e31])
@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta", "partial_rotary_factor"])
def test_numbers_are_finite_and_above_zero(key, value):
    with pytest.raises(ConfigError, match=f"^config.json: {key} is .*, expected a number above"):
        read({key: value})


@pytest.mark.parametrize("value", [0, 1, "true", [], 1.0])
@pytest.mark.parametrize("key", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
def test_flags_are_true_or_false(key, value):
    with pytest.raises(ConfigError, match=f"{key} is .*, expected true or false"):
        read({key: value})


def test_heads_and_widths_have_to_fit():
    with pytest.raises(
        ConfigError, match=r"num_attention_heads is 5, expected a divisor of hidden"
    ):
        read(num_attention_heads=5, head_dim=None)
    with pytest.raises(ConfigError, match=r"num_attention_heads is 64, expected a divisor"):
        read(num_attention_heads=64, head_dim=None)
    with pytest.raises(
        ConfigError, match=r"num_key_value_heads is 3, expected a divisor of num_at"
    ):
        read(num_key_value_heads=3)
    with pytest.raises(ConfigError, match=r"num_key_value_heads is 8, expected a divisor"):
        read(num_key_value_heads=8)
    with pytest.raises(ConfigError, match=r"head_dim is 7, expected an even number"):
        read(head_dim=7)
    assert read(num_attention_heads=5, num_key_value_heads=1, head_dim=8).head_dim == 8


@pytest.mark.parametrize("kind", [None, "gpt2", "", 3, ["llama"], {"llama": 1}, "LLAMA"])
def test_an_unknown_family_is_told_what_is_known(kind):
    with pytest.raises(ConfigError, match=r"model_type is .*; this version knows llama"):
        read(model_type=kind)


def test_an_endless_value_is_not_echoed_whole():
    long = "x" * 10_000_000
    for key in ("model_type", "hidden_act", "vocab_size", "tie_word_embeddings", "rope_scaling"):
        with pytest.raises(ConfigError, match=f"{key} is 'xxx") as caught:
            read({key: long})
        assert len(str(caught.value)) < 200
    for scaling in ({"type": long}, {long: {}}):
        with pytest.raises(ConfigError, match="rope_scaling: ") as caught:
            read(rope_scaling=scaling)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", ["gelu", "gelu_new", "relu", 3, ["silu"], {}])
def test_only_silu(value):
    with pytest.raises(ConfigError, match=r"hidden_act is .*, expected silu"):
        read(hidden_act=value)


def test_quantised_weights_are_refused_and_the_message_stays_short():
    quantised = {"quant_method": "gptq", "modules": ["layer"] * 1000}
    with pytest.raises(ConfigError, match=r"quantization_config is .*quantised weights") as caught:
        read(quantization_config=quantised)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [-1, 300, 2**70, "2", [2, "3"], [[2]], {"id": 2}, True, 2.0])
def test_token_ids_are_in_the_vocabulary(value):
    for key in ("eos_token_id", "bos_token_id"):
        with pytest.raises(ConfigError, match=f"{key} is .*, expected a token id from 0 to 299, o"):
            read({key: value})


def test_several_eos_ids():
    assert read(eos_token_id=[2, 0, 2]).eos_token_ids == {0, 2}
    assert read(eos_token_id=[]).eos_token_ids == frozenset()


# ---- rope ---------------------------------------------------------------------------------------

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("section", ["rope_scaling", "rope_parameters"])
def test_both_spellings_of_both_names(section, key):
    assert read({section: {key: "linear", "factor": 2}}).rope == RopeConfig(1e4, "linear", 2.0)
    assert read({section: {key: "default"}}).rope == RopeConfig(1e4)
    assert read({section: {key: "llama3", **LLAMA3}}).rope == RopeConfig(
        1e4, "llama3", 8.0, 1.0, 4.0, 64
    )


def test_theta_inside_or_outside():
    assert read(rope_theta=5e5).rope.theta == 5e5
    assert read(rope_theta=None, rope_parameters={"rope_theta": 5e5}).rope == RopeConfig(5e5)
    assert read(rope_scaling={}).rope == read(rope_scaling=None).rope == RopeConfig(1e4)


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "su", 3, ["linear"], {}, "", 0])
def test_a_scaling_nobody_would_apply_is_refused(key, kind):
    with pytest.raises(
        ConfigError, match=f"rope_scaling: {key} is .*, expected default, linear or"
    ):
        read(rope_scaling={key: kind, "factor": 2.0})


def test_a_factor_without_a_type_is_refused():
    for more in ({}, {"rope_type": "default"}):
        with pytest.raises(ConfigError, match=r"expected linear or llama3 where there is a factor"):
            read(rope_scaling={"factor": 2.0, **more})


@pytest.mark.parametrize("key", LLAMA3)
def test_every_field_of_llama3_is_needed_and_checked(key):
    whole = {"rope_type": "llama3", **LLAMA3}
    for value in (None, "1", 0, -1, True):
        with pytest.raises(ConfigError, match=f"rope_scaling: .*{key}"):
            read(rope_scaling=whole | {key: value})


def test_the_factor_of_linear_is_needed():
    with pytest.raises(ConfigError, match=r"config.json: rope_scaling: the key factor is missing"):
        read(rope_scaling={"rope_type": "linear"})


def test_low_and_high_frequencies_in_their_order():
    with pytest.raises(ConfigError, match=r"high_freq_factor is 1.0, expected more than low_freq"):
        read(rope_scaling={"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0})


@pytest.mark.parametrize("value", ["linear", 3, True, [1], 0])
def test_a_scaling_that_is_no_object(value):
    with pytest.raises(ConfigError, match=r"rope_scaling is .*, expected an object"):
        read(rope_scaling=value)


@pytest.mark.parametrize("section", ["rope_scaling", "rope_parameters"])
def test_a_rope_per_kind_of_layer_is_refused(section):
    full, sliding = {"rope_type": "default", "rope_theta": 1e6}, {"rope_type": "default"}
    nested = {"full_attention": full, "sliding_attention": sliding}
    for value in (nested, {"rope_type": "default", "sliding_attention": {}}):
        said = rf"^config.json: {section}: \w+_attention is \{{.*, expected nothing: one rope for "
        with pytest.raises(ConfigError, match=said):
            read({section: value})
    with pytest.raises(ConfigError, match=r"mrope_section is \[16, 24\], expected nothing"):
        read({section: {"rope_type": "default", "mrope_section": [16, 24]}})


def test_a_part_of_the_width_turned_is_refused():
    for place in ({"partial_rotary_factor": 0.5}, {"rope_scaling": {"partial_rotary_factor": 0.5}}):
        with pytest.raises(ConfigError, match=r"partial_rotary_factor is 0.5, expected 1"):
            read(place)
    assert read(partial_rotary_factor=1).rope == RopeConfig(1e4)


# ---- the files, and anything at all ------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "found a JSON list, expected an object"),
        (b"3", "found a JSON int"),
        (b"\xff", "not UTF-8 text"),
        (b'{"vocab_size": 1, "vocab_size": 2}', "the key 'vocab_size' stands there twice"),
        (b'{"a":' + b"[" * 100_000, "not valid JSON"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_malformed_files_are_named(tmp_path, name, content, message):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_model_config(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / name))


def test_no_config(tmp_path):
    with pytest.raises(ConfigError, match="no config.json in this folder; a model folder holds"):
        read_model_config(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = [*CONFIG, "rope_scaling", "rope_parameters", "attention_bias", "quantization_config"]


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=4))
def test_any_value_is_read_or_refused(changes):
    try:
        config = read(changes)
    except ConfigError as refusal:
        assert str(refusal).startswith("config.json: ")
        assert len(str(refusal)) < 300
    else:
        assert config.num_attention_heads % config.num_key_value_heads == 0
