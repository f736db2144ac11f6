"""The model: a block, a stack of blocks, a pass over one or several sequences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from . import attention, mlp  # noqa: F401  (importing a file registers its ops)
from .batch import Batch, Segment, lay_out
from .chat import ChatTemplate
from .checks import check_ids, check_segments, check_whole_number
from .config import ModelConfig
from .errors import ContextError, TemplateError, TokenizerError
from .kv_cache import KVCache
from .layers import Array, log_softmax
from .op import RECORDING, keep, op
from .op_table import OpTable, Undo
from .rope import inverse_frequencies


class Layer(NamedTuple):
    """The weights of one block, as stored. A bias is added wherever its tensor exists."""

    attention_norm: Array  # (D,)
    query: Array  # (H*E, D)
    key: Array  # (K*E, D)
    value: Array  # (K*E, D)
    output: Array  # (D, H*E)
    mlp_norm: Array  # (D,)
    gate: Array  # (F, D)
    up: Array  # (F, D)
    down: Array  # (D, F)
    query_bias: Array | None = None
    key_bias: Array | None = None
    value_bias: Array | None = None
    output_bias: Array | None = None
    gate_bias: Array | None = None
    up_bias: Array | None = None
    down_bias: Array | None = None


@op(group=True, layered=True)
def attend(
    ops: Any, config: ModelConfig, layer: Layer, x: Array, batch: Batch, index: int
) -> Array:
    """Project, turn by position, look into each sequence's own past, merge. x (T, D) -> (T, D)"""
    T, E = len(x), config.head_dim
    query = ops.linear(x, layer.query, layer.query_bias).reshape(T, -1, E)  # (T, H, E)
    key = ops.linear(x, layer.key, layer.key_bias).reshape(T, -1, E)  # (T, K, E)
    value = ops.linear(x, layer.value, layer.value_bias).reshape(T, -1, E)  # (T, K, E)
    query = ops.rope(query, batch.cos, batch.sin)  # (T, H, E)
    key = ops.rope(key, batch.cos, batch.sin)  # (T, K, E)

    parts = []  # of (T, H, E), one per segment
    for rows, cache in zip(batch.rows, batch.caches, strict=True):
        keys, values, places = cache.append(ops, index, key[rows], value[rows])
        parts.append(ops.attention(query[rows], keys, values, batch.positions[rows], places))
    mixed = ops.join(parts)  # (T, H, E)
    return ops.linear(mixed.reshape(T, -1), layer.output, layer.output_bias)


@op(group=True, taps=("attended", "output"), scope="index", layered=True)
def block(
    ops: Any,
    config: ModelConfig,
    layer: Layer,
    x: Array,
    batch: Batch,
    index: int,
    *,
    tap: Any = keep,
) -> Array:
    """Attention, then the MLP, each on a normalised copy and added back. x (T, D) -> (T, D)"""
    normed = ops.rms_norm(x, layer.attention_norm, config.rms_norm_eps)  # (T, D)
    attention_out = ops.attend(config, layer, normed, batch, index)  # (T, D)
    x = tap("attended", ops.residual(x, attention_out))  # (T, D)

    normed = ops.rms_norm(x, layer.mlp_norm, config.rms_norm_eps)  # (T, D)
    mlp_out = ops.mlp(layer, normed)  # (T, D)
    return tap("output", ops.residual(x, mlp_out))


@op(group=True, taps=("embedded", "normed"))
def transformer(
    ops: Any, model: "Model", batch: Batch, all_rows: bool, *, tap: Any = keep
) -> Array:
    """Tokens -> logits of each segment's last row, (segments, V), or of all rows, (T, V)."""
    x = tap("embedded", ops.embedding(batch.token_ids, model.embedding))  # (T, D)
    for index, layer in enumerate(model.layers):
        x = ops.block(model.config, layer, x, batch, index)  # (T, D)
    if not all_rows:
        x = ops.select(x, batch.last_rows)  # (segments, D)
    normed = tap("normed", ops.rms_norm(x, model.final_norm, model.config.rms_norm_eps))
    return ops.linear(normed, model.head)


class Model:
    """Weights, a configuration and a backend. Safe to use from several threads, a cache is not."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Array],
        backend: Any,
        kernels: str = "auto",
        tokenizer: Any = None,
        template: ChatTemplate | None = None,
        name: str = "",
    ) -> None:
        """`weights` maps canonical names (families/) to arrays of the backend, as stored."""
        self.config, self.backend, self.name = config, backend, name
        self.tokenizer, self.template = tokenizer, template
        self.embedding = weights["embedding"]
        self.final_norm = weights["final_norm"]
        self.head = weights.get("head", self.embedding)  # tied: the same array, (V, D)
        self.layers = [_layer(weights, i) for i in range(config.num_hidden_layers)]
        self.inverse_frequencies = inverse_frequencies(backend.xp, config.rope, config.head_dim)
        self.table = OpTable(backend, kernels, config.num_hidden_layers)

    @property
    def dtype(self) -> str:
        """How the weights are stored; bfloat16 is kept as raw 16-bit words."""
        stored = str(self.embedding.dtype)
        return "bfloat16" if stored == "uint16" else stored

    def new_cache(self, max_length: int | None = None) -> KVCache:
        """An empty KV cache for one sequence; the whole context unless told less."""
        config = self.config
        if max_length is None:
            max_length = config.max_position_embeddings
        check_whole_number("max_length", max_length, 1)
        if max_length > config.max_position_embeddings:
            raise ContextError(
                f"a KV cache of {max_length} tokens is longer than the model's context of "
                f"{config.max_position_embeddings}"
            )
        heads, layers = config.num_key_value_heads, config.num_hidden_layers
        return KVCache(self.backend.xp, layers, heads, max_length, config.head_dim)

    def step(self, segments: Sequence[Segment], all_rows: bool = False) -> Array:
        """One pass over the next tokens of several sequences, of any lengths.

        -> float32 logits on the device: (segments, V), the last row of each, or (sum of T, V).
        Every cache then stands for its new tokens too. Nothing is written when an id is out of
        range, a segment is empty, a cache is too short or stands there twice (ContextError).
        """
        segments = check_segments(segments, self.config)
        ops = self.table.bind(RECORDING.get())
        batch = lay_out(ops, segments, self.inverse_frequencies)
        logits = ops.transformer(self, batch, all_rows)  # (N, V)
        for token_ids, cache in segments:
            cache.advance(token_ids)
        return logits

    def forward(
        self, token_ids: Sequence[int], cache: KVCache | None = None, last_only: bool = False
    ) -> Array:
        """One pass over the next tokens of one sequence -> logits (T, V), or (1, V) float32."""
        if cache is None:
            token_ids = check_ids(token_ids, self.config.vocab_size)
            cache = self.new_cache(len(token_ids))
        return self.step([Segment(token_ids, cache)], all_rows=not last_only)

    def score(self, token_ids: Sequence[int], chunk: int = 128) -> Array:
        """How likely each token was after those before it: float64 log-probabilities (T-1,)."""
        xp = self.backend.xp
        token_ids = check_ids(token_ids, self.config.vocab_size)
        check_whole_number("chunk", chunk, 1)
        cache = self.new_cache(len(token_ids))
        found = []
        for begin in range(0, len(token_ids), chunk):
            logits = self.forward(token_ids[begin : begin + chunk], cache)  # (T, V)
            following = xp.asarray(token_ids[begin + 1 : begin + chunk + 1], dtype=xp.int64)
            rows = xp.arange(len(following))  # the last token of all has nothing after it
            found.append(log_softmax(xp, logits[: len(following)])[rows, following])
        return self.backend.to_host(xp.concatenate(found))

    def swap(self, **functions: Callable) -> Undo:
        """`with model.swap(rope=mine):` runs your function in the place of an op."""
        return self.table.swap(functions)

    def hook(self, name: str, function: Callable) -> Undo:
        """`with model.hook("layers.3.attention.weights", see):` shows you a copy of each one."""
        return self.table.hook(name, function)

    def render(self, messages: list[dict], add_generation_prompt: bool = True) -> str:
        """Messages [{role, content}] -> the prompt's text, as the model's template writes it."""
        return self._template().render(messages, add_generation_prompt=add_generation_prompt)

    def encode_chat(self, messages: list[dict], add_generation_prompt: bool = True) -> list[int]:
        """Messages -> token ids. An added token's text inside a message stays plain text."""
        template = self._template()
        if self.tokenizer is None:
            raise TokenizerError(f"{self.name or 'the model'} has no tokenizer.json")
        return template.encode(self.tokenizer, messages, add_generation_prompt)

    def _template(self) -> ChatTemplate:
        if self.template is None:
            raise TemplateError(
                f"{self.name or 'the model'} has no chat template; pass the prompt as plain text "
                "(on the command line: --no-chat)"
            )
        return self.template


def _layer(weights: Mapping[str, Array], index: int) -> Layer:
    prefix = f"layers.{index}."
    mine = {name: weights[prefix + name] for name in Layer._fields if prefix + name in weights}
    return Layer(**mine)
