"""The tokenizer in the metadata of a GGUF file -> tokenizer.json and tokenizer_config.json.

Only the kind of the default model is built: byte-level BPE (GPT-2's) whose pre-tokenizer takes
digits one by one, "smollm" in llama.cpp's list of pre-tokenizers.
"""

from typing import Any

from .errors import CheckpointError
from .gguf import GGUF

NORMAL, CONTROL = 1, 3  # llama.cpp's token types: found by merges, or special


def tokenizer_json(gguf: GGUF, vocabulary: int) -> dict[str, Any]:
    """The content of tokenizer.json; `vocabulary` is the number of rows of the embedding.

    CheckpointError: another kind of tokenizer, or lists that do not fit each other.
    """
    for key, known in (("model", "gpt2"), ("pre", "smollm")):
        found = gguf.expect(f"tokenizer.ggml.{key}", str)
        if found != known:
            raise CheckpointError(
                f"{gguf.path}: tokenizer.ggml.{key} is {found!r}; converted is only {known!r}"
            )
    tokens = gguf.expect_list("tokenizer.ggml.tokens", str)
    kinds = gguf.expect_list("tokenizer.ggml.token_type", int)
    if not len(tokens) == len(kinds) == vocabulary or len(set(tokens)) != len(tokens):
        raise CheckpointError(
            f"{gguf.path}: {len(tokens)} tokens ({len(set(tokens))} distinct) with {len(kinds)}"
            f" types; wanted {vocabulary} distinct ones, each with its type"
        )
    unknown = set(kinds) - {NORMAL, CONTROL}
    if unknown:
        raise CheckpointError(
            f"{gguf.path}: tokenizer.ggml.token_type holds {sorted(unknown)}; converted are only"
            f" {NORMAL} (normal) and {CONTROL} (control)"
        )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, **_added_token(token)}
            for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", **_BYTE_LEVEL, "add_prefix_space": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **_BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": _merges(gguf, set(tokens)),
        },
    }


def tokenizer_config_json(gguf: GGUF) -> dict[str, Any]:
    """The content of tokenizer_config.json: special tokens by role, and the chat template."""
    tokens = gguf.expect_list("tokenizer.ggml.tokens", str)
    kinds = gguf.expect_list("tokenizer.ggml.token_type", int)

    def token(role: str) -> str:
        key = f"tokenizer.ggml.{role}_token_id"
        number = gguf.expect(key, int)
        if not 0 <= number < len(tokens):
            raise CheckpointError(
                f"{gguf.path}: {key} is {number}; allowed: 0 to {len(tokens) - 1}"
            )
        return tokens[number]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "additional_special_tokens": [token("bos"), token("eos")],
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.expect("llama.context_length", int),
        "chat_template": gguf.expect("tokenizer.chat_template", str),
        "added_tokens_decoder": {
            str(i): _added_token(content)
            for i, (content, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == CONTROL
        },
    }


_BYTE_LEVEL = {"trim_offsets": True, "use_regex": True}


def _added_token(content: str) -> dict[str, Any]:
    return {
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _merges(gguf: GGUF, tokens: set[str]) -> list[str]:
    """Merges in the order of their rank; both parts and the result must be tokens.

    They stay "a b" texts, the older spelling of the format: it is read four times as fast as
    pairs, and no byte-level token holds a space.
    """
    merges = gguf.expect_list("tokenizer.ggml.merges", str)
    for merge in merges:
        pair = merge.split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= tokens:
            raise CheckpointError(
                f"{gguf.path}: merge {merge!r}; wanted two tokens that join to a third"
            )
    return merges
