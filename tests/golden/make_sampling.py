"""Make sampling.json: probabilities after transformers' own processors, in its own order.

Run once, in an environment of its own; the file is committed and tests need no torch:

    pip install torch transformers && python make_sampling.py

The list of processors is the one that transformers' `generate` builds from these options. Its sort
for top-p is not stable, so among equal logits it leaves open which ones stay: a case where the cut
falls between equals is left out (`ambiguous`).
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin, LlamaConfig, LlamaForCausalLM

V = 40
HISTORIES = {"none": [], "some": [3, 3, 17, 0, 39, 3, 5, 6], "all": list(range(V)) * 2}


def all_logits(rng):
    ties = np.round(rng.normal(0, 2, V))
    masked = rng.normal(1, 3, V)
    masked[rng.permutation(V)[:18]] = -np.inf
    one = np.full(V, -np.inf)
    one[23] = -4.5
    peaked = rng.normal(0, 1, V)
    peaked[7] = 30
    return {
        "plain": rng.normal(0, 3, V),
        "wide": rng.normal(5, 12, V),
        "negative": rng.normal(-20, 4, V),
        "ties": ties,
        "tied masked": np.where(rng.random(V) < 0.4, -np.inf, np.round(rng.normal(0, 1.5, V))),
        "flat": np.full(V, 1.25),
        "masked": masked,
        "one left": one,
        "peaked": peaked,
        "two ahead": np.where(np.isin(np.arange(V), (4, 31)), 9.0, rng.normal(0, 1, V)),
        "zeros among": np.where(np.arange(V) % 5 == 0, 0.0, rng.normal(0, 2, V)),
    }


OPTIONS = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 3.0},
    {"temperature": 0.05},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 0.8, "top_k": 12},
    {"temperature": 1.0, "top_k": V},
    {"temperature": 1.0, "top_k": 1000},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "top_p": 0.05},
    {"temperature": 2.0, "top_p": 0.999},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "min_p": 0.4},
    {"temperature": 1.5, "min_p": 1.0},
    {"temperature": 1.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "repetition_penalty": 0.6},
    {"temperature": 0.7, "top_k": 10, "top_p": 0.8},
    {"temperature": 1.4, "top_k": 20, "min_p": 0.1},
    {"temperature": 0.9, "top_p": 0.7, "min_p": 0.2},
    {"temperature": 2.5, "top_k": 15, "top_p": 0.85, "min_p": 0.02, "repetition_penalty": 1.1},
    {"temperature": 0.6, "top_k": 8, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.8},
]


def processors_of(model, options):
    """The list that generate itself would build."""
    config = GenerationConfig(
        do_sample=True,
        temperature=options["temperature"],
        top_k=options.get("top_k", 0),
        top_p=options.get("top_p", 1.0),
        min_p=options.get("min_p"),
        repetition_penalty=options.get("repetition_penalty", 1.0),
    )
    return GenerationMixin._get_logits_processor(
        model, config, input_ids_seq_length=0, prefix_allowed_tokens_fn=None, logits_processor=[]
    )


def run(processors, logits, history):
    """-> (probabilities, whether a cut was a matter of the sort), all of it in float64."""
    scores = torch.tensor(logits, dtype=torch.float64)[None]
    ids = torch.tensor([history], dtype=torch.int64)
    ambiguous = False
    for processor in processors:
        before, scores = scores, processor(ids, scores)
        if type(processor).__name__ != "RepetitionPenaltyLogitsProcessor":
            # Equal scores of which some stayed and some went: only an unstable sort does that.
            dropped = torch.isinf(scores) & ~torch.isinf(before)
            kept = before[~torch.isinf(scores)]
            ambiguous |= bool(torch.isin(before[dropped], kept).any())
        if type(processor).__name__ in ("TopPLogitsWarper", "MinPLogitsWarper"):
            ambiguous |= close_call(processor, before)
    return torch.softmax(scores, dim=-1)[0], ambiguous


def close_call(processor, scores):
    """Whether the threshold is met so exactly that rounding decides."""
    probabilities = torch.sort(torch.softmax(scores, dim=-1)[0]).values
    if hasattr(processor, "min_p"):
        gap = probabilities[:-1] - processor.min_p * probabilities[-1]
    else:
        gap = probabilities.cumsum(0)[:-1] - (1 - processor.top_p)
    return bool((gap.abs() < 1e-9).any())


def main():
    tiny = LlamaConfig(
        vocab_size=V, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    model = LlamaForCausalLM(tiny)
    logits = all_logits(np.random.default_rng(40))
    logits = {name: [float(f"{value:.6g}") for value in row] for name, row in logits.items()}
    cases, left_out = [], 0
    for options in OPTIONS:
        processors = processors_of(model, options)
        for name, row in logits.items():
            for past, history in HISTORIES.items():
                if ("repetition_penalty" in options) == (past == "none"):
                    continue
                found, ambiguous = run(processors, row, history)
                if ambiguous:
                    left_out += 1
                    continue
                kept = {i: float(f"{p:.9g}") for i, p in enumerate(found.tolist()) if p}
                cases.append({"options": options, "logits": name, "history": past, "kept": kept})
    content = {
        "made_with": f"transformers {version('transformers')}, torch {version('torch')}",
        "order": [type(p).__name__ for p in processors_of(model, OPTIONS[-1])],
        "logits": logits,
        "histories": HISTORIES,
        "cases": cases,
    }
    path = Path(__file__).with_name("sampling.json")
    # -inf is written as JSON's widespread -Infinity, which Python's own reader takes.
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    print(content["order"], len(cases), "cases,", left_out, "left to the sort and left out")


if __name__ == "__main__":
    main()
