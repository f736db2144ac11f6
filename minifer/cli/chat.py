"""chat: turn by turn, the KV cache kept between turns."""

import argparse
import sys
from typing import Any

from .common import add_model_arguments, decode, open_model, say, system_messages
from .generate import add_generation_arguments, cache_of, generation_options, stream_steps

HELP = "talk with the model; what is in the KV cache is not computed again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of chat."""
    parser.add_argument("--system-prompt", metavar="TEXT", help="said before the first turn")
    add_generation_arguments(parser)
    add_model_arguments(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no figures after a turn")


def run(args: argparse.Namespace) -> int:
    """Read a line, answer it, until the input ends. Ctrl-C ends an answer, then the chat."""
    from ..errors import ContextError

    options = generation_options(args)
    system = system_messages(args)
    model = open_model(args)
    model.render([{"role": "user", "content": "hello"}])  # no template: say so before typing
    cache = cache_of(args, model) or model.new_cache()
    messages = list(system)
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    if at_terminal:
        say("type a message; /new forgets it all, an empty line or Ctrl-D ends")
        import contextlib

        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives input() history and editing)
    while True:
        line = read_line(at_terminal)
        if not line:
            return 0
        if line == "/new":
            del messages[len(system) :]
            continue
        if line.startswith("/"):
            say(f"{line.split()[0]:.20} is no command; there is /new, an empty line ends")
            continue
        messages.append({"role": "user", "content": line})
        try:
            interrupted = answer(args, model, messages, cache, options)
        except ContextError as problem:
            messages.pop()
            say(str(problem))
            say("/new starts a new conversation")
            if not at_terminal:
                return 1
            continue
        if interrupted and not at_terminal:
            return 130


def read_line(at_terminal: bool) -> str:
    """The next message, or nothing at the end of the input."""
    if at_terminal:
        sys.stdout.flush()
        try:
            return input("> ").strip()
        except EOFError:
            print()
            return ""
        except KeyboardInterrupt:  # the terminal shows ^C in the line of the prompt
            print(flush=True)
            raise
    for line in sys.stdin.buffer if sys.stdin else ():
        text = decode(line, "stdin").strip()
        if text:
            return text
    return ""


def answer(
    args: argparse.Namespace, model: Any, messages: list, cache: Any, options: dict[str, Any]
) -> bool:
    """One turn: stream the answer, keep it as a message. -> whether it was interrupted."""
    from ..decoding import generate

    ids = model.encode_chat(messages)
    cached = 0 if args.no_kv_cache else cache.shared_prefix(ids)
    steps = generate(model, ids, cache=cache, **options)
    taken: list = []
    interrupted = stream_steps(steps, taken, visible=True)
    print(flush=True)
    messages.append({"role": "assistant", "content": "".join(step.text for step in taken)})
    if not args.quiet and taken:
        gaps = [step.seconds for step in taken[1:]]
        speed = f", {len(gaps) / sum(gaps):.1f} tok/s" if gaps else ""
        say(
            f"{cached} of {len(ids)} prompt tokens were in the cache, "
            f"TTFT {1e3 * taken[0].seconds:.0f} ms"
        )
        say(f"{len(taken)} tokens{speed}, {cache.length} in the cache now")
        if args.temperature:
            say(f"seed {steps.seed}")
    return interrupted
