"""Llama 2, 3, 3.1, 3.2, SmolLM2 and TinyLlama: the plain block."""

from typing import Any

from ..config import Fields, ModelConfig, RopeConfig
from ..errors import ConfigError

# Tensors some files still carry and nobody needs: the angles are computed (rope.py).
IGNORED = ("rotary_emb.inv_freq",)
HEAD = "lm_head.weight"
ROPE_KEYS = (
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor"),
    *("high_freq_factor", "original_max_position_embeddings"),
)


def read_config(data: dict[str, Any], source: str) -> ModelConfig:
    """config.json -> ModelConfig. Raises ConfigError for a value that is not understood."""
    fields = Fields(data, source)
    if fields.data.get("hidden_act", "silu") not in ("silu", None):
        raise fields.refuse("hidden_act", "silu")
    if "quantization_config" in fields:
        raise fields.refuse("quantization_config", "none: quantised weights are not read")
    vocab_size = fields.integer("vocab_size")
    hidden_size, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if "head_dim" not in fields and hidden_size % heads:
        raise fields.refuse("num_attention_heads", f"a divisor of hidden_size {hidden_size}")
    kv_heads = fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.refuse("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    head_dim = fields.integer("head_dim", hidden_size // heads)
    if head_dim % 2:
        raise ConfigError(f"{source}: head_dim is {head_dim}, expected an even number")
    return ModelConfig(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers", high=10_000),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=fields.integer("max_position_embeddings", 2048),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_read_rope(fields),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        bos_token_id=next(iter(sorted(fields.ids("bos_token_id", vocab_size))), None),
        eos_token_ids=fields.ids("eos_token_id", vocab_size),
    )


def _read_rope(fields: Fields) -> RopeConfig:
    """Both spellings: rope_theta with rope_scaling, and rope_parameters of transformers 5."""
    scaling = fields.section("rope_scaling") or fields.section("rope_parameters")
    theta = fields.number("rope_theta", 10000.0)
    for holder in (fields, scaling or fields):
        if holder.number("partial_rotary_factor", 1.0) != 1:
            raise holder.refuse("partial_rotary_factor", "1")
    if scaling is None:
        return RopeConfig(theta)
    for key, value in scaling.data.items():  # a rope per kind of layer, factors per frequency, ...
        if key not in ROPE_KEYS and isinstance(value, (dict, list)):
            raise scaling.refuse(f"{key:.80}", "nothing: one rope for all layers is built")
    theta = scaling.number("rope_theta", theta)
    key = "rope_type" if "rope_type" in scaling else "type"
    kind = scaling.data[key] if key in scaling else "default"
    if kind == "default" and "factor" in scaling:  # a factor nobody would apply
        raise scaling.refuse(key, "linear or llama3 where there is a factor")
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, scaling.number("factor"))
    if kind == "llama3":
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if low >= high:
            raise scaling.refuse("high_freq_factor", f"more than low_freq_factor {low:g}")
        length = scaling.integer("original_max_position_embeddings")
        return RopeConfig(theta, kind, scaling.number("factor"), low, high, length)
    raise scaling.refuse(key, "default, linear or llama3")


def tensors(config: ModelConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Canonical name -> (name in the file, shape), every tensor the model needs."""
    D, F = config.hidden_size, config.intermediate_size
    V, E = config.vocab_size, config.head_dim
    queries, keys = config.num_attention_heads * E, config.num_key_value_heads * E
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "embedding": ("model.embed_tokens.weight", (V, D)),
        "final_norm": ("model.norm.weight", (D,)),
    }
    if not config.tie_word_embeddings:
        found["head"] = (HEAD, (V, D))
    for i in range(config.num_hidden_layers):
        mine, theirs = f"layers.{i}.", f"model.layers.{i}."
        found[mine + "attention_norm"] = (theirs + "input_layernorm.weight", (D,))
        found[mine + "mlp_norm"] = (theirs + "post_attention_layernorm.weight", (D,))
        for name, part, shape, bias in (
            ("query", "self_attn.q_proj", (queries, D), config.attention_bias),
            ("key", "self_attn.k_proj", (keys, D), config.attention_bias),
            ("value", "self_attn.v_proj", (keys, D), config.attention_bias),
            ("output", "self_attn.o_proj", (D, queries), config.attention_bias),
            ("gate", "mlp.gate_proj", (F, D), config.mlp_bias),
            ("up", "mlp.up_proj", (F, D), config.mlp_bias),
            ("down", "mlp.down_proj", (D, F), config.mlp_bias),
        ):
            found[mine + name] = (f"{theirs}{part}.weight", shape)
            if bias:
                found[f"{mine}{name}_bias"] = (f"{theirs}{part}.bias", shape[:1])
    return found
