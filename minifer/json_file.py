"""Read a JSON object from a file somebody else wrote, and say what is wrong with it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from .errors import MiniferError


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r} stands there twice")
    return found


def parse_json(text: bytes, source: str, error: type[MiniferError]) -> dict[str, Any]:
    """Bytes -> a JSON object. Raises `error` naming `source` for anything else."""
    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError as problem:
        raise error(f"{source}: not UTF-8 text (byte {problem.start})") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"{source}: not valid JSON ({problem})") from None
    if not isinstance(data, dict):
        raise error(f"{source}: found a JSON {type(data).__name__}, expected an object {{...}}")
    return data


def read_json(path: Path, error: type[MiniferError]) -> dict[str, Any]:
    """The JSON object in a file. Raises `error` when it is missing, unreadable or malformed."""
    return parse_json(read_bytes(path, error), str(path), error)


def read_bytes(path: Path, error: type[MiniferError]) -> bytes:
    """A whole file. Raises `error` when it cannot be read, or is a pipe one would wait for."""
    path = Path(path)
    refuse_pipes(path, error)
    try:
        return path.read_bytes()
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror or problem})") from None


def refuse_pipes(path: Path, error: type[MiniferError]) -> None:
    """Raise `error` for a pipe, a device or a folder: opening a pipe would wait for ever."""
    if path.exists() and not path.is_file():
        raise error(f"{path}: is not a regular file")
