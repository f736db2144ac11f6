"""The static cost card: what one prefill and one decode step require, from config.json alone.

Matrix products and per-element work are kept apart, activations are not among the bytes of a pass:
they stay small beside weights and KV, or on the chip. S tokens are cached before a decode step.

    prefill FLOPs   2TL (2DHE + 2DKE + 3DF) + 2VD + 4HEL T(T+1)/2     the head for the last row
    decode FLOPs    2 P_mm + 4HEL (S+1)                               per sequence
    decode bytes    w (P_mm + norms + biases + D) + k 2LKE (S + 1)    S read, 1 written

A batch of B decodes reads the weights once; KV, embedding rows and FLOPs are B times as much.
"""

from typing import NamedTuple

from ..checks import check_whole_number, whole_number
from ..config import ModelConfig
from ..errors import ContextError, MiniferError
from . import passes
from .passes import itemsize

PROMPT_TOKENS = 512  # the prompt of a card, where nobody says another


class Pass(NamedTuple):
    """What one pass requires: FLOPs of matrix products and of the rest, bytes of weights and KV."""

    linear_flops: int
    attention_flops: int
    elementwise_flops: int
    weight_bytes: int
    kv_bytes_read: int
    kv_bytes_written: int

    @property
    def flops(self) -> int:
        """Of the matrix products alone: what the peak of a device is stated for."""
        return self.linear_flops + self.attention_flops

    @property
    def bytes(self) -> int:
        """Weights and KV; activations apart."""
        return self.weight_bytes + self.kv_bytes_read + self.kv_bytes_written

    @property
    def intensity(self) -> float:
        """FLOPs of matrix products per byte."""
        return self.flops / self.bytes


class CostCard(NamedTuple):
    """The figures of one model at one setting. All of them are whole numbers."""

    config: ModelConfig
    dtype: str
    kv_dtype: str
    prompt_tokens: int  # T
    context: int  # S
    batch: int  # B
    parameters: int
    matmul_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    attention_flops_per_context_token: int
    prefill: Pass  # of one prompt
    decode: Pass  # of the whole batch


class Work(NamedTuple):
    """FLOPs, bytes that move once, and their ratio."""

    flops: int
    bytes: int
    intensity: float


class Row(NamedTuple):
    """One matrix of a layer (or attention): inputs, outputs, and its work in both phases."""

    name: str
    inputs: int
    outputs: int
    prefill: Work
    decode: Work


def cost_card(
    config: ModelConfig,
    dtype: str = "float32",
    kv_dtype: str | None = None,
    prompt_tokens: int | None = None,
    context: int | None = None,
    batch: int = 1,
) -> CostCard:
    """The card. Without lengths: 512 tokens and as many cached, or what the context has room for.

    Raises ContextError for lengths that are none or beyond the context, MiniferError for a dtype
    or a batch that is none.
    """
    c, limit = config, config.max_position_embeddings
    T = min(PROMPT_TOKENS, limit) if prompt_tokens is None else prompt_tokens
    if whole_number(T, 1, limit + 1) is None:
        raise ContextError(f"a prompt of {T!r:.40} tokens: this model takes 1 to {limit}")
    S = min(T, limit - 1) if context is None else context
    if whole_number(S, 0, limit) is None:
        needs = "" if whole_number(S, 0) is None else f" needs {S + 1} places"
        raise ContextError(
            f"a decode step with {S!r:.40} tokens cached{needs}: the model's context is "
            f"{limit}, so 0 to {limit - 1} may be cached"
        )
    check_whole_number("batch", batch, 1, MiniferError)
    T, S, batch = int(T), int(S), int(batch)  # NumPy's would overflow
    kv_dtype = dtype if kv_dtype is None else kv_dtype
    w, kv = itemsize(dtype), itemsize(kv_dtype) * c.kv_elements_per_token
    # The pass we run reads S + 1 rows of KV, the one it has just written among them (pass_costs);
    # an algorithm need not read back what it holds, so the card says S read and 1 written.
    return CostCard(
        config=c,
        dtype=dtype,
        kv_dtype=kv_dtype,
        prompt_tokens=T,
        context=S,
        batch=batch,
        parameters=passes.parameters(c),
        matmul_parameters=passes.matmul_parameters(c),
        weight_bytes=w * passes.parameters(c),
        kv_bytes_per_token=kv,
        attention_flops_per_context_token=passes.attention_flops_per_context_token(c),
        prefill=Pass(*_flops(c, T, 0, 1), _weight_bytes(c, w, T), 0, kv * T),
        decode=Pass(
            *_flops(c, 1, S, batch), _weight_bytes(c, w, batch), kv * S * batch, kv * batch
        ),
    )


def _flops(c: ModelConfig, new: int, cached: int, sequences: int) -> tuple[int, int, int]:
    """Of linear layers, attention and per-element work; each grows with the sequences."""
    one = [(new, cached)]
    products = passes.matmul_flops(c, one)
    attention = passes.attention_flops_per_context_token(c) * passes.visible_pairs(one)
    rest = passes.total(passes.pass_costs(c, one)).flops - products
    return sequences * (products - attention), sequences * attention, sequences * rest


def _weight_bytes(c: ModelConfig, w: int, tokens: int) -> int:
    """Every matrix, norm and bias once, and an embedding row for each token."""
    biases = c.num_hidden_layers * passes.layer_biases(c)
    rows = tokens * c.hidden_size
    return w * (passes.matmul_parameters(c) + passes.norm_parameters(c) + biases + rows)


def parameter_split(c: ModelConfig) -> dict[str, int]:
    """Part -> its parameters; they add up to all of them. A tied head has none of its own."""
    D, E, L = c.hidden_size, c.head_dim, c.num_hidden_layers
    H, K = c.num_attention_heads, c.num_key_value_heads
    return {
        "embedding": c.vocab_size * D,
        "attention": L * (2 * D * H * E + 2 * D * K * E),
        "mlp": L * 3 * D * c.intermediate_size,
        "norms": passes.norm_parameters(c),
        "biases": L * passes.layer_biases(c),
        "head": 0 if c.tie_word_embeddings else c.vocab_size * D,
    }


def linear_layer(
    n: int, m: int, tokens: int, weight_itemsize: int, activation_itemsize: int
) -> Work:
    """A product with a matrix of n inputs and m outputs: about 2T/w FLOP/B while T is small."""
    flops = 2 * tokens * n * m
    moved = weight_itemsize * n * m + activation_itemsize * tokens * (n + m)
    return Work(flops, moved, flops / moved)


def attention_layer(
    c: ModelConfig, new: int, cached: int, kv_itemsize: int, activation_itemsize: int
) -> Work:
    """Both products of one layer, fused: scores stay on the chip, keys and values move once.

    A decode step does 2G keys / (k keys + a G) FLOP/B, at most G at 2 bytes: a batch is no help.
    """
    H, K, E = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    flops = 4 * H * E * passes.visible_pairs([(new, cached)])
    moved = 2 * K * E * (cached + new) * kv_itemsize + 2 * H * E * new * activation_itemsize
    return Work(flops, moved, flops / moved)


def key_product_flops(c: ModelConfig, new: int, cached: int, hidden_too: bool = False) -> int:
    """Of q.k in one layer: the visible pairs, or all that are computed and masked afterwards."""
    pairs = new * (cached + new) if hidden_too else passes.visible_pairs([(new, cached)])
    return 2 * c.num_attention_heads * c.head_dim * pairs


def layer_rows(card: CostCard) -> list[Row]:
    """The matrices of one layer, its attention and the head; activations in the weights' dtype."""
    c, T, B = card.config, card.prompt_tokens, card.batch
    D, F, E = c.hidden_size, c.intermediate_size, c.head_dim
    HE, KE = c.num_attention_heads * E, c.num_key_value_heads * E
    w, k = itemsize(card.dtype), itemsize(card.kv_dtype)
    shapes = {
        "query": (D, HE), "key": (D, KE), "value": (D, KE), "output": (HE, D),
        "gate": (D, F), "up": (D, F), "down": (F, D),
    }  # fmt: skip
    rows = [
        Row(name, n, m, linear_layer(n, m, T, w, w), linear_layer(n, m, B, w, w))
        for name, (n, m) in shapes.items()
    ]
    prefill, one = attention_layer(c, T, 0, k, w), attention_layer(c, 1, card.context, k, w)
    decode = Work(B * one.flops, B * one.bytes, one.intensity)
    rows.insert(3, Row("attention", HE, HE, prefill, decode))
    head = linear_layer(D, c.vocab_size, 1, w, w), linear_layer(D, c.vocab_size, B, w, w)
    return [*rows, Row("head", D, c.vocab_size, *head)]
