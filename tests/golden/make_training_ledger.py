"""Make training_ledger.json: bytes that torch's autograd saves for a backward pass, op by op.

Run once, in an environment of its own; the file is committed and tests need no torch:

    pip install torch transformers && python make_training_ledger.py

The model is transformers' own tiny Llama, its weights run through functions written out here, so
that each op can be labelled. What autograd saves is read off with saved_tensors_hooks: distinct
storages, parameters left out, each with the first op that saved it. `stock` runs torch's own ops,
`minimal` the functions of training_ledger_autograd.py where torch keeps more than a gradient needs.
"""

import json
from collections import Counter
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch
import torch.nn.functional as F
import training_ledger_autograd as minimal
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

# V, D, F, L, H, K, E, tokens of each sequence, biases, tied.
CASES = {
    "grouped": (50, 24, 40, 3, 6, 2, 4, 7, False, False),
    "tied_biased": (61, 32, 44, 2, 4, 4, 8, 9, True, True),
    "one_kv_head": (37, 24, 36, 4, 3, 1, 10, 16, False, True),
    "wide_vocabulary": (900, 16, 24, 2, 2, 1, 8, 5, False, False),  # the loss is the peak
}
KERNEL = {"kept": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}


class Held:
    """A saved tensor. It dies when autograd lets go of it, and leaves the record."""

    def __init__(self, record, tensor):
        self.record, self.tensor = record, tensor
        self.key = tensor.untyped_storage().data_ptr()
        record.alive[self.key] += 1
        if record.alive[self.key] == 1:
            size = tensor.untyped_storage().nbytes()
            record.sizes[self.key] = size
            record.by_op[record.label] += size
            record.now += size
            record.peak = max(record.peak, record.now)

    def __del__(self):
        self.record.alive[self.key] -= 1
        if self.record.alive[self.key] == 0:
            self.record.now -= self.record.sizes[self.key]


class Record:
    """Distinct storages that autograd saves, parameters left out: by op, now, at the peak."""

    def __init__(self, parameters):
        self.parameters = {weight.untyped_storage().data_ptr() for weight in parameters}
        self.alive, self.sizes, self.by_op = Counter(), {}, Counter()
        self.now = self.peak = 0
        self.label = None

    def pack(self, tensor):
        if tensor.untyped_storage().data_ptr() in self.parameters:
            return tensor
        return Held(self, tensor)

    def unpack(self, held):
        return held.tensor if isinstance(held, Held) else held

    @contextmanager
    def op(self, *label):
        before, self.label = self.label, label
        yield
        self.label = before


def stock_attention(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


STOCK = {
    "rms_norm": lambda x, weight, epsilon: F.rms_norm(x, weight.shape, weight, epsilon),
    "gate": lambda opening, content: F.silu(opening) * content,
    "attention": stock_attention,
    "cross_entropy": lambda logits, targets: F.cross_entropy(logits, targets),
}
MINIMAL = {
    "rms_norm": minimal.RmsNorm.apply,
    "gate": minimal.Gate.apply,
    "attention": minimal.Attention.apply,
    "cross_entropy": minimal.CrossEntropy.apply,
}


def rope(heads, cos, sin):
    """heads (B, T, N, E), cos (B, T, 1, E/2): in float32, then back to the heads' dtype."""
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(heads.dtype)


def block(config, weights, ops, record, index, x, cos, sin):
    """One layer. x (B, T, D) -> (B, T, D)"""
    E = config.head_dim
    own = {
        name.removeprefix(f"model.layers.{index}."): weight
        for name, weight in weights.items()
        if name.startswith(f"model.layers.{index}.")
    }

    def linear(x, name):
        return F.linear(x, own[name + ".weight"], own.get(name + ".bias"))

    def op(name):
        return record.op(index, name)

    with op("attention_norm"):
        normed = ops["rms_norm"](x, own["input_layernorm.weight"], config.rms_norm_eps)
    with op("query_key_value"):
        query, key, value = (
            linear(normed, f"self_attn.{part}_proj").unflatten(-1, (-1, E)) for part in "qkv"
        )
    with op("rope"):
        query, key = rope(query, cos, sin), rope(key, cos, sin)
    with op("attention"):
        mixed = ops["attention"](*(heads.transpose(1, 2) for heads in (query, key, value)))
        mixed = mixed.transpose(1, 2).flatten(2)
    with op("output"):
        update = linear(mixed, "self_attn.o_proj")
    with op("attention_residual"):
        x = x + update
    with op("mlp_norm"):
        normed = ops["rms_norm"](x, own["post_attention_layernorm.weight"], config.rms_norm_eps)
    with op("gate_up"):
        opening, content = linear(normed, "mlp.gate_proj"), linear(normed, "mlp.up_proj")
    with op("gate"):
        gated = ops["gate"](opening, content)
    with op("down"):
        update = linear(gated, "mlp.down_proj")
    with op("mlp_residual"):
        return x + update


def forward(config, weights, ops, record, ids, targets, angles, checkpointed=False):
    """Token ids (B, T) -> the mean loss and the logits (B, T, V)."""
    with record.op("shared", "embedding"):
        x = F.embedding(ids, weights["model.embed_tokens.weight"])
    for index in range(config.num_hidden_layers):
        if checkpointed:
            with record.op(index, "input"):
                x = checkpoint(
                    lambda x, index=index: block(config, weights, ops, record, index, x, *angles),
                    x,
                    use_reentrant=True,  # runs the block again under our hooks
                    preserve_rng_state=False,
                )
        else:
            x = block(config, weights, ops, record, index, x, *angles)
    with record.op("loss", "final_norm"):
        normed = ops["rms_norm"](x, weights["model.norm.weight"], config.rms_norm_eps)
    with record.op("loss", "head"):
        logits = F.linear(normed, weights["lm_head.weight"])
    with record.op("loss", "cross_entropy"):
        loss = ops["cross_entropy"](logits.float().flatten(0, 1), targets.flatten())
    return loss, logits


def inputs(config, sequences, length):
    ids = torch.randint(config.vocab_size, (sequences, length))
    targets = torch.randint(config.vocab_size, (sequences, length))
    pairs = torch.arange(0, config.head_dim, 2) / config.head_dim
    angles = torch.arange(length)[:, None] / 10000.0**pairs
    angles = angles.expand(sequences, -1, -1)[:, :, None]  # (B, T, 1, E/2)
    return ids, targets, (angles.cos(), angles.sin())


def measure(config, weights, ops, policy, given):
    """A forward and a backward pass -> {"shared" | "per_layer" | "loss": {op: bytes}, "peak"}."""
    checkpointed = policy == "checkpointed"
    record = Record(weights.values())
    kernel = KERNEL["flash" if checkpointed else policy]
    seen = []
    with saved_tensors_hooks(record.pack, record.unpack), sdpa_kernel(kernel):
        if checkpointed:  # its blocks forget the angles; the caller holds them all the same
            with record.op("shared", "rope"):
                seen = [Held(record, angle) for angle in given[2]]
        loss, _ = forward(config, weights, ops, record, *given, checkpointed)
        found = Counter(record.by_op)
        loss.backward()
    seen.clear()
    assert record.now == 0, "autograd still holds something"
    layers = [
        {op: size for (place, op), size in found.items() if place == index}
        for index in range(config.num_hidden_layers)
    ]
    # The angles are all layers' own, though the first is the one that saves them.
    shared = {op: size for (place, op), size in found.items() if place == "shared"}
    if not checkpointed:
        shared["rope"] = layers[0].pop("rope")
    assert all(layer == layers[0] for layer in layers)
    loss_part = {op: size for (place, op), size in found.items() if place == "loss"}
    return {"shared": shared, "per_layer": layers[0], "loss": loss_part, "peak": record.peak}


def states(weights, variant):
    """Bytes of weights, gradients, master weights and AdamW's moments after a step."""
    dtype = torch.float32 if variant == "float32" else torch.bfloat16
    own = [weight.detach().to(dtype).requires_grad_() for weight in weights]
    for weight in own:
        weight.grad = torch.ones_like(weight)
    master = [weight.detach().float() for weight in own] if variant == "fp32-master" else []
    for copy, weight in zip(master, own, strict=False):
        copy.grad = weight.grad.float()
    optimizer = torch.optim.AdamW(master or own)
    optimizer.step()
    moments = optimizer.state.values()

    def total(tensors):
        return sum(tensor.nbytes for tensor in tensors)

    return {
        "weights": total(own),
        "gradients": total(weight.grad for weight in own),
        "master_weights": total(master),
        "first_moment": total(moment["exp_avg"] for moment in moments),
        "second_moment": total(moment["exp_avg_sq"] for moment in moments),
    }


def check_stack(model, given):
    """The functions above are transformers' model, and what `minimal` keeps gives its gradients."""
    model.double()
    weights, config = dict(model.named_parameters(remove_duplicate=False)), model.config
    gradients = []
    for ops, policy in ((STOCK, "kept"), (MINIMAL, "kept"), (MINIMAL_FLASH, "checkpointed")):
        model.zero_grad()
        kernel = KERNEL.get(policy, SDPBackend.FLASH_ATTENTION)
        with sdpa_kernel(kernel):
            record = Record(())
            loss, logits = forward(config, weights, ops, record, *given, policy not in KERNEL)
            loss.backward()
        torch.testing.assert_close(logits, model(given[0]).logits, rtol=1e-6, atol=1e-6)
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-5, atol=1e-8)  # the loss is float32


MINIMAL_FLASH = MINIMAL | {"attention": stock_attention}  # torch's flash kernel keeps no more


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    minimal.check(STOCK, KERNEL)
    content = {"made_with": f"torch {torch.__version__}, transformers {version('transformers')}"}
    content["cases"] = []
    for name, (V, D, wide, L, H, K, E, length, biased, tied) in CASES.items():
        sizes = {
            "vocab_size": V, "hidden_size": D, "intermediate_size": wide, "num_hidden_layers": L,
            "num_attention_heads": H, "num_key_value_heads": K, "head_dim": E,
            "attention_bias": biased, "mlp_bias": biased, "tie_word_embeddings": tied,
        }  # fmt: skip
        config = LlamaConfig(**sizes, rms_norm_eps=1e-5)
        model = LlamaForCausalLM(config)
        check_stack(model, inputs(config, 2, length))
        parameters = list(model.parameters())
        case = {"name": name, "config": sizes, "length": length, "measured": []}
        case["parameters"] = sum(weight.numel() for weight in parameters)
        case["states"] = {
            variant: states(parameters, variant) for variant in ("2-byte", "fp32-master", "float32")
        }
        for dtype in (torch.float32, torch.bfloat16):
            weights = dict(model.to(dtype).named_parameters(remove_duplicate=False))
            for sequences in (1, 3):
                given = inputs(config, sequences, length)
                for policy in ("kept", "flash", "checkpointed"):
                    flash = MINIMAL if policy == "kept" else MINIMAL_FLASH
                    row = {"dtype": str(dtype).removeprefix("torch."), "sequences": sequences}
                    row |= {"activations": policy}
                    row["stock"] = measure(config, weights, STOCK, policy, given)
                    row["minimal"] = measure(config, weights, flash, policy, given)
                    case["measured"].append(row)
        content["cases"].append(case)
    rows = json.dumps(content, separators=(",", ":"))
    path = Path(__file__).with_name("training_ledger.json")
    path.write_text(rows.replace('{"dtype"', '\n{"dtype"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
