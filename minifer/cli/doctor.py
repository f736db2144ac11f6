"""doctor: what is here, and what is not and why."""

import argparse
import platform
import sys
import textwrap

HELP = "Python, BLAS and threads, CPU, GPU and why not, model cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """doctor has no flags of its own."""


def run(args: argparse.Namespace) -> int:
    """Print a line per question."""
    import importlib.metadata
    import os

    import numpy as np

    from .. import __version__
    from .report import hardware, threads

    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    lines = [
        ("minifer", __version__),
        ("Python", f"{platform.python_version()} ({sys.executable})"),
        ("system", platform.platform()),
        ("CPU", f"{hardware()}, {threads()} of {os.cpu_count()} cores"),
        ("NumPy", np.__version__),
        ("BLAS", f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()),
        ("threads", f"{threads()} (set with --threads N)"),
    ]
    for package in ("tokenizers", "regex", "jinja2", "numba"):
        try:
            lines.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            lines.append((package, "not installed"))
    lines += [("kernels", kernels()), ("GPU", gpu()), *model_cache()]
    for name, value in lines:
        print("\n".join(wrapped(name, value)))
    return 0


def wrapped(name: str, value: str) -> list[str]:
    """A name and its value in 80 columns. A path stays whole, so that it can be copied."""
    return textwrap.wrap(
        value, 80, initial_indent=f"{name:<12}", subsequent_indent=" " * 12,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def kernels() -> str:
    """The kinds of kernels this version has here."""
    from ..backend import numpy_twins  # noqa: F401
    from ..op_table import available_kernels

    return ", ".join(available_kernels("numpy"))


def gpu() -> str:
    """Why no GPU is used."""
    return "not used: the CuPy backend is not in this version"


def model_cache() -> list[tuple[str, str]]:
    """Where models are kept and which are there."""
    import shutil

    from ..fetch import cache_root

    root = cache_root()
    models = sorted(path for path in root.glob("models/*") if (path / "config.json").is_file())
    lines = [("cache", f"{root} (set with MINIFER_CACHE)")]
    for path in models:
        size = sum(file.stat().st_size for file in path.iterdir())
        lines.append(("  model", f"{path.name}, {size / 1e6:.0f} MB"))
    if not models:
        lines.append(("  model", "none yet; python -m minifer fetch brings the default one"))
    existing = next((path for path in (root, *root.parents) if path.is_dir()), None)
    if existing is not None:
        lines.append(("  free", f"{shutil.disk_usage(existing).free / 1e9:.1f} GB"))
    return lines
