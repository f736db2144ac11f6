"""Read a JSON object from a file somebody else wrote, and say what is wrong with it.

And the other way round: a text file of ours appears whole, or not at all.
"""

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .errors import MiniferError


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r:.80} stands there twice")
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


def refuse_unwritable(path: Path, named: str) -> None:
    """Raise MiniferError where no file can be written: before a long run, not after it."""
    if os.path.isdir(path):
        raise MiniferError(f"{named}: is a folder; give the name of a file")
    if not os.path.isdir(path.parent):
        found = "is not a folder" if os.path.exists(path.parent) else "does not exist; make it"
        raise MiniferError(f"{named}: the folder {path.parent} {found}")
    if _is_special(path):
        return
    if os.path.isfile(path) and not os.access(path, os.W_OK):  # a rename would replace it
        raise MiniferError(
            f"{named}: the file is read-only; make it writable (chmod u+w) or give another name"
        )
    try:  # a name the system refuses, a folder that cannot be written
        with suppress(FileNotFoundError):
            os.stat(path)
        temporary = _temporary_beside(path)
        temporary.touch()
        temporary.unlink()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise MiniferError(f"{named}: {reason}") from None


def _is_special(path: Path) -> bool:
    """A device or a pipe: written to and not replaced; opening a pipe waits for its reader."""
    return os.path.exists(path) and not os.path.isfile(path)


def _temporary_beside(path: Path) -> Path:
    """Where a file is written before it gets its name. A link stays a link: its target counts.

    Random, so that two threads never share one; short, so that the file's own name may be long.
    """
    return Path(os.path.realpath(path)).with_name(f".minifer-{os.urandom(8).hex()}")


@contextmanager
def whole_file(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 text file to write: a temporary name beside it, then a rename. Raises OSError.

    A file that was there keeps its permissions; of several writers one wins, whole.
    """
    if _is_special(path):
        with open(path, "w", encoding="utf-8") as file:
            yield file
        return
    temporary = _temporary_beside(path)
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode) & 0o777
    except FileNotFoundError:
        mode = None

    def private(name: str, flags: int) -> int:  # never more open than the file it replaces
        return os.open(name, flags, 0o666 if mode is None else mode)

    try:
        with open(temporary, "x", encoding="utf-8", opener=private) as file:
            if mode is not None:
                with suppress(OSError):  # what the umask took away; some disks know no modes
                    os.chmod(temporary, mode)
            yield file
        os.replace(temporary, os.path.realpath(path))
    finally:
        temporary.unlink(missing_ok=True)
