"""A tiny GGUF llama becomes a folder that the safetensors and tokenizers libraries read."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from tiny_gguf import LLAMA, TOKENS, gguf_bytes, llama_bytes, llama_tensors, random_tensor

from minifer.errors import CheckpointError
from minifer.gguf import GGUF, dequantise
from minifer.gguf_blocks import to_bfloat16_words, widen_bfloat16
from minifer.gguf_llama import rotate_half_order, write_model_folder


def converted(tmp_path, data, dtype="float32"):
    (tmp_path / "model.gguf").write_bytes(data)
    folder = tmp_path / dtype
    folder.mkdir(exist_ok=True)
    with GGUF.open(tmp_path / "model.gguf") as gguf:
        write_model_folder(gguf, folder, dtype)
    return folder


def file_order(path):
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return [name for name in header if name != "__metadata__"]


def test_values_are_rounded_and_both_dtypes_agree(tmp_path):
    folder = converted(tmp_path, llama_bytes())
    written = load_file(folder / "model.safetensors")
    assert len(written) == 2 * 9 + 2
    with GGUF.open(tmp_path / "model.gguf") as gguf:
        for source, name in (
            ("token_embd", "model.embed_tokens"),
            ("blk.1.attn_v", "model.layers.1.self_attn.v_proj"),
            ("blk.0.ffn_norm", "model.layers.0.post_attention_layernorm"),
            ("blk.1.ffn_down", "model.layers.1.mlp.down_proj"),
        ):
            values = dequantise(gguf.tensors[f"{source}.weight"])
            rounded = widen_bfloat16(to_bfloat16_words(values))
            assert written[f"{name}.weight"].dtype == np.float32
            np.testing.assert_array_equal(written[f"{name}.weight"], rounded)

    half = converted(tmp_path, llama_bytes(), "bfloat16")
    assert file_order(half / "model.safetensors") == file_order(folder / "model.safetensors")
    with safe_open(half / "model.safetensors", framework="numpy") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
    start = 8 + int.from_bytes((half / "model.safetensors").read_bytes()[:8], "little")
    words = np.fromfile(half / "model.safetensors", "<u2", offset=start)
    start = 8 + int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
    wide = np.fromfile(folder / "model.safetensors", "<f4", offset=start)
    np.testing.assert_array_equal(widen_bfloat16(words), wide)


def test_q_and_k_rows_are_put_half_a_head_apart(tmp_path):
    folder = converted(tmp_path, llama_bytes())
    written = load_file(folder / "model.safetensors")
    with GGUF.open(tmp_path / "model.gguf") as gguf:
        for kind, heads in (("q", 4), ("k", 2)):
            rows = widen_bfloat16(
                to_bfloat16_words(dequantise(gguf.tensors[f"blk.0.attn_{kind}.weight"]))
            )
            ours = written[f"model.layers.0.self_attn.{kind}_proj.weight"]
            width = len(rows) // heads
            for head in range(heads):
                for i in range(width // 2):  # the pair that rope rotates by the angle i
                    pair = rows[head * width + 2 * i], rows[head * width + 2 * i + 1]
                    np.testing.assert_array_equal(ours[head * width + i], pair[0])
                    np.testing.assert_array_equal(ours[head * width + i + width // 2], pair[1])


def test_rotate_half_order_undoes_llama_cpp():
    weight = np.arange(24 * 5, dtype=np.float32).reshape(24, 5)
    # What convert_hf_to_gguf does to a q of 3 heads: (heads, 2 halves, E / 2) -> (heads, E / 2, 2)
    permuted = weight.reshape(3, 2, 4, 5).swapaxes(1, 2).reshape(24, 5)
    np.testing.assert_array_equal(rotate_half_order(permuted, 3), weight)


def test_neighbours_in_the_file(tmp_path):
    order = file_order(converted(tmp_path, llama_bytes()) / "model.safetensors")
    assert order[0] == "model.embed_tokens.weight" and order[-1] == "model.norm.weight"
    layer = [name.split(".", 3)[3].removesuffix(".weight") for name in order[1:10]]
    assert layer == [
        "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
        "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
        "mlp.down_proj",
    ]  # fmt: skip


def test_config_and_tokenizer(tmp_path):
    from tokenizers import Tokenizer

    folder = converted(tmp_path, llama_bytes(), "bfloat16")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["rms_norm_eps"] == 1e-5 and config["rope_theta"] == 100000.0
    assert (config["torch_dtype"], config["head_dim"]) == ("bfloat16", 8)
    assert config["eos_token_id"] == 2 and config["tie_word_embeddings"] is True
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab() == {token: i for i, token in enumerate(TOKENS)}
    assert tokenizer.encode("<|im_start|>ab ab<|im_end|>").ids == [1, 6, 7, 2]
    assert tokenizer.decode([6, 7]) == "ab ab"
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["chat_template"] == LLAMA["tokenizer.chat_template"]
    assert settings["eos_token"] == "<|im_end|>"
    generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_merges_with_awkward_characters_survive_the_layout(tmp_path):
    tokens = [*TOKENS[:3], '"', "],", '"],', "\\", '\\"],']
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ['" ],', '\\ "],']}
    folder = converted(tmp_path, llama_bytes(**changes))
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    assert model["merges"] == ['" ],', '\\ "],']
    assert list(model["vocab"]) == tokens


EXTRA = random_tensor(np.random.default_rng(0), "output.weight", "Q8_0", (8, 32))
NARROW = random_tensor(np.random.default_rng(0), "token_embd.weight", "Q8_0", (4, 32))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (llama_bytes(**{"general.architecture": "qwen2"}), "'qwen2'; converted is only 'llama'"),
        (llama_bytes(**{"llama.block_count": True}), "llama.block_count is of type bool"),
        (llama_bytes(**{"llama.block_count": 0}), "llama.block_count is 0"),
        (llama_bytes(**{"llama.block_count": 3}), "'blk.2.attn_norm.weight' is missing"),
        (llama_bytes(**{"llama.block_count": 1}), "no place for tensors blk.1"),
        (llama_bytes(**{"llama.attention.head_count_kv": 3}), "divide the heads"),
        (llama_bytes(**{"llama.attention.head_count_kv": 1}), r"attn_k.weight' is \(16, 32\)"),
        (llama_bytes(**{"tokenizer.ggml.model": "llama"}), "converted is only 'gpt2'"),
        (llama_bytes(**{"tokenizer.ggml.pre": "qwen2"}), "converted is only 'smollm'"),
        (llama_bytes(**{"tokenizer.ggml.tokens": TOKENS[:7]}), "wanted 8 distinct"),
        (llama_bytes(**{"tokenizer.ggml.tokens": [*TOKENS[:7], "a"]}), "7 distinct"),
        (llama_bytes(**{"tokenizer.ggml.token_type": [6] * 8}), r"holds \[6\]"),
        (llama_bytes(**{"tokenizer.ggml.merges": ["a  b"]}), "join to a third"),
        (llama_bytes(**{"tokenizer.ggml.merges": ["b a"]}), "merge 'b a'"),
        (llama_bytes(**{"tokenizer.ggml.eos_token_id": 8}), "eos_token_id is 8; allowed: 0 to 7"),
        (gguf_bytes({}, llama_tensors()), "general.architecture is missing"),
        (gguf_bytes(LLAMA, [*llama_tensors(), EXTRA]), "no place for tensors output.weight"),
        (gguf_bytes(LLAMA, [NARROW, *llama_tensors()[1:]]), r"is \(4, 32\); wanted \(8, 32\)"),
    ],
)
def test_another_model_is_refused_by_name(tmp_path, data, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        converted(tmp_path, data)
    assert not (tmp_path / "float32" / "model.safetensors").exists()


@settings(max_examples=100, deadline=5000, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.integers(0, 1800), st.integers(0, 255)), min_size=1))
def test_a_mutated_file_is_converted_or_refused(tmp_path, changes):
    data = bytearray(llama_bytes())
    for position, value in changes:
        data[position] = value
    try:
        with np.errstate(all="ignore"):
            converted(tmp_path, bytes(data))
    except CheckpointError:
        pass
