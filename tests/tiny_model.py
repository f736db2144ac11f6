"""A tiny random Llama in a folder as Hugging Face lays it out, tokenizer and chat template too."""

import functools
import json
import tempfile
from pathlib import Path

import numpy as np

import minifer
from minifer.families import llama
from minifer.pretokenize import LETTERS
from minifer.safetensors_writer import write_safetensors

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BOS, EOS = 1, 2
_MERGES = """
Ġ t|h e|Ġt he|i n|a n|Ġ a|r e|o n|Ġ s|e r|Ġ w|o u|Ġ o|o r|a t|e n|e s|Ġ c|i s|i t|Ġ b|Ġa n|Ġan d
in g|l l|Ġ p|Ġ f|a l|Ġ m|o f|e d|l o|Ġ in|t o|s t|Ã ©|Ġ h|h i|u s|us er|2 3
"""
MERGES = [merge for line in _MERGES.split("\n") for merge in line.split("|") if merge]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# 300 ids: the special ones, every byte, and what the merges make.
VOCAB = SPECIAL + LETTERS + [merge.replace(" ", "") for merge in MERGES]

CONFIG = {
    "model_type": "llama",
    "vocab_size": len(VOCAB),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


def write_tiny_model(folder, *, dtype="F32", seed=0, chat=True, **config_overrides) -> Path:
    """The folder, written. dtype is F32, F16 or BF16; all three hold the very same values."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | config_overrides
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", tiny_tensors(config, seed), dtype)
    write_json(folder / "tokenizer.json", tokenizer_json())
    tokenizer_config = {"bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS]}
    if chat:
        tokenizer_config["chat_template"] = CHATML
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    return folder


@functools.cache
def tiny_model(**kwargs) -> minifer.Model:
    """The same, loaded; one folder and one model per set of arguments and session."""
    folder = tempfile.mkdtemp(dir=_session_folder().name)
    return minifer.load(write_tiny_model(folder, **kwargs))


@functools.cache
def _session_folder():
    return tempfile.TemporaryDirectory(prefix="minifer-test-", ignore_cleanup_errors=True)


def tiny_tensors(config=CONFIG, seed=0) -> dict[str, np.ndarray]:
    """Name in the file -> float32 values, all of them exact in float16 and bfloat16 too."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, (stored, shape) in llama.tensors(llama.read_config(config, "config.json")).items():
        values = rng.standard_normal(shape)
        if name in ("embedding", "head"):
            values *= 0.7
        elif name.endswith("norm"):
            values = 1 + 0.2 * values
        else:  # the width is small, so the weights may be large: every op must matter
            values *= 0.25
        found[stored] = (np.clip(np.round(values * 64), -128, 127) / 64).astype(np.float32)
    return found


def write_tensors(path, tensors, dtype="F32") -> None:
    """float32 arrays by name -> a safetensors file that stores them as F32, F16 or BF16."""
    convert = {"F32": np.asarray, "F16": lambda v: v.astype(np.float16), "BF16": bfloat16_words}
    write_safetensors(
        path,
        [
            (name, dtype, values.shape, lambda values=values: convert[dtype](values))
            for name, values in tensors.items()
        ],
        {"format": "pt"},
    )


def bfloat16_words(values) -> np.ndarray:
    """The upper half of each float32: exact for values that bfloat16 can hold."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def tokenizer_json() -> dict:
    """Byte-level BPE with the three special tokens, as the tokenizers library writes it."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
    }  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": place, "content": text, **flags, "special": True}
            for place, text in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: place for place, token in enumerate(VOCAB)},
            "merges": MERGES,
        },
    }


def write_json(path, data) -> None:
    """An object as a UTF-8 file."""
    Path(path).write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")
