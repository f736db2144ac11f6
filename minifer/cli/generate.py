"""generate: a prompt in, its continuation out, token by token."""

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from .common import (
    add_chat_arguments,
    add_model_arguments,
    add_prompt_arguments,
    argument_text,
    as_json,
    as_messages,
    check_output,
    natural,
    open_model,
    positive,
    read_prompt,
    say,
    show,
    write_atomically,
)

HELP = "continue a prompt; the text streams to stdout, figures go to stderr"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of generate; names as in transformers, llama.cpp, mlx-lm and vLLM."""
    add_prompt_arguments(parser)
    add_chat_arguments(parser)
    add_generation_arguments(parser)
    add_model_arguments(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--logprobs", type=natural, default=0, metavar="N", help="N best per token")
    group.add_argument("--no-stream", action="store_true", help="print the text at the end")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout")
    group.add_argument("--output", type=Path, metavar="PATH", help="write that object to a file")
    group.add_argument(
        "--explain", action="store_true", help="a receipt per token: bytes, FLOPs, time"
    )
    group.add_argument(
        "--trace", type=Path, metavar="PATH", help="times of every op, for ui.perfetto.dev"
    )
    group.add_argument("--no-stats", action="store_true", help="no figures at the end")
    group.add_argument("-q", "--quiet", action="store_true", help="nothing but the text and errors")
    group.add_argument("-v", "--verbose", action="store_true", help="say what is loaded")


def add_generation_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that generate and chat share."""
    group = parser.add_argument_group("generation")
    group.add_argument(
        "-n", "--max-tokens", "--max-new-tokens", "--n-predict", type=positive, default=128,
        metavar="N", help="at most so many new tokens",
    )  # fmt: skip
    group.add_argument("--ctx-size", type=positive, metavar="N", help="tokens the KV cache holds")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="repeatable")
    group.add_argument("--ignore-eos", action="store_true", help="go on after an eos token")
    group.add_argument(
        "--prefill-chunk", type=positive, default=512, metavar="N", help="tokens per pass"
    )
    group.add_argument("--no-kv-cache", action="store_true", help="compute all anew for each token")
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", "--temp", type=float, default=0.0, help="0 is greedy")
    group.add_argument("--top-k", type=int, default=0, help="0 is off")
    group.add_argument("--top-p", type=float, default=1.0, help="1 is off")
    group.add_argument("--min-p", type=float, default=0.0, help="0 is off")
    group.add_argument("--repetition-penalty", type=float, default=1.0, help="1 is off")
    group.add_argument("--seed", type=int, help="fresh unless given")


def sampling_of(args: argparse.Namespace) -> Any:
    """The flags as a Sampling; raises SamplingError for a value out of range."""
    from ..sampling import Sampling

    return Sampling(
        args.temperature, args.top_k, args.top_p, args.min_p, args.repetition_penalty, args.seed
    )


def cache_of(args: argparse.Namespace, model: Any) -> Any:
    """A KV cache of --ctx-size tokens, or None to let generate make one that fits."""
    if args.ctx_size is None:
        return None
    limit = model.config.max_position_embeddings
    if args.ctx_size > limit:
        args.command_parser.error(f"--ctx-size {args.ctx_size}: the model's context is {limit}")
    return model.new_cache(args.ctx_size)


def generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """The shared flags as keyword arguments of generate."""
    return {
        "max_tokens": args.max_tokens,
        "sampling": sampling_of(args),
        "stop": [argument_text(text, "--stop") for text in args.stop],
        "ignore_eos": args.ignore_eos,
        "prefill_chunk": args.prefill_chunk,
        "use_cache": not args.no_kv_cache,
    }


def run(args: argparse.Namespace) -> int:
    """Generate, stream, report. -> 0, or 130 when interrupted; what was generated is kept."""
    prompt = read_prompt(args)
    options = generation_options(args)
    if args.output is not None:
        check_output(args.output)
    if args.trace is not None:
        check_output(args.trace, "--trace")
    refuse_one_file_twice(args)
    model = open_model(args)
    if args.verbose:
        from .report import describe

        say(describe(model))
    messages = as_messages(args, model, prompt)
    from ..decoding import generate

    steps = generate(
        model, messages, cache=cache_of(args, model), logprobs=args.logprobs, **options
    )
    stream = not (args.json or args.no_stream)
    taken: list = []
    with watching(args) as recording:
        interrupted = stream_steps(steps, taken, stream)
    text = "".join(step.text for step in taken)
    if not args.json and args.no_stream:
        print(text, end="")
    if not args.json and (interrupted or not text.endswith("\n")):
        print()  # a terminal shows ^C in the line of the text
    sys.stdout.flush()
    report(args, model, steps, taken, interrupted)
    if args.trace is not None and taken:
        recording.perfetto(args.trace)
        if not args.quiet:
            say(f"trace: {args.trace}; open it at ui.perfetto.dev")
            say("every op was timed and every group opened, which takes time itself")
    return 130 if interrupted else 0


def refuse_one_file_twice(args: argparse.Namespace) -> None:
    """A usage error where the trace would replace the result, by whatever name or link."""
    if args.output is None or args.trace is None:
        return
    one, other = map(os.path.realpath, (args.output, args.trace))
    special = os.path.exists(one) and not os.path.isfile(one)  # a device takes both
    if one == other and not special:
        args.command_parser.error(
            f"--output {args.output} and --trace {args.trace} are one file; give each its own"
        )


def watching(args: argparse.Namespace) -> Any:
    """The recording the flags ask for, or none."""
    if args.trace is None and not args.explain:
        return nullcontext()
    from ..observe.recorder import record

    return record(time="step" if args.trace is None else "op")


def stream_steps(steps: Any, taken: list, visible: bool) -> bool:
    """Take every step, showing its text as it comes. -> whether Ctrl-C ended it."""
    from ..errors import MiniferError, SamplingError

    try:
        for step in steps:
            taken.append(step)
            if visible and step.text:
                print(step.text, end="", flush=True)
    except KeyboardInterrupt:
        return True
    except SamplingError as problem:  # the options were checked before: the model is at fault
        raise MiniferError(str(problem)) from problem
    return False


def report(
    args: argparse.Namespace, model: Any, steps: Any, taken: list, interrupted: bool
) -> None:
    """The JSON object where asked for, and the footer."""
    from .report import footer, logprob_lines, result_object

    if args.json or args.output is not None:
        found = result_object(model, steps, taken, interrupted)
        if args.output is not None:
            write_atomically(args.output, as_json(found, "utf-8") + "\n")
        else:
            print(as_json(found, sys.stdout.encoding), flush=True)
    elif args.logprobs and not args.quiet:
        for line in logprob_lines(model, taken):
            show(line)
    if args.explain and taken and not (args.quiet or args.json):
        from .explain import explain_lines

        for line in explain_lines(model, taken):
            show(line)
    if not (args.no_stats or args.quiet):
        for line in footer(model, steps, taken, interrupted):
            say(line)
