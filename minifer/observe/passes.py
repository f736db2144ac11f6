"""What a whole pass costs, in closed form, from the configuration alone.

Each formula here is the sum of what the ops of a pass cost (the cost functions beside the ops); a
test holds the two, and the counting array, against one another to the integer. The letters are
those of the dimension key; T new tokens of all segments, R rows that reach the head.

    matrices of a layer   2DHE + 2DKE + 3DF          P_mm = L (...) + VD
    linear layers         2 FLOPs per weight and token; the head for R rows alone
    attention             4E FLOPs per head and pair of a query and a key it may see
    a pair is visible     when the key does not stand after the query: T cached + T(T+1)/2
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..checks import whole_number
from ..config import ModelConfig
from ..errors import MiniferError
from ..op import Cost

ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
CONVENTION = (
    "FLOPs: 2 per multiply-add, 1 per element a ufunc writes or a reduction reads; moving, "
    "comparing and widening are 0. Required: visible pairs, each weight once as stored, KV read "
    "once and written once, inputs and results once. Executed: hidden pairs too, and every "
    "operand and result of every array call."
)


class Stored(NamedTuple):
    """How many bytes the weights take as stored, and what widening them to float32 moves."""

    embedding_itemsize: int
    matrices: int  # of all linear layers: biases and head with them
    matrices_widening: int
    norms: int
    norms_widening: int


class Line(NamedTuple):
    """One op over a whole pass."""

    calls: int
    cost: Cost


def itemsize(dtype: str) -> int:
    """Bytes per element of a stored dtype."""
    if not isinstance(dtype, str) or dtype not in ITEMSIZES:
        raise MiniferError(f"dtype is {dtype!r:.40}; allowed: {', '.join(ITEMSIZES)}")
    return ITEMSIZES[dtype]


def layer_matrices(c: ModelConfig) -> int:
    """Weights of the linear layers of one block, without biases."""
    D, F, E = c.hidden_size, c.intermediate_size, c.head_dim
    H, K = c.num_attention_heads, c.num_key_value_heads
    return 2 * D * H * E + 2 * D * K * E + 3 * D * F


def layer_biases(c: ModelConfig) -> int:
    """Elements of the biases of one block."""
    D, F, E = c.hidden_size, c.intermediate_size, c.head_dim
    H, K = c.num_attention_heads, c.num_key_value_heads
    attention = H * E + 2 * K * E + D if c.attention_bias else 0
    return attention + (2 * F + D if c.mlp_bias else 0)


def matmul_parameters(c: ModelConfig) -> int:
    """P_mm: weights every token is multiplied with, the head among them, tied or not."""
    return c.num_hidden_layers * layer_matrices(c) + c.vocab_size * c.hidden_size


def norm_parameters(c: ModelConfig) -> int:
    """Two norms per layer and the last one."""
    return (2 * c.num_hidden_layers + 1) * c.hidden_size


def parameters(c: ModelConfig) -> int:
    """Everything a checkpoint holds; a tied head counts once."""
    embedding = 0 if c.tie_word_embeddings else c.vocab_size * c.hidden_size
    biases = c.num_hidden_layers * layer_biases(c)
    return matmul_parameters(c) + embedding + biases + norm_parameters(c)


def stored_as(c: ModelConfig, dtype: str) -> Stored:
    """All weights in one dtype."""
    w = itemsize(dtype)
    widened = 0 if w == 4 else w + 4  # read as stored, written as float32
    matrices = matmul_parameters(c) + c.num_hidden_layers * layer_biases(c)
    norms = norm_parameters(c)
    return Stored(w, w * matrices, widened * matrices, w * norms, widened * norms)


def stored_by(model: Any) -> Stored:
    """The weights of a loaded model, which may mix dtypes."""
    norms = [model.final_norm, *(w for x in model.layers for w in (x.attention_norm, x.mlp_norm))]
    matrices = [model.head]
    for layer in model.layers:
        named = layer._asdict().items()
        matrices += [w for name, w in named if w is not None and not name.endswith("_norm")]

    def widening(arrays: list) -> int:
        return sum(a.size * (a.itemsize + 4) for a in arrays if a.itemsize != 4)

    return Stored(
        model.embedding.itemsize,
        sum(a.nbytes for a in matrices),
        widening(matrices),
        sum(a.nbytes for a in norms),
        widening(norms),
    )


def checked_segments(segments: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Segments a pass can have: at least one, each of 1 or more new tokens after 0 or more.

    Recordings ask for each decode step, so plain int are looked at once and nothing is copied.
    """
    try:
        for new, cached in segments:
            if type(new) is not int or type(cached) is not int or new < 1 or cached < 0:
                break
        else:
            if segments:
                return segments
        found = [(whole_number(new, 1), whole_number(cached, 0)) for new, cached in segments]
    except (TypeError, ValueError):  # no pairs at all
        found = []
    if not found or any(None in pair for pair in found):
        raise MiniferError(
            f"segments are {segments!r:.60}; allowed is a list of one or more pairs "
            "(new tokens from 1, tokens in the cache from 0), whole numbers, as [(5, 0)]"
        )
    return found  # of NumPy's whole numbers: int, which do not overflow


def pass_costs(
    c: ModelConfig,
    segments: Sequence[tuple[int, int]],
    stored: Stored | str = "float32",
    all_rows: bool = False,
) -> dict[str, Line]:
    """op -> how often it is called in one pass and what that costs in all, on the reference path.

    segments: (new tokens, tokens in the cache) of each sequence. Activations and KV are float32,
    token ids and positions 8 bytes, as everywhere on the CPU.
    """
    segments = checked_segments(segments)
    if not isinstance(stored, Stored):
        stored = stored_as(c, stored)
    D, F, L = c.hidden_size, c.intermediate_size, c.num_hidden_layers
    H, K, E = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    N, T = len(segments), sum(new for new, _ in segments)
    R = T if all_rows else N
    ids, half = 8 * T, E // 2

    w = stored.embedding_itemsize
    gathered, wide = w * T * D, 4 * T * D
    found = {
        "rotation": Line(
            1,
            Cost(
                flops=3 * T * half,
                executed_flops=3 * T * half,
                activation_bytes=ids + 4 * half + 8 * T * half,
                executed_bytes=ids + 4 * half + 8 * T + 20 * T * half,
            ),
        ),
        "embedding": Line(
            1,
            Cost(
                weight_bytes=gathered,
                activation_bytes=ids + wide,
                executed_bytes=2 * gathered + ids + (0 if w == 4 else gathered + wide),
            ),
        ),
        "rms_norm": Line(2 * L + 1, _norms(2 * L * T + R, D, 2 * L + 1, stored)),
        "linear": Line(7 * L + 1, _linear(c, T, R, stored)),
        "rope": Line(2 * L, _rope(L * T * (H + K) * E, 2 * L * T * half)),
        "store": Line(2 * L * N, _moved(0, kv=8 * L * T * K * E)),
        "attention": Line(L * N, _attention(c, segments)),
        "join": Line(L, _moved(0 if N == 1 else 8 * L * T * H * E)),
        "residual": Line(2 * L, _elementwise(2 * L * T * D, flops=1, operands=3, executed=3)),
        "gate": Line(L, _elementwise(L * T * F, flops=6, operands=3, executed=14)),
    }
    if not all_rows:
        found["select"] = Line(1, _moved(8 * N * D + 8 * N))
    return found


def total(costs: dict[str, Line]) -> Cost:
    """The whole pass."""
    return sum((line.cost for line in costs.values()), Cost())


def matmul_flops(
    c: ModelConfig, segments: Sequence[tuple[int, int]], all_rows: bool = False
) -> int:
    """Required FLOPs of the matrix products alone: linear layers and visible pairs."""
    segments = checked_segments(segments)
    T = sum(new for new, _ in segments)
    R = T if all_rows else len(segments)
    head = c.vocab_size * c.hidden_size
    linear = 2 * T * c.num_hidden_layers * layer_matrices(c) + 2 * R * head
    return linear + attention_flops_per_context_token(c) * visible_pairs(segments)


def attention_flops_per_context_token(c: ModelConfig) -> int:
    """4HEL: what one more visible key costs a query, over all layers."""
    return 4 * c.num_attention_heads * c.head_dim * c.num_hidden_layers


def visible_pairs(segments: Sequence[tuple[int, int]]) -> int:
    """Pairs of a new token and a key it may see, per head and layer."""
    return sum(new * cached + new * (new + 1) // 2 for new, cached in segments)


def _norms(rows: int, D: int, weights: int, stored: Stored) -> Cost:
    flops = 4 * rows * D + 4 * rows
    executed = 28 * rows * D + 40 * rows + 4 * weights * D + stored.norms_widening
    return Cost(flops, flops, stored.norms, activation_bytes=8 * rows * D, executed_bytes=executed)


def _linear(c: ModelConfig, T: int, R: int, stored: Stored) -> Cost:
    D, F, V, L = c.hidden_size, c.intermediate_size, c.vocab_size, c.num_hidden_layers
    HE, KE = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    matrices, biases = layer_matrices(c), layer_biases(c)
    flops = T * L * (2 * matrices + biases) + 2 * R * V * D
    # In: D to query, key, value, gate and up; HE to output; F to down. Out: the other ends.
    moved = 4 * T * L * ((5 * D + HE + F) + (HE + 2 * KE + D + 2 * F + D)) + 4 * R * (D + V)
    # A bias is added to the whole product, which is read and written once more.
    executed = 4 * (L * matrices + V * D) + 4 * L * biases + 8 * T * L * biases
    return Cost(
        flops,
        flops,
        stored.matrices,
        activation_bytes=moved,
        executed_bytes=executed + moved + stored.matrices_widening,
    )


def _rope(elements: int, angles: int) -> Cost:
    """3 FLOPs per element; `angles` of T * E/2, over all calls, each a cosine and a sine."""
    return Cost(
        3 * elements,
        3 * elements,
        activation_bytes=8 * elements + 8 * angles,
        executed_bytes=36 * elements + 16 * angles,
    )


def _attention(c: ModelConfig, segments: Sequence[tuple[int, int]]) -> Cost:
    H, K, E = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    found = Cost()
    for T, cached in segments:
        S, visible = T + cached, H * visible_pairs([(T, cached)])
        rows, kv, ids = T * H * E + 2 * T * H, 8 * K * S * E, 8 * (T + S)
        copies = (T > 1 and 1 < K < H) + (T > 1 and K > 1)  # else a reshape is a view
        found += Cost(
            (4 * E + 5) * visible + rows,
            (4 * E + 5) * H * T * S + rows,
            kv_bytes_read=kv,
            activation_bytes=8 * T * H * E + ids,
            executed_bytes=48 * H * T * S + 32 * H * T + (16 + 8 * copies) * T * H * E
            + 2 * T * S + kv + ids,
        )  # fmt: skip
    return found * c.num_hidden_layers


def _elementwise(elements: int, flops: int, operands: int, executed: int) -> Cost:
    return Cost(
        flops * elements,
        flops * elements,
        activation_bytes=4 * operands * elements,
        executed_bytes=4 * executed * elements,
    )


def _moved(moved: int, kv: int = 0) -> Cost:
    """Rows read and written; or, into the cache, read as activations and written as KV."""
    return Cost(kv_bytes_written=kv, activation_bytes=moved + kv, executed_bytes=moved + 2 * kv)
