"""What inference must hold, in bytes: weights, KV cache and, for a moment, activations.

The peak of the activations is that of the reference path on NumPy, where every intermediate has a
name and so lives until its function returns. Each moment that can be the peak is a formula; the
largest wins. The counting array, which follows every buffer from birth to death, agrees to the
integer. Token ids and positions (8 bytes each) are not counted.
"""

import tracemalloc
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..checks import check_whole_number
from ..config import ModelConfig
from ..errors import ContextError
from .passes import checked_segments, itemsize, parameters


class InferenceLedger(NamedTuple):
    """Bytes that inference holds."""

    weights: int
    kv_cache: int  # reserved, for `context` tokens
    peak_activations: int
    total: int
    peak_moment: str  # where the activations are the most
    widened: int  # of them: a float32 copy of 16-bit weights that are just at work

    def lines(self) -> list[str]:
        """A table of 63 columns: bytes and share of each part."""
        found = [f"{'inference':<20} {'bytes':>32} {'share':>9}"]
        for name, size in list(zip(self._fields, self, strict=True))[:4]:
            share = f"{100 * size / self.total:.1f} %"
            found.append(f"{name.replace('_', ' '):<20} {size:>32,} {share:>9}")
        return [*found, f"the activations are the most in: {self.peak_words()}"]

    def peak_words(self) -> str:
        """The moment, and how much of it is a copy of weights."""
        if not self.widened:
            return self.peak_moment
        return f"{self.peak_moment}, {self.widened:,} of them a float32 copy of its weights"


def inference_ledger(
    config: ModelConfig,
    tokens: int,
    context: int,
    dtype: str = "float32",
    cached: int = 0,
    kv_dtype: str = "float32",
) -> InferenceLedger:
    """One sequence: a pass of `tokens` new ones after `cached`, in a cache of `context` tokens.

    Our own cache is float32; another `kv_dtype` is for what-if. Raises MiniferError for a dtype,
    ContextError for lengths that are none or do not fit.
    """
    _check(config, tokens, context, cached)
    tokens, context, cached = int(tokens), int(context), int(cached)  # NumPy's would overflow
    weights = itemsize(dtype) * parameters(config)
    kv_cache = itemsize(kv_dtype) * config.kv_elements_per_token * context
    moments = activation_moments(config, [(tokens, cached)], dtype)
    moment = max(moments, key=lambda name: moments[name])
    peak = moments[moment]
    return InferenceLedger(
        weights,
        kv_cache,
        peak,
        weights + kv_cache + peak,
        moment,
        widened_bytes(config, moment, dtype),
    )


def _check(config: ModelConfig, tokens: int, context: int, cached: int) -> None:
    limit = config.max_position_embeddings
    for name, value, low in (("tokens", tokens, 1), ("context", context, 1), ("cached", cached, 0)):
        check_whole_number(name, value, low)
    if context > limit:
        raise ContextError(f"context is {context}; allowed are 1 to {limit}, the model's own")
    if tokens + cached > context:
        raise ContextError(
            f"{tokens} tokens after {cached} cached need {tokens + cached} places; the cache of "
            f"`context` tokens has {context}: give a longer context, or fewer tokens"
        )


def widened_bytes(c: ModelConfig, moment: str, dtype: str) -> int:
    """Bytes of the float32 copy that a linear layer makes of 16-bit weights on this path."""
    D, HE = c.hidden_size, c.num_attention_heads * c.head_dim
    matrices = {
        "query projection": D * HE,
        "value projection": D * c.num_key_value_heads * c.head_dim,
        "output projection": D * HE,
        "up projection": D * c.intermediate_size,
        "down projection": D * c.intermediate_size,
        "head": D * c.vocab_size,
    }
    return 0 if itemsize(dtype) == 4 else 4 * matrices.get(moment, 0)


def activation_moments(
    c: ModelConfig,
    segments: Sequence[tuple[int, int]],
    dtype: str = "float32",
    all_rows: bool = False,
) -> dict[str, int]:
    """Moment -> bytes of all arrays alive then. segments: (new tokens, tokens in the cache).

    What is always less than one of these (the embedding, the first norm, ...) is left out.
    """
    segments = checked_segments(segments)
    D, F, V = c.hidden_size, c.intermediate_size, c.vocab_size
    H, K, E = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    N, T = len(segments), sum(new for new, _ in segments)
    R, half, w = T if all_rows else N, E // 2, itemsize(dtype)

    def linear(rows: int, out: int, width: int, bias: bool = False) -> int:
        added = rows * out + (0 if w == 4 else out) if bias else 0  # the sum; the bias widened
        return 4 * (rows * out + added + (0 if w == 4 else out * width))

    x, query, key = 4 * T * D, 4 * T * H * E, 4 * T * K * E  # a value is as large as a key
    stream = 8 * T * half + x  # cosines, sines and the residual stream: alive through all layers
    early = stream + x  # the normalised copy
    late = stream + 3 * x  # the copy, attention's result, its sum with the stream
    # Square, mean, scale, the scaled rows, the weight widened, the result.
    norm = 4 * (3 * T * D + 2 * T) + (0 if w == 4 else 4 * D)
    attended, parts = 0, 0
    for new, cached in segments:  # what earlier segments found is kept
        attended = max(attended, parts + _attention(c, new, new + cached))
        parts += 4 * new * H * E
    joined = parts if N == 1 else 2 * parts
    gathered, biased = 4 * R * D, c.attention_bias
    return {
        "query projection": early + linear(T, H * E, D, biased),
        "value projection": early + query + key + linear(T, K * E, D, biased),
        "rope of the queries": early + query + 2 * key + query + 3 * query // 2,
        "attention": early + query + 2 * key + attended,
        "output projection": early + query + 2 * key + joined + linear(T, D, H * E, biased),
        "second norm of a layer": late + norm,
        "up projection": late + 4 * T * F + linear(T, F, D, c.mlp_bias),
        "gate": late + 6 * 4 * T * F,  # opening, content; bounded, decay and two more
        "down projection": late + 3 * 4 * T * F + linear(T, D, F, c.mlp_bias),
        "head": 8 * T * half + 2 * gathered + linear(R, V, D),
    }


def _attention(c: ModelConfig, T: int, S: int) -> int:
    """Everything attention has named when it returns."""
    H, K, E = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    copied = T > 1 and 1 < K < H
    merged = T > 1 and K > 1
    rows = (2 + copied + merged) * T * H * E  # scaled, sums; rows, by_token where they are copies
    return 4 * (rows + 5 * H * T * S + 4 * H * T) + T * S  # and the mask, a byte each


def measure_peak(model: Any, segments: Sequence[Any], all_rows: bool = False) -> int:
    """Bytes that Python and NumPy allocate at most during one pass, beyond what was there before.

    Measured by tracemalloc, on the kernels the model would run anyway. It does not see the work
    space of a BLAS. NumPy may compute into a temporary nobody names (from 256 KiB on, on Linux),
    so a big pass takes less than the formula says.
    """
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start(1)
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        model.step(segments, all_rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if not running:
            tracemalloc.stop()
    return peak - before
