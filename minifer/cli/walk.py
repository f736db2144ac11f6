"""walk: one prefill pass and one decode step, line by line of our own source."""

import argparse
import difflib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from .common import (
    add_chat_arguments,
    add_model_arguments,
    add_prompt_arguments,
    as_json,
    as_messages,
    check_output,
    natural,
    open_model,
    positive,
    read_prompt,
    say,
    write_atomically,
)

HELP = "one prefill pass and one decode step, line by line: shapes, bytes, FLOPs, time"
NARROWEST, WIDEST = 80, 300  # the figures need as much; a line of source never needs more
PROMPT = "What is the capital of France?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of walk: model and prompt as generate has them."""
    add_prompt_arguments(parser)
    add_chat_arguments(parser)
    group = parser.add_argument_group("walk")
    group.add_argument("--layer", type=natural, metavar="N", help="one layer, not all added up")
    group.add_argument(
        "--function", action="append", metavar="NAME", help="show this function; repeatable"
    )
    group.add_argument(
        "--repeats", type=positive, default=3, metavar="N", help="timed runs; a line's median"
    )
    group.add_argument("--html", type=Path, metavar="PATH", help="write it as one HTML page")
    group.add_argument("--json", action="store_true", help="one JSON object")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Walk, then print it, or write it as a page and print the summary."""
    given = (args.text, args.prompt, args.file, args.token_ids)
    if all(value is None for value in given):
        args.text = PROMPT
    if args.kernels not in ("auto", "reference"):
        args.command_parser.error(
            f"--kernels {args.kernels}: walk shows the reference kernels, the code you can read; "
            "leave it out"
        )
    args.kernels = "reference"
    prompt = read_prompt(args)
    if args.html is not None:
        check_output(args.html, "--html")
    names = function_names(args)
    model = open_model(args)
    if args.layer is not None and args.layer >= len(model.layers):
        args.command_parser.error(
            f"--layer {args.layer}: the model has the layers 0 to {len(model.layers) - 1}"
        )
    from ..decoding import encode_prompt
    from ..observe.walk import refuse_no_room, walk

    refuse_no_room(model)  # first: no prompt would be short enough
    messages = as_messages(args, model, prompt)
    found = walk(model, encode_prompt(model, messages), args.layer, args.repeats)
    machine = machine_of(model)
    about = facts(model, machine, found, prompt, chat=messages is not prompt)
    show_it(args, found, about, machine, names)
    return 0


def function_names(args: argparse.Namespace) -> list[str] | None:
    """The functions asked for, by their whole names; None for all. A usage error for others."""
    if args.function is None:
        return None
    from ..observe.walk_source import watched_functions

    known = [function.name for function in watched_functions()]
    found = []
    for name in args.function:
        fits = [full for full in known if name in (full, full.rsplit(".", 1)[-1])]
        if not fits:
            short = [full.rsplit(".", 1)[-1] for full in known]
            near = difflib.get_close_matches(name, short, 3)
            hint = f"near it: {', '.join(near)}" if near else f"there are {', '.join(short)}"
            args.command_parser.error(f"--function {name!r}: no such function; {hint}")
        found += fits
    return found


def machine_of(model: Any) -> dict[str, Any]:
    """What ran, and on what, for the JSON object."""
    from .report import hardware, threads

    return {
        "model": model.name,
        "dtype": model.dtype,
        "kernels": model.table.in_use(),
        "device": model.backend.device,
        "hardware": hardware(),
        "threads": threads(),
    }


def facts(
    model: Any, machine: dict[str, Any], found: Any, prompt: str | list[int], chat: bool
) -> dict[str, str]:
    """The same as name -> text, for the head of both forms, with what was walked."""

    def quoted(text: str) -> str:
        return as_json(text if len(text) <= 60 else text[:57] + "...", "utf-8")

    count = len(found.prompt_token_ids)
    text = f"{count} token" + "s" * (count != 1)
    if isinstance(prompt, str):
        text += f": {quoted(prompt)}" + ", in the chat template" * chat
    fed = str(found.decoded_token_id)
    if model.tokenizer is not None:
        fed += f", {quoted(model.tokenizer.decode([found.decoded_token_id]))}"
    layers = f"all {found.layers} added up"
    if found.layer is not None:
        layers = f"layer {found.layer} of {found.layers} alone, in all figures but the whole pass"
    cores = f"{machine['threads']} thread" + "s" * (machine["threads"] != 1)
    return {
        "model": f"{model.name}, {model.dtype} weights, {machine['kernels']} kernels",
        "layers": layers,
        "prompt": text,
        "decode": f"one step, fed the likeliest token: {fed}",
        "machine": f"{cores} on {machine['hardware']}, {machine['device']}",
    }


def show_it(
    args: argparse.Namespace,
    found: Any,
    about: dict[str, str],
    machine: dict[str, Any],
    names: list[str] | None,
) -> None:
    """The page where asked for, and the object or the text on stdout."""
    if args.html is not None:
        from ..observe.walk_html import page

        text = page(found, about, names)
        # A folder's name may hold bytes that are no text.
        write_atomically(args.html, text.encode("utf-8", "replace").decode("utf-8"))
    if args.json:
        shown = {**machine, **found.to_json()}
        if names is not None:
            shown["functions"] = [f for f in shown["functions"] if f["name"] in names]
        print(as_json(shown, sys.stdout.encoding), flush=True)
    else:
        from ..observe.walk_text import render

        listed = [] if args.html is not None else names
        for line in render(found, about, listed, style_of_terminal()):
            print(line)
    if args.html is not None:
        say(f"{args.html} is written; open it in a browser")


def style_of_terminal() -> Any:
    """Width, colours and bars of stdout: 80 columns in a pipe, no colour there or with NO_COLOR."""
    from ..observe.walk_text import ASCII_BARS, Style

    width = shutil.get_terminal_size((NARROWEST, 24)).columns
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        width = NARROWEST
    width = min(max(NARROWEST, width), WIDEST)  # COLUMNS may say anything
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    style = Style(width, sys.stdout.isatty() and not plain)
    return style if utf8 else style._replace(bars=ASCII_BARS)
