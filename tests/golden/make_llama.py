"""Make llama/: tiny Llama checkpoints with random weights, and what transformers says of them.

Run once, anywhere, in an environment of its own; the files are committed and tests need no torch:

    pip install torch transformers safetensors && python make_llama.py

Each case is a folder with config.json and model.safetensors, as a model hub has them, and
reference.npz: token ids and the float32 logits computed from the weights as rounded for storage.
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

HERE = Path(__file__).parent / "llama"
VOCAB, CONTEXT, FAR = 97, 640, 530
LENGTHS = (21, 6, 13)  # three sequences; the tests also run them side by side in one step
GREEDY, MARGIN = 20, 0.01

# Sizes are D, F, L, H, K, E. The rest goes into config.json as it stands there.
CASES = {
    # Nothing said of rope, head_dim or kv heads: the defaults have to be the reference's.
    "mha_bare": ("float16", (32, 44, 2, 4, 4, 8), {"rms_norm_eps": 1e-3}),
    "gqa_linear_old": (
        "bfloat16",
        (24, 40, 3, 6, 2, 6),
        {
            "tie_word_embeddings": True,
            "rope_theta": 700.0,
            "rope_scaling": {"type": "linear", "factor": 4.0},
            "rms_norm_eps": 3e-3,
        },
    ),
    "mqa_llama3_old": (
        "float16",
        (28, 36, 2, 4, 1, 6),
        {
            "rope_theta": 1000.0,  # waves of 6, 63 and 628 tokens: one in each band
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 100,
            },
            "torch_dtype": "float16",
        },
    ),
    "gqa_llama3_new": (
        "float32",
        (24, 32, 2, 3, 1, 10),
        {
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 32.0,
                "low_freq_factor": 1.5,
                "high_freq_factor": 5.0,
                "original_max_position_embeddings": 90,
            },
            "dtype": "float32",
        },
    ),
    "biases_new": (
        "float16",
        (30, 28, 2, 5, 5, 4),
        {
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
            "rms_norm_eps": 2e-3,
        },
    ),
    "mlp_bias_linear_new": (
        "bfloat16",
        (32, 36, 2, 4, 2, 12),
        {
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 2.5},
            "rms_norm_eps": 1e-2,
        },
    ),
    # The theta inside the dict beats the one beside it.
    "tied_theta_inside": (
        "float32",
        (24, 28, 3, 2, 1, 14),
        {
            "tie_word_embeddings": True,
            "attention_bias": True,
            "rope_theta": 10000.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 90.0},
        },
    ),
    # Both dicts: rope_scaling is the one that counts.
    "both_dicts": (
        "bfloat16",
        (28, 24, 1, 7, 7, 2),
        {
            "rope_scaling": {"rope_type": "linear", "factor": 3.0},
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
            "rope_theta": 400.0,
            "head_dim": 2,
        },
    ),
}


def config_of(name):
    """What stands in config.json."""
    _, (D, F, L, H, K, E), more = CASES[name]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": VOCAB,
        "hidden_size": D,
        "intermediate_size": F,
        "num_hidden_layers": L,
        "num_attention_heads": H,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if K != H:
        config["num_key_value_heads"] = K
    if D != H * E:
        config["head_dim"] = E
    return config | more


def weights_of(name, rng):
    """Random tensors that make a lively model: scattered norms, sharp attention, wide logits."""
    dtype, (D, F, L, H, K, E), more = CASES[name]
    found = {}

    def normal(key, shape, size, mean=0.0):
        values = mean + size * rng.standard_normal(shape)
        found[key] = torch.tensor(values).to(getattr(torch, dtype)).contiguous()

    wide = 1.6 / D**0.5
    normal("model.embed_tokens.weight", (VOCAB, D), wide)
    normal("model.norm.weight", (D,), 0.3, 1.0)
    if not more.get("tie_word_embeddings"):
        normal("lm_head.weight", (VOCAB, D), wide)
    for i in range(L):
        layer = f"model.layers.{i}."
        normal(layer + "input_layernorm.weight", (D,), 0.4, 1.0)
        normal(layer + "post_attention_layernorm.weight", (D,), 0.4, 1.0)
        for part, rows, columns, size, bias in (
            ("self_attn.q_proj", H * E, D, 1.5, "attention_bias"),
            ("self_attn.k_proj", K * E, D, 1.5, "attention_bias"),
            ("self_attn.v_proj", K * E, D, 1.0, "attention_bias"),
            ("self_attn.o_proj", D, H * E, 0.6, "attention_bias"),
            ("mlp.gate_proj", F, D, 1.2, "mlp_bias"),
            ("mlp.up_proj", F, D, 1.0, "mlp_bias"),
            ("mlp.down_proj", D, F, 0.8, "mlp_bias"),
        ):
            normal(f"{layer}{part}.weight", (rows, columns), size / columns**0.5)
            if more.get(bias):
                normal(f"{layer}{part}.bias", (rows,), 0.4)
    return found


@torch.no_grad()
def logits_of(model, ids):
    """One whole pass without a cache -> (T, V)."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def greedy(model, ids):
    """Tokens of the highest logit, each from a whole pass, and how far ahead of the second."""
    sequence, margins = list(ids), []
    for _ in range(GREEDY):
        row = logits_of(model, sequence)[-1]
        second, first = np.sort(row)[-2:]
        margins.append(first - second)
        sequence.append(int(row.argmax()))
    return sequence[len(ids) :], np.array(margins, np.float32)


def make(name, rng):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config_of(name), indent=1) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    save_file(weights_of(name, rng), folder / "model.safetensors", metadata={"format": "pt"})
    model = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    kept = {"made_with": f"transformers {version('transformers')}, torch {version('torch')}"}
    for place, length in enumerate(LENGTHS):
        ids = rng.integers(0, VOCAB, length).tolist()
        kept[f"ids_{place}"] = np.array(ids, np.int64)
        kept[f"logits_{place}"] = logits_of(model, ids)
    kept["greedy"], kept["margins"] = greedy(model, kept["ids_0"].tolist())
    far = rng.integers(0, VOCAB, FAR).tolist()
    kept["far_ids"], kept["far_logits"] = np.array(far, np.int64), logits_of(model, far)[-4:]
    np.savez_compressed(folder / "reference.npz", **kept)
    biggest = max(np.abs(kept[f"logits_{i}"]).max() for i in range(3))
    print(f"{name}: max |logit| {biggest:.2f}, smallest margin {kept['margins'].min():.4f}")
    return kept["margins"].min()


if __name__ == "__main__":
    for place, case in enumerate(CASES):
        seed = 1000 + place
        # A near tie would make greedy tokens a matter of rounding: such a draw is thrown away.
        while make(case, np.random.default_rng(seed)) < MARGIN:
            seed += 100
