"""diff: the first layer and op at which two runs differ, and by how much."""

import argparse
import difflib
import re
import sys
from typing import Any

from .common import (
    add_model_arguments,
    add_prompt_arguments,
    as_json,
    open_model,
    positive,
    read_prompt,
    say,
)
from .doctor import kernels

HELP = "the first layer and op at which two runs differ, and by how much"
KEYS = ("kernels", "dtype", "device", "prefill_chunk", "reference", "model")
VALUES = {
    "dtype": ("float32", "bfloat16", "float16"),
    "reference": ("transformers",),
}
SHAPES = """vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads
head_dim intermediate_size""".split()
CHUNK = 512  # what generate takes
LIMIT = 4_000_000_000  # bytes; a laptop with less than 8 GB should not begin to swap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of diff: model and prompt as score has them."""
    add_prompt_arguments(parser)
    group = parser.add_argument_group("the two runs; K: " + ", ".join(KEYS))
    for side in ("left", "right"):
        text = f"what is otherwise for the {side} run than the flags below say"
        group.add_argument(f"--{side}", action="append", default=[], metavar="K=V[,K=V]", help=text)
    parser.add_argument("--all", action="store_true", help="a row per op, not one per layer")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run both sides on one prompt, print where they part -> 0 equal, 1 different."""
    sides = {name: side_of(args, name) for name in ("left", "right")}
    prompt = read_prompt(args, exact=True)
    if any(side.reference for side in sides.values()):
        from ..observe.reference import require

        require()  # before anything is computed
    models = {name: open_model(side) for name, side in sides.items()}
    check_shapes(args, models)
    ids = encode(models, prompt)
    check_memory(models["left"].config, sides, len(ids))
    from ..observe.capture import Run
    from ..observe.differences import Comparison
    from ..observe.differences_text import as_object, lines

    left = Run()
    comparison = Comparison(left)
    opened = run_side(left.take, sides["left"], models["left"], ids)
    opened = run_side(comparison.take, sides["right"], models["right"], ids) or opened
    found = comparison.result()
    about = {name: settings(sides[name], models[name], len(ids)) for name in sides}
    control = about["left"] == about["right"]
    if args.json:
        shown = {**as_object(found, about, opened, args.all), "token_ids": ids}
        print(as_json(shown, sys.stdout.encoding))
    else:
        print("\n".join(lines(found, about, opened, len(ids), args.all)))
    return 0 if found.equal and (found.equal_bits or not control) else 1


def side_of(args: argparse.Namespace, name: str) -> argparse.Namespace:
    """The common flags with what --left or --right puts in their place; a usage error, or that."""
    refuse, given = args.command_parser.error, {}
    for part in [part for text in getattr(args, name) for part in re.split(r",(?=[^,=]*=)", text)]:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            refuse(
                f"--{name} {part!r}: expected K=V, as in kernels=reference; K: {', '.join(KEYS)}"
            )
        if key not in KEYS:
            refuse(f"--{name}: there is no {key!r}; {near(key, KEYS)}")
        if key in given:
            refuse(f"--{name}: {key} is given twice")
        allowed = tuple(kernels().split(", ")) if key == "kernels" else VALUES.get(key, (value,))
        if value not in allowed:
            refuse(f"--{name} {key}={value!r}: {near(value, allowed)}")
        given[key] = value
    if "prefill_chunk" in given:
        try:
            given["prefill_chunk"] = positive(given["prefill_chunk"])
        except argparse.ArgumentTypeError as problem:
            refuse(f"--{name} prefill_chunk={problem}")
    unused = [key for key in ("kernels", "device", "prefill_chunk") if key in given]
    if "reference" in given and unused:
        refuse(
            f"--{name}: {unused[0]} says nothing about reference={given['reference']}, which "
            "computes in its own way, the prompt at once; leave it out"
        )
    common = {**vars(args), "prefill_chunk": CHUNK, "reference": None}
    return argparse.Namespace(**{**common, **given})


def near(found: str, allowed: tuple[str, ...]) -> str:
    """What was meant, perhaps, and what is allowed."""
    close = difflib.get_close_matches(found, allowed, 2)
    return (f"near it: {', '.join(close)}; " if close else "") + f"allowed: {', '.join(allowed)}"


def check_shapes(args: argparse.Namespace, models: dict[str, Any]) -> None:
    """A usage error for two models whose results have not the same shapes."""
    left, right = models["left"].config, models["right"].config
    for field in SHAPES:
        if getattr(left, field) != getattr(right, field):
            args.command_parser.error(
                f"{field} is {getattr(left, field)} in {models['left'].name} and "
                f"{getattr(right, field)} in {models['right'].name}; diff compares models of the "
                "same vocabulary and shapes"
            )


def encode(models: dict[str, Any], prompt: str | list[int]) -> list[int]:
    """The prompt's ids. Raises MiniferError where two tokenizers read it differently."""
    from ..decoding import encode_prompt
    from ..errors import TokenizerError

    ids = encode_prompt(models["left"], prompt)
    if models["right"].tokenizer is not None and encode_prompt(models["right"], prompt) != ids:
        raise TokenizerError(
            f"the tokenizers of {models['left'].name} and {models['right'].name} read the prompt "
            "differently; pass --token-ids"
        )
    return ids


def check_memory(config: Any, sides: dict[str, argparse.Namespace], tokens: int) -> None:
    """Say what is needed. Raises ContextError for more than the limit."""
    from ..errors import ContextError
    from ..observe.capture import needed_bytes

    chunks = [tokens if side.reference else side.prefill_chunk for side in sides.values()]
    need = needed_bytes(config, tokens, min(tokens, max(chunks)))
    if need > LIMIT:
        raise ContextError(
            f"comparing {tokens} tokens needs {need / 1e9:.1f} GB for all their intermediates; "
            f"at most {LIMIT / 1e9:.0f} GB are allowed: shorten the prompt"
        )
    say(
        f"comparing needs {need / 1e6:,.1f} MB for the intermediates of {tokens} token"
        + "s" * (tokens != 1)
    )


def run_side(take: Any, side: argparse.Namespace, model: Any, ids: list[int]) -> list[str]:
    """Run one side, its results to `take` -> the groups that ran op by op."""
    if not side.reference:
        from ..observe.capture import run_into

        return run_into(take, model, ids, side.prefill_chunk).opened
    from ..load import locate
    from ..observe.reference import run_reference

    path = locate(side.model, side.dtype, side.offline)
    run_reference(take, path if path.is_dir() else path.parent, ids)
    return []


def settings(side: argparse.Namespace, model: Any, tokens: int) -> dict[str, Any]:
    """What a side was, as far as it matters: two equal ones are the same run."""
    found = {"model": model.name, "dtype": model.dtype, "device": model.backend.device}
    if side.reference:
        from ..observe.reference import require

        return {**found, "device": "cpu", "reference": f"{side.reference} {require()}"}
    chunk = min(side.prefill_chunk, tokens)
    return {**found, "kernels": model.table.in_use(), "prefill_chunk": chunk}
