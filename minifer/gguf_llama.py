"""A llama model in a GGUF file -> an ordinary Hugging Face folder, rounded to bfloat16.

The folder holds config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
model.safetensors, named as transformers' LlamaForCausalLM names them. Every value is rounded to
bfloat16; a float32 folder holds the rounded values, so both dtypes are the same model.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .errors import CheckpointError
from .gguf import GGUF, dequantise
from .gguf_blocks import to_bfloat16_words, widen_bfloat16
from .gguf_tokenizer import tokenizer_config_json, tokenizer_json
from .safetensors_writer import Entry, write_safetensors

SAFETENSORS_DTYPES = {"float32": "F32", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Sizes:
    """The shape of the model, from the metadata."""

    layers: int  # L
    width: int  # D
    heads: int  # H
    kv_heads: int  # K
    head_width: int  # E
    feed_forward: int  # F
    vocabulary: int  # V
    context: int

    @classmethod
    def of(cls, gguf: GGUF) -> "Sizes":
        """Read the sizes; CheckpointError when this is no plain llama."""
        architecture = gguf.expect("general.architecture", str)
        if architecture != "llama":
            raise CheckpointError(
                f"{gguf.path}: general.architecture is {architecture!r:.80}; converted is only "
                "'llama'"
            )
        keys = {
            "layers": "block_count",
            "width": "embedding_length",
            "heads": "attention.head_count",
            "kv_heads": "attention.head_count_kv",
            "head_width": "rope.dimension_count",
            "feed_forward": "feed_forward_length",
            "vocabulary": "vocab_size",
            "context": "context_length",
        }
        values = {name: gguf.expect(f"llama.{key}", int) for name, key in keys.items()}
        for name, key in keys.items():
            if values[name] < 1:
                raise CheckpointError(f"{gguf.path}: llama.{key} is {values[name]}; allowed: 1 up")
        if values["head_width"] % 2 or values["heads"] % values["kv_heads"]:
            raise CheckpointError(
                f"{gguf.path}: {values['heads']} heads of width {values['head_width']} with"
                f" {values['kv_heads']} key/value heads; the width must be even and the key/value"
                " heads divide the heads"
            )
        return cls(**values)


def write_model_folder(
    gguf: GGUF, folder: Path, dtype: str, advance: Callable[[], None] = lambda: None
) -> None:
    """Convert `gguf` into the existing, empty `folder`; dtype is "float32" or "bfloat16".

    `advance` is called after each tensor. CheckpointError: the file holds no plain llama model,
    or a tensor is missing, left over, or of another shape. OSError: whatever the disk says.
    """
    sizes = Sizes.of(gguf)
    tensors = list(_tensors(gguf, sizes, dtype, advance))
    left_over = gguf.tensors.keys() - {source for source, _, _, _ in _names(sizes)}
    if left_over:
        raise CheckpointError(f"{gguf.path}: no place for tensors {', '.join(sorted(left_over))}")
    _write_json(folder / "tokenizer.json", tokenizer_json(gguf, sizes.vocabulary))
    _write_json(folder / "tokenizer_config.json", tokenizer_config_json(gguf))
    _write_json(folder / "config.json", _config_json(gguf, sizes, dtype))
    special = {f"{name}_token_id": value for name, value in _special_ids(gguf).items()}
    _write_json(folder / "generation_config.json", special)
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})


def _names(sizes: Sizes) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
    """(GGUF name, our name, shape, heads to un-permute or 0), in the order of our file.

    q, k, v and gate, up are neighbours, so that a reader may take each group as one matrix.
    """
    d, f = sizes.width, sizes.feed_forward
    queries, keys = sizes.heads * sizes.head_width, sizes.kv_heads * sizes.head_width
    yield "token_embd.weight", "model.embed_tokens.weight", (sizes.vocabulary, d), 0
    for i in range(sizes.layers):
        for source, name, shape, heads in (
            ("attn_norm", "input_layernorm", (d,), 0),
            ("attn_q", "self_attn.q_proj", (queries, d), sizes.heads),
            ("attn_k", "self_attn.k_proj", (keys, d), sizes.kv_heads),
            ("attn_v", "self_attn.v_proj", (keys, d), 0),
            ("attn_output", "self_attn.o_proj", (d, queries), 0),
            ("ffn_norm", "post_attention_layernorm", (d,), 0),
            ("ffn_gate", "mlp.gate_proj", (f, d), 0),
            ("ffn_up", "mlp.up_proj", (f, d), 0),
            ("ffn_down", "mlp.down_proj", (d, f), 0),
        ):
            yield f"blk.{i}.{source}.weight", f"model.layers.{i}.{name}.weight", shape, heads
    yield "output_norm.weight", "model.norm.weight", (d,), 0


def _tensors(gguf: GGUF, sizes: Sizes, dtype: str, advance: Callable[[], None]) -> Iterator[Entry]:
    """What the writer wants: each tensor checked now, its values made when their turn comes."""

    def values(source: str, heads: int) -> np.ndarray:
        rows = dequantise(gguf.tensors[source])
        words = to_bfloat16_words(rotate_half_order(rows, heads) if heads else rows)
        advance()
        return words if dtype == "bfloat16" else widen_bfloat16(words)

    for source, name, shape, heads in _names(sizes):
        if source not in gguf.tensors:
            raise CheckpointError(f"{gguf.path}: tensor {source!r} is missing")
        found = gguf.tensors[source].shape
        if found != shape:
            raise CheckpointError(f"{gguf.path}: tensor {source!r} is {found}; wanted {shape}")
        yield name, SAFETENSORS_DTYPES[dtype], shape, partial(values, source, heads)


def rotate_half_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's permutation of q or k: weight (heads * E, D) -> the same shape.

    In GGUF the two rows that rope rotates together are neighbours (0, 1), (2, 3) ...; in a Hugging
    Face file they are half a head apart: first all even rows of a head, then all odd ones.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _special_ids(gguf: GGUF) -> dict[str, int]:
    keys = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id"}
    return {name: gguf.expect(f"tokenizer.ggml.{key}", int) for name, key in keys.items()}


def _config_json(gguf: GGUF, sizes: Sizes, dtype: str) -> dict[str, Any]:
    def shortest(key: str) -> float:
        """The shortest decimal of a stored float32: 1e-05, not 9.999999747378752e-06."""
        return float(str(np.float32(gguf.expect(key, float))))

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": dtype,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.feed_forward,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_width,
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": sizes.context,
        "rms_norm_eps": shortest("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": shortest("llama.rope.freq_base"),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,  # there is no output.weight; it would be left over
        "use_cache": True,
        **{f"{name}_token_id": value for name, value in _special_ids(gguf).items()},
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=1)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())  # a rename of the folder must not overtake its files
