"""Streams, names and moments that are out of the ordinary, as real processes."""

import json
import os
import subprocess
import sys

import pytest
from cli_runs import environment, interruptible
from tiny_model import tiny_model, write_tiny_model

posix = pytest.mark.skipif(os.name == "nt", reason="signals and devices of POSIX")
has_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
full = pytest.param("2>/dev/full", marks=has_full)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("cli") / "tiny")


@posix
@pytest.mark.parametrize("closed", ["2>&-", full])
@pytest.mark.parametrize("options", [[], ["--json"], ["--logprobs", "2"]])
def test_figures_that_cannot_be_said_spoil_nothing(folder, closed, options):
    words = [sys.executable, "-m", "minifer", "generate", "-n2", "hello", "-m", str(folder)]
    ran, good = (
        subprocess.run(
            ["sh", "-c", f'"$@" {how}', "sh", *words, *options],
            stdout=subprocess.PIPE,
            env=environment(),
            timeout=60,
        )
        for how in (closed, "2>/dev/null")
    )
    assert ran.returncode == good.returncode == 0
    assert b"minifer:" not in ran.stdout
    if "--json" in options:
        assert json.loads(ran.stdout)["token_ids"] == json.loads(good.stdout)["token_ids"]
    else:
        assert ran.stdout == good.stdout


@posix
@pytest.mark.parametrize("closed", ["2>&-", full])
@pytest.mark.parametrize(("more", "code"), [(["--token-ids", "300"], 1), (["-n", "0"], 2)])
def test_errors_that_cannot_be_said_are_not_taken_for_text(folder, closed, more, code):
    words = [sys.executable, "-m", "minifer", "generate", "-m", str(folder), *more]
    command = ["sh", "-c", f'"$@" {closed}', "sh", *words]
    ran = subprocess.run(command, stdout=subprocess.PIPE, env=environment(), timeout=60)
    assert (ran.returncode, ran.stdout) == (code, b"")


@has_full
@pytest.mark.parametrize("args", [["--help"], ["--version"], ["generate", "--help"]])
def test_help_that_cannot_be_written_is_an_error(args):
    words = [sys.executable, "-m", "minifer", *args]
    with open("/dev/full", "wb") as device:
        ran = subprocess.run(
            words, stdout=device, stderr=subprocess.PIPE, env=environment(), timeout=60
        )
    assert ran.returncode == 1 and ran.stderr == b"minifer: error: No space left on device\n"


@posix
def test_a_path_that_is_no_utf8_still_gives_valid_json(folder, tmp_path):
    odd = os.fsencode(tmp_path) + b"/m\xff"
    os.symlink(os.fsencode(folder), odd)
    output = tmp_path / "found.json"
    words = [sys.executable, "-m", "minifer", "generate", "-n2", "hello", "-q", "-m", odd]
    for more in (["--json"], ["--output", str(output)]):
        ran = subprocess.run([*words, *more], capture_output=True, env=environment(), timeout=60)
        assert (ran.returncode, ran.stderr) == (0, b"")
        found = output.read_bytes() if "--output" in more else ran.stdout
        assert os.fsencode(json.loads(found)["model"]) == odd


@posix
def test_an_argument_in_another_locale_is_read_as_utf8(folder):
    env = {**environment(), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-m", "minifer", "tokenize", "--ids", "-m", str(folder)]
    ran = subprocess.run([*words, "é".encode()], capture_output=True, env=env, timeout=60)
    ids = tiny_model().tokenizer.encode("é")
    assert (ran.returncode, ran.stdout.decode().strip()) == (0, ",".join(map(str, ids)))
    ran = subprocess.run([*words, b"\xff"], capture_output=True, env=env, timeout=60)
    assert ran.returncode == 1 and b"the prompt: not UTF-8 text (byte 0)" in ran.stderr
    words[3:5] = ["generate", "--json", "-q", "-n1", "--system-prompt", "日".encode()]
    ran = subprocess.run([*words, "é".encode()], capture_output=True, env=env, timeout=60)
    messages = [{"role": "system", "content": "日"}, {"role": "user", "content": "é"}]
    assert json.loads(ran.stdout)["prompt_token_ids"] == tiny_model().encode_chat(messages)


@posix
@pytest.mark.parametrize("stderr", ["sys.stderr", "None"])
def test_an_interrupt_in_the_first_moments_is_no_traceback(stderr):
    """Sent as soon as Python runs our code: the package itself is still being imported."""
    code = (
        "import os, signal, sys, builtins\n"
        "real = builtins.__import__\n"
        "def once(name, *rest, **more):\n"
        "    if name == 'difflib':\n"
        "        builtins.__import__ = real; os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest, **more)\n"
        "builtins.__import__ = once\n"
        f"sys.stderr = {stderr}\n"
        "import runpy; sys.argv = ['minifer', 'doctor']\n"
        "runpy.run_module('minifer', run_name='__main__')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment(), timeout=60,
        preexec_fn=interruptible,
    )  # fmt: skip
    said = b"" if stderr == "None" else b"minifer: interrupted\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", said)
