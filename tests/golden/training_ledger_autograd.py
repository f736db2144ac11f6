"""Ops of a Llama that keep for their backward pass only what the ledger says, and the proof of it.

A function saves nothing but what it hands to save_for_backward, where saved_tensors_hooks see it.
"""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function, gradcheck
from torch.nn.attention import sdpa_kernel


def wide(x):
    """At least float32: what the arithmetic inside an op runs in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RmsNorm(Function):
    """Keeps its input and 1 / rms of each row."""

    @staticmethod
    def forward(ctx, x, weight, epsilon):
        scale = torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, scale)
        return (wide(x) * scale * weight).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, scale = ctx.saved_tensors
        unit, inner = wide(x) * scale, wide(gradient) * weight
        along = (inner * unit).mean(-1, keepdim=True)
        to_weight = (wide(gradient) * unit).flatten(0, -2).sum(0)
        return ((inner - unit * along) * scale).to(x.dtype), to_weight.to(weight.dtype), None


class Gate(Function):
    """Keeps opening and content; silu is computed again."""

    @staticmethod
    def forward(ctx, opening, content):
        ctx.save_for_backward(opening, content)
        return F.silu(opening) * content

    @staticmethod
    def backward(ctx, gradient):
        opening, content = ctx.saved_tensors
        share = torch.sigmoid(opening)
        slope = share * (1 + opening * (1 - share))
        return gradient * content * slope, gradient * opening * share


class Attention(Function):
    """Keeps query (B, H, T, E), key and value (B, K, T, E) and the weights; not its result."""

    @staticmethod
    def forward(ctx, query, key, value):
        T, E = query.shape[-2:]
        grouped = query.unflatten(1, (key.shape[1], -1))  # (B, K, G, T, E)
        scores = wide(grouped @ key[:, :, None].mT) / math.sqrt(E)
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(-1).to(query.dtype)
        ctx.save_for_backward(query, key, value, weights)
        return (weights @ value[:, :, None]).flatten(1, 2)

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, weights = ctx.saved_tensors
        by_group = (key.shape[1], -1)
        gradient, grouped = gradient.unflatten(1, by_group), query.unflatten(1, by_group)
        to_value = (weights.mT @ gradient).sum(2)
        to_weights = wide(gradient @ value[:, :, None].mT)
        # A hidden weight is zero, and so is its gradient: no mask is needed.
        to_scores = weights * (to_weights - (weights * to_weights).sum(-1, keepdim=True))
        to_scores = (to_scores / math.sqrt(query.shape[-1])).to(query.dtype)
        to_query = (to_scores @ key[:, :, None]).flatten(1, 2)
        return to_query, (to_scores.mT @ grouped).sum(2), to_value


class CrossEntropy(Function):
    """Keeps the log-probabilities and the ids that were right. logits (N, V), targets (N)"""

    @staticmethod
    def forward(ctx, logits, targets):
        logarithms = logits.log_softmax(-1)
        ctx.save_for_backward(logarithms, targets)
        return -logarithms.gather(-1, targets[:, None]).mean()

    @staticmethod
    def backward(ctx, gradient):
        logarithms, targets = ctx.saved_tensors
        hit = F.one_hot(targets, logarithms.shape[-1])
        return gradient * (logarithms.exp() - hit) / len(targets), None


def check(stock, kernels):
    """Each in float64, by gradcheck; its result and gradients are those of torch's own op."""

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    heads = random(2, 6, 5, 4), random(2, 2, 5, 4), random(2, 2, 5, 4)
    logits, targets = random(7, 9), torch.randint(9, (7,))
    for name, function, args in (
        ("rms_norm", RmsNorm.apply, (random(2, 3, 5), random(5), 1e-5)),
        ("gate", Gate.apply, (random(2, 3, 5), random(2, 3, 5))),
        ("attention", Attention.apply, heads),
        ("cross_entropy", CrossEntropy.apply, (logits, targets)),
    ):
        assert gradcheck(function, args), name
        _same(function, stock[name], args)
    for kernel in kernels.values():  # both of torch's own keep enough as well
        with sdpa_kernel(kernel):
            assert gradcheck(stock["attention"], heads)
            _same(Attention.apply, stock["attention"], heads)


def _same(one, other, args):
    leaves = [arg for arg in args if getattr(arg, "requires_grad", False)]
    results = one(*args), other(*args)
    torch.testing.assert_close(*results)
    toward = torch.randn_like(results[0])
    torch.testing.assert_close(*(torch.autograd.grad(result, leaves, toward) for result in results))
