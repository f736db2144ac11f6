"""The entry point: subcommands, exit codes, and no traceback for a user's mistake.

Exit codes: 0 good (a closed pipe too), 1 the model or the data is at fault, 2 usage,
130 interrupted.
"""

import argparse
import difflib
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__
from ..errors import DeviceError, MiniferError, MiniferWarning, SamplingError
from . import chat, diff, doctor, fetch, generate, inspect, score, tokenize, walk
from .common import say

COMMANDS = (generate, chat, tokenize, inspect, score, walk, diff, fetch, doctor)
USAGE_ERRORS = (SamplingError, DeviceError)  # an option out of range, or one that is not here


class Parser(argparse.ArgumentParser):
    """Usage errors in two lines, with the near options and what to do."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Leave; a help text that could not be written is an error."""
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as problem:
            status, message = 1, f"minifer: error: {problem.strerror or problem}\n"
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        """Exit 2."""
        wrong = re.match(r"argument COMMAND: (invalid choice: '(.*)') \(", message, re.DOTALL)
        if wrong:
            names = [module.__name__.rsplit(".", 1)[-1] for module in COMMANDS]
            near = difflib.get_close_matches(wrong[2], names, 1)
            hint = f"near it: {near[0]}" if near else 'is it a prompt? generate "..."'
            message = f"{wrong[1]}; {hint}"
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help shows what is allowed\n")

    def refuse(self, unknown: list[str]) -> NoReturn:
        """Arguments nobody knows: name near options, or say that a prompt wants quotes."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        option = next((text for text in unknown if text.startswith("-")), None)
        if option is None:
            hint = "; put a prompt of several words in quotes" if "--prompt" in known else ""
            self.error(f"unexpected {' '.join(unknown)!r}{hint}")
        near = difflib.get_close_matches(option.split("=")[0], known, 2)
        self.error(f"unknown option {option}" + (f"; near it: {', '.join(near)}" if near else ""))


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults are shown where they say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == []:
            return action.help
        return super()._get_help_string(action)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, without importing anything heavy."""
    parser = Parser(
        prog="minifer",
        description="Transformer inference to read, step through and measure.",
        epilog="python -m minifer COMMAND --help shows the options of a command",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"minifer {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for module in COMMANDS:
        name = module.__name__.rsplit(".", 1)[-1]
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            formatter_class=Help,
            allow_abbrev=False,
        )
        command.add_argument("--debug", action="store_true", help="show tracebacks")
        module.add_arguments(command)
        command.set_defaults(run=module.run, command_parser=command)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, or exit 2 with what is wrong with them."""
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if unknown:
        args.command_parser.refuse(unknown)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command -> its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a character shows "?", no crash
            stream.reconfigure(errors="replace")
    try:
        args = parse(argv)
        if getattr(args, "threads", None):
            if args.threads > 1024:
                args.command_parser.error(f"--threads {args.threads}: at most 1024")
            set_threads(args.threads)
        warnings.showwarning = show_warning
        return run(args)
    except BrokenPipeError:  # the reader has left
        return 0
    finally:  # Python would complain once more, when it flushes at exit
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run(args: argparse.Namespace) -> int:
    """The command, and what its failure means. A broken pipe may come up while saying so."""
    try:
        code = args.run(args) or 0
        sys.stdout.flush()  # what cannot be written is an error while it can still be said
        return code
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except BrokenPipeError:
        raise
    except MiniferError as problem:
        if args.debug:
            raise
        say(f"error: {problem}")
        return 2 if isinstance(problem, USAGE_ERRORS) else 1
    except MemoryError as problem:
        if args.debug:
            raise
        say(f"error: not enough memory ({problem}); a smaller --ctx-size needs less")
        return 1
    except ModuleNotFoundError as problem:
        if args.debug or (problem.name or "").startswith("minifer"):
            raise
        say(f"error: the package {problem.name} is not installed; `pip install -e .`, or run make")
        return 1
    except OSError as problem:
        if args.debug:
            raise
        where = f"{problem.filename}: " if problem.filename else ""
        say(f"error: {where}{problem.strerror or problem}")
        return 1


def set_threads(count: int) -> None:
    """Tell every BLAS how many threads to use. NumPy reads this once, when it is imported."""
    for library in ("OPENBLAS_NUM", "OMP_NUM", "MKL_NUM", "BLIS_NUM", "VECLIB_MAXIMUM"):
        os.environ[f"{library}_THREADS"] = str(count)


def show_warning(message: object, category: type, *rest: object) -> None:
    """Ours as one line; anybody else's as Python writes it."""
    if issubclass(category, MiniferWarning):
        say(f"note: {message}")
    else:
        say(f"{category.__name__}: {message}")
