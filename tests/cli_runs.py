"""Running the command line in the tests: in this process mostly, as a real one where it matters."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from minifer.cli.main import main

ROOT = Path(__file__).resolve().parents[1]


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one object on stdout."""
        return json.loads(self.out)


def cli(capsys, *args, stdin=None, monkeypatch=None) -> Ran:
    """One command in this process; argparse's exit counts as its code."""
    if stdin is not None:
        data = stdin.encode("utf-8") if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    capsys.readouterr()
    try:
        code = main([str(arg) for arg in args])
    except SystemExit as left:
        code = left.code or 0
    out, err = capsys.readouterr()
    return Ran(code, out, err)


def environment(**more):
    """The environment of a real process: this checkout first, UTF-8, nothing buffered away."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    path = os.pathsep.join([str(ROOT), *sys.path])
    return kept | {"PYTHONPATH": path, "PYTHONUTF8": "1"} | more


def start(*args, python=(), pipe_stdin=False, **env):
    """`python -m minifer ...` as a process of its own, with Ctrl-C as a shell would set it."""
    posix = {} if os.name == "nt" else {"preexec_fn": interruptible}
    return subprocess.Popen(
        [sys.executable, *python, "-m", "minifer", *map(str, args)],
        stdin=subprocess.PIPE if pipe_stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # a byte read here is one that communicate() must not miss
        env=environment(**env),
        **posix,
    )


def run(*args, stdin=None, **options) -> Ran:
    """The same, waited for."""
    process = start(*args, pipe_stdin=stdin is not None, **options)
    out, err = process.communicate(stdin, timeout=60)
    return Ran(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def interruptible():
    """For preexec_fn: a process that Ctrl-C ends."""
    # A test runner in the background ignores SIGINT, and its children would too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
