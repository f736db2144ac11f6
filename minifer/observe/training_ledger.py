"""What a training step must hold, in bytes, from the configuration alone: no array is made.

Of every parameter: its weight, its gradient and AdamW's two moments (Loshchilov and Hutter 2019),
in float32 perhaps with a master copy. Of every token: activations, the tensors that the backward
pass of an op needs and that the forward pass therefore keeps. An activation has the dtype of the
weights; a figure per row and the log-probabilities are float32, token ids int64. A tensor that two
ops keep counts once, at the first of them.

Not counted is what lives only for a moment (gradients of activations, work space of a kernel, the
logits before their log-softmax), AdamW's step counters and what an allocator rounds up.

Stock torch 2.13 on a CPU keeps more, measured op by op (tests/golden/training_ledger.json), with t
tokens in each sequence and e bytes per element: rms_norm its rows and its normalised rows, both
float32 (8*T*D + 4*T); the gate its silu too (3*e*T*F); attention's math kernel float32 copies of
query, of key and value once per query head, and the weights (12*T*H*E + 4*H*T*t); cross_entropy
one float32 more. linear, rope and attention's flash kernel keep exactly what stands here.
"""

from typing import NamedTuple

from ..checks import check_whole_number
from ..config import ModelConfig
from ..errors import ContextError, MiniferError
from .passes import parameters


class Variant(NamedTuple):
    """Bytes per parameter of each copy. An activation's element is as wide as a weight's."""

    weight: int
    gradient: int
    master: int
    moment: int  # each of the two


# fp32-master is mixed precision, K = 12 of Rajbhandari et al. 2020 (ZeRO), section 3.1.
VARIANTS = {
    "2-byte": Variant(2, 2, 0, 2),
    "fp32-master": Variant(2, 2, 4, 4),
    "float32": Variant(4, 4, 0, 4),
}
POLICIES = ("kept", "flash", "checkpointed")


class Activations(NamedTuple):
    """Bytes that the backward pass needs, by op and by how long they are held."""

    shared: dict[str, int]  # once for all layers, to the end of the step
    per_layer: dict[str, int]  # in each of the layers
    layers: int
    loss: dict[str, int]  # after the last layer; let go before a layer's backward pass begins
    recomputed: dict[str, int]  # in one layer at a time; only when checkpointed

    @property
    def total(self) -> int:
        """Bytes at the peak. Recomputing begins when the loss has let go: the larger one counts."""
        once = max(sum(self.loss.values()), sum(self.recomputed.values()))
        return sum(self.shared.values()) + self.layers * sum(self.per_layer.values()) + once

    def lines(self) -> list[str]:
        """A table of 77 columns: bytes of each op that keeps any, then the peak."""
        parts = [("shared", self.shared), (f"each of {self.layers:,} layers", self.per_layer)]
        parts += [("loss", self.loss), ("recomputed", self.recomputed)]
        found = [f"{'activations':<44} {'bytes':>32}"]
        for title, ops in parts:
            kept = {name: size for name, size in ops.items() if size}
            found += [f"{f'{title}: {name}':<44} {size:>32,}" for name, size in kept.items()]
        peak = "peak: of loss and recomputed the larger" if self.recomputed else "peak"
        return [*found, f"{peak:<44} {self.total:>32,}"]


class TrainingLedger(NamedTuple):
    """Bytes that a training step holds at its peak."""

    weights: int
    gradients: int
    master_weights: int
    first_moment: int
    second_moment: int
    activations: int
    total: int

    def lines(self) -> list[str]:
        """A table of 63 columns: bytes and share of each part."""
        found = [f"{'training step':<20} {'bytes':>32} {'share':>9}"]
        for name, size in zip(self._fields, self, strict=True):
            share = f"{100 * size / self.total:.1f} %"
            found.append(f"{name.replace('_', ' '):<20} {size:>32,} {share:>9}")
        return found


def activation_ledger(
    config: ModelConfig,
    tokens: int,
    sequences: int = 1,
    variant: str = "fp32-master",
    activations: str = "kept",
) -> Activations:
    """Bytes of activations, op by op. Arguments and errors are those of `training_ledger`.

    One layer, kept, with H*E = D, K = H and F = 8D/3, is s*b*h*(32 + 2*a*s/h) + 8*s*b in the
    letters of Korthikanti et al. 2022 (arXiv 2205.05198), where it is s*b*h*(34 + 5*a*s/h):
    without dropout there are no masks (2*s*b*h + a*s*s*b) and no dropped copy of the weights
    (2*a*s*s*b), SwiGLU's three tensors of 8D/3 are GeLU's two of 4D, and 8*s*b are the norms' rows.
    """
    _check(config, tokens, sequences, variant, activations)
    T, e = int(tokens), VARIANTS[variant].weight  # e: bytes per element
    each = T // int(sequences)  # the weights of attention are a square per sequence
    D, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
    H, K, E = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    L = config.num_hidden_layers

    flash = activations != "kept"
    turned = e * T * H * E + 2 * e * T * K * E  # query and key after rope, value
    mixed = e * T * H * E
    layer = {
        "attention_norm": e * T * D + 4 * T,  # its input, 1 / rms of each row
        "query_key_value": e * T * D,  # three linears share their input
        "rope": 0,  # cosines and sines, shared
        # Weights; or output (Dao et al. 2022) and log-sum-exp of each row and head (Dao 2023).
        "attention": turned + (mixed + 4 * T * H if flash else e * H * T * each),
        "output": 0 if flash else mixed,  # flash keeps the linear's input already
        "attention_residual": 0,  # a sum hands its gradient on as it is
        "mlp_norm": e * T * D + 4 * T,
        "gate_up": e * T * D,  # two linears share their input
        "gate": 2 * e * T * F,  # opening and content; silu is computed again
        "down": e * T * F,
        "mlp_residual": 0,
    }
    shared = {"embedding": 8 * T, "rope": 4 * T * E}  # ids; cosine and sine (T, E/2)
    loss = {
        "final_norm": e * T * D + 4 * T,
        "head": e * T * D,
        "cross_entropy": 4 * T * V + 8 * T,  # log-softmax, the ids that were right
    }
    if activations != "checkpointed":
        return Activations(shared, layer, L, loss, {})
    # Chen et al. 2016: the rest of a layer is computed again from its input, which stays held.
    again = layer | {"attention_norm": 4 * T}
    return Activations(shared, {"input": e * T * D}, L, loss, again)


def training_ledger(
    config: ModelConfig,
    tokens: int,
    sequences: int = 1,
    variant: str = "fp32-master",
    activations: str = "kept",
) -> TrainingLedger:
    """Bytes that one training step holds.

    `tokens` are those of all sequences together (T), `sequences` of equal length, each token with
    a target. Of `variant` (bytes per parameter):
      2-byte       weights, gradients, both moments in 2 bytes: 8
      fp32-master  2-byte weights and gradients, float32 master weights and moments: 16
      float32      weights, gradients, both moments in float32: 16
    Of `activations`:
      kept          every tensor a gradient needs, the weights of attention too
      flash         of attention only query, key, value, output, log-sum-exp (Dao et al. 2022);
                    less than kept from 3 tokens a sequence on (in float32 from 2)
      checkpointed  each layer's input; a layer is computed again, as flash (Chen et al. 2016)

    Raises MiniferError for an argument that is none of these, and for sequences that are of
    unequal length or longer than the model's context.
    """
    kept = activation_ledger(config, tokens, sequences, variant, activations).total
    count, bytes_of = parameters(config), VARIANTS[variant]
    weights, gradients = count * bytes_of.weight, count * bytes_of.gradient
    master, moment = count * bytes_of.master, count * bytes_of.moment
    total = weights + gradients + master + 2 * moment + kept
    return TrainingLedger(weights, gradients, master, moment, moment, kept, total)


def _check(config, tokens, sequences, variant, activations) -> None:
    if not isinstance(config, ModelConfig):
        raise MiniferError(f"config is {config!r:.40}; allowed is a ModelConfig, as model.config")
    check_whole_number("tokens", tokens, 1, MiniferError)
    check_whole_number("sequences", sequences, 1, MiniferError)
    for name, value, allowed in (
        ("variant", variant, tuple(VARIANTS)),
        ("activations", activations, POLICIES),
    ):
        if not isinstance(value, str) or value not in allowed:
            raise MiniferError(f"{name} is {value!r:.40}; allowed are {', '.join(allowed)}")
    if tokens % sequences:
        raise MiniferError(
            f"{tokens} tokens in {sequences} sequences; allowed is a multiple of {sequences}: "
            "sequences are of equal length"
        )
    if tokens // sequences > config.max_position_embeddings:
        raise ContextError(
            f"a sequence has {tokens // sequences} tokens; allowed are at most "
            f"{config.max_position_embeddings}, the model's context"
        )
