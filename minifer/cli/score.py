"""score: how likely a text is, token by token."""

import argparse
import json
import math

from .common import add_model_arguments, add_prompt_arguments, open_model, read_prompt

HELP = "log-probabilities and perplexity of a text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of score."""
    add_prompt_arguments(parser)
    add_model_arguments(parser)
    parser.add_argument("--tokens", action="store_true", help="a line per token")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Score the text with the model, as plain text, and print the figures."""
    from ..decoding import encode_prompt
    from ..errors import ContextError, MiniferError

    prompt = read_prompt(args, exact=True)
    model = open_model(args)
    ids = encode_prompt(model, prompt)
    if len(ids) < 2:
        raise ContextError(f"the text has {len(ids)} token; scoring needs at least 2")
    logprobs = model.score(ids).tolist()
    mean = sum(logprobs) / len(logprobs)
    if not math.isfinite(mean):
        raise MiniferError(f"the log-probabilities add up to {mean}: the weights are at fault")
    figures = {
        "tokens": len(ids),
        "logprob": sum(logprobs),
        "logprob_per_token": mean,
        "perplexity": math.exp(-mean) if mean > -700 else None,  # beyond what a float holds
    }
    if args.json:
        shown = {**figures, "token_ids": ids, "logprobs": logprobs, "model": model.name}
        print(json.dumps({**shown, "dtype": model.dtype}))
        return 0
    if args.tokens:
        print(f"{'id':>7} {'logprob':>10}  piece")
        for token_id, logprob in zip(ids[1:], logprobs, strict=True):
            piece = repr(model.tokenizer.decode([token_id])) if model.tokenizer else ""
            print(f"{token_id:>7} {logprob:>10.4f}  {piece}")
    print(f"tokens             {figures['tokens']} (the first is given, not scored)")
    print(f"log-probability    {figures['logprob']:.4f}")
    print(f"  per token        {mean:.4f}")
    perplexity = figures["perplexity"]
    print(f"perplexity         {'over 1e304' if perplexity is None else format(perplexity, '.4f')}")
    return 0
