"""What several commands share: flags of the model and of the prompt, reading, speaking."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from ..errors import ContextError, MiniferError, TemplateError
from ..json_file import refuse_unwritable, whole_file


def say(text: str) -> None:
    """A line for the person, on stderr: stdout holds nothing but the result."""
    show(f"minifer: {text}")


def show(line: str) -> None:
    """A line on stderr as it is, after whatever stdout still holds."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:  # a full disk: what cannot be written there is said here
        pass
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:  # nobody can be told; the answer is not the worse for it
        pass


def positive(text: str) -> int:
    """A whole number from 1, for argparse."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number from 0, for argparse."""
    return _whole(text, 0)


def _whole(text: str, low: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {low}")
    return value


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, and on what."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m", "--model", default="default", help="a model folder, a hub name, or default"
    )
    group.add_argument("--revision", help="branch, tag or commit of a hub name")
    group.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="as stored")
    group.add_argument("--device", default="auto", metavar="auto|cpu", help="where to compute")
    group.add_argument(
        "--kernels", default="auto", metavar="auto|reference|numpy", help="readable or fast ops"
    )
    group.add_argument("--threads", type=positive, metavar="N", help="all cores unless given")
    group.add_argument("--no-mmap", action="store_true", help="read the weights into memory")
    group.add_argument("--offline", action="store_true", help="never fetch anything")


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """The prompt, from wherever it comes."""
    group = parser.add_argument_group("prompt (one of these)")
    group.add_argument("text", nargs="?", metavar="PROMPT", help="the prompt; - reads stdin")
    group.add_argument("-p", "--prompt", help="the same as a flag")
    group.add_argument("-f", "--file", type=Path, help="a UTF-8 text file with the prompt")
    group.add_argument("--token-ids", metavar='"1,2,3"', help="the prompt as token ids")


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether a text prompt goes through the chat template."""
    parser.add_argument(
        "--chat",
        action=argparse.BooleanOptionalAction,
        help="use the chat template; on where there is one",
    )
    parser.add_argument("--system-prompt", metavar="TEXT", help="said before the prompt")


def open_model(args: argparse.Namespace) -> Any:
    """The model the flags ask for. A --revision becomes a part of its name."""
    from ..load import load

    args.model, args.revision = name_revision(args), None
    return load(
        args.model,
        device=args.device,
        dtype=args.dtype,
        kernels=args.kernels,
        mmap=not args.no_mmap,
        offline=args.offline,
    )


def name_revision(args: argparse.Namespace) -> str:
    """The model's name, with --revision behind it where that is given: owner/name@revision."""
    from ..load import HUB_NAMES, parse_hub_name

    if args.revision is None:
        return args.model
    named = f"{args.model}@{args.revision}"
    if parse_hub_name(args.model) is None or parse_hub_name(named) is None:
        args.command_parser.error(
            f"--revision {args.revision!r} of {args.model!r}: it goes with a hub name, {HUB_NAMES}"
        )
    return named


def read_prompt(args: argparse.Namespace, exact: bool = False) -> str | list[int]:
    """The one prompt the flags name; of a file's end one line break is dropped unless `exact`."""
    given = [
        value for value in (args.text, args.prompt, args.file, args.token_ids) if value is not None
    ]
    if len(given) != 1:
        found = "none" if not given else f"{len(given)} of them"
        args.command_parser.error(
            f"needs one prompt: PROMPT, -p, -f or --token-ids; found {found} (- reads stdin)"
        )
    if args.token_ids is not None:
        parts = args.token_ids.replace(",", " ").split()
        if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            args.command_parser.error(
                f"--token-ids {args.token_ids!r}: expected numbers like 1,2,3"
            )
        return [int(part) for part in parts]
    if args.file is not None:
        text = read_text(args.file)
    elif given[0] == "-":
        text = decode(sys.stdin.buffer.read() if sys.stdin else b"", "stdin")
    else:
        return argument_text(given[0], "the prompt")
    return text if exact else text.removesuffix("\n")


def argument_text(text: str, what: str) -> str:
    """An argument as UTF-8, whatever the locale took its bytes for. Raises MiniferError."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise MiniferError(f"{what}: not UTF-8 text (byte {problem.start})") from None
    except UnicodeEncodeError as problem:  # no bytes stand for it: half a character
        raise MiniferError(f"{what}: not UTF-8 text (character {problem.start})") from None


def read_text(path: Path) -> str:
    """A UTF-8 text file. Raises MiniferError when it is not one."""
    return decode(path.read_bytes(), str(path))


def decode(data: bytes, source: str) -> str:
    """Bytes -> text; a byte-order mark is dropped, Windows line ends become one character."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise MiniferError(f"{source}: not UTF-8 text (byte {problem.start})") from None
    return text.replace("\r\n", "\n")


def as_messages(args: argparse.Namespace, model: Any, prompt: str | list[int]) -> Any:
    """The prompt as a chat where the model has a template and --no-chat is not given."""
    chat = args.chat if args.chat is not None else model.template is not None
    if isinstance(prompt, list):
        if args.chat:
            args.command_parser.error("--chat needs a text; --token-ids are used as they are")
        chat = False
    if not chat:
        if args.system_prompt is not None:
            args.command_parser.error(
                "--system-prompt needs a chat template, not --no-chat or --token-ids"
            )
        return prompt
    if not prompt:
        raise ContextError("the prompt is empty; give it at least one character")
    if model.template is None:
        raise TemplateError(f"{args.model} has no chat template; leave --chat out")
    return [*system_messages(args), {"role": "user", "content": prompt}]


def system_messages(args: argparse.Namespace) -> list[dict[str, str]]:
    """What --system-prompt says before the conversation: one message, or none."""
    if args.system_prompt is None:
        return []
    text = argument_text(args.system_prompt, "--system-prompt")
    return [{"role": "system", "content": text}]


def as_json(data: Any, encoding: str | None) -> str:
    """JSON for a stream of this encoding: escaped where it could not carry every character.

    UTF-8 itself cannot carry a path that holds bytes which are no text.
    """
    text = json.dumps(data, ensure_ascii=False)
    try:
        text.encode("utf-8")
        utf8 = (encoding or "").lower().replace("-", "") == "utf8"
    except UnicodeEncodeError:
        utf8 = False
    return text if utf8 else json.dumps(data)


def check_output(path: Path, flag: str = "--output") -> None:
    """Raise MiniferError where a flag's file cannot be written: before a long run, not after it."""
    refuse_unwritable(path, f"{flag} {path}")


def write_atomically(path: Path, text: str) -> None:
    """The whole file or nothing."""
    with whole_file(path) as file:
        file.write(text)
