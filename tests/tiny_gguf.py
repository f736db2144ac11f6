"""Small GGUF files for the tests: a writer straight from the format, and a whole tiny llama."""

import math
import struct

import numpy as np

TYPE_NUMBERS = {"F32": 0, "F16": 1, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12}


def text(value):
    data = value.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def typed(value):
    """A metadata value with its type: bool, int (uint32), float, str or a list of one of them."""
    if isinstance(value, list):
        items = [typed(item) for item in value] or [struct.pack("<I", 4)]
        return (
            struct.pack("<I", 9)
            + items[0][:4]
            + struct.pack("<Q", len(value))
            + b"".join(item[4:] for item in items)
        )
    for kind, number, form in ((bool, 7, "<?"), (int, 4, "<I"), (float, 6, "<f")):
        if isinstance(value, kind):
            return struct.pack("<I", number) + struct.pack(form, value)
    return struct.pack("<I", 8) + text(value)


def gguf_bytes(metadata, tensors, version=3, alignment=32):
    """metadata {key: value}, tensors [(name, type, row-major shape, bytes)] -> the file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + typed(value) for key, value in metadata.items())
    data = b""
    for name, kind, shape, values in tensors:
        data += b"\0" * (-len(data) % alignment)
        head += text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", TYPE_NUMBERS[kind], len(data))
        data += values
    return head + b"\0" * (-len(head) % alignment) + data


def random_tensor(rng, name, kind, shape):
    """Random values as the type stores them, scales small and finite."""
    count = math.prod(shape)
    if kind == "F32":
        return name, kind, shape, rng.standard_normal(count).astype("<f4").tobytes()
    scales = {"Q4_1": 2, "Q8_0": 1}[kind]
    data = b"".join(
        rng.standard_normal(scales).astype("<f2").tobytes()
        + rng.integers(0, 256, {"Q4_1": 16, "Q8_0": 32}[kind], np.uint8).tobytes()
        for _ in range(count // 32)
    )
    return name, kind, shape, data


# 2 layers, D 32, H 4, K 2, E 8, F 64, V 8: everything the default model has, and small.
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "Ġ", "ab", "Ġab"]
LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 8,
    "llama.rope.dimension_count": 8,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b", "Ġ ab"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
}


def llama_tensors():
    rng = np.random.default_rng(7)
    tensors = [random_tensor(rng, "token_embd.weight", "Q8_0", (8, 32))]
    for layer in range(2):
        for name, kind, shape in (
            ("attn_norm", "F32", (32,)),
            ("ffn_down", "Q4_1", (32, 64)),
            ("ffn_gate", "Q4_1", (64, 32)),
            ("ffn_up", "Q4_1", (64, 32)),
            ("ffn_norm", "F32", (32,)),
            ("attn_k", "Q4_1", (16, 32)),
            ("attn_output", "Q4_1", (32, 32)),
            ("attn_q", "Q4_1", (32, 32)),
            ("attn_v", "Q4_1", (16, 32)),
        ):
            tensors.append(random_tensor(rng, f"blk.{layer}.{name}.weight", kind, shape))
    return [*tensors, random_tensor(rng, "output_norm.weight", "F32", (32,))]


def llama_bytes(**changes):
    return gguf_bytes(LLAMA | changes, llama_tensors())
