"""The command line as real processes: Ctrl-C, closed pipes, encodings, what a start imports."""

import json
import os
import signal
import subprocess
import sys

import pytest
from cli_runs import environment, run, start
from tiny_model import tiny_model, write_tiny_model

posix = pytest.mark.skipif(os.name == "nt", reason="signals and devices of POSIX")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("cli") / "tiny")


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A model that can go on for a minute, so that there is something to interrupt."""
    folder = tmp_path_factory.mktemp("cli") / "endless"
    return write_tiny_model(folder, max_position_embeddings=60_000)


def test_python_minus_m(folder):
    ran = run("generate", "-m", folder, "hello", "-n", 3, "--ignore-eos", "--json", "--threads", 1)
    assert ran.code == 0 and ran.json["threads"] == 1
    assert ran.json["prompt_tokens"] == 17 and len(ran.json["token_ids"]) == 3
    assert "1 threads on" in ran.err


def test_no_traceback_and_the_exit_codes(folder):
    for args, code in ((["--token-ids", "300"], 1), (["a", "-n", "0"], 2), (["a", "-n1"], 0)):
        ran = run("generate", "-m", folder, "-q", *args)
        assert ran.code == code and "Traceback" not in ran.err
    ran = run("generate", "-m", folder, "--debug", "--token-ids", "300")
    assert ran.code == 1 and ran.err.startswith("Traceback") and "ContextError" in ran.err


# ---- Ctrl-C ------------------------------------------------------------------------------------


def interrupt(process, stdin=None):
    """Ctrl-C once the first text is there -> (code, all of stdout, stderr)."""
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(stdin, timeout=30)
    return process.returncode, (first + out).decode("utf-8"), err.decode("utf-8")


@posix
def test_an_interrupt_keeps_what_was_generated(endless):
    process = start("generate", "-m", endless, "hello", "-n", 50_000, "--ignore-eos")
    code, out, err = interrupt(process)
    assert code == 130 and "Traceback" not in err
    assert "(interrupted)" in err and out.endswith("\n")
    steps = tiny_model(max_position_embeddings=60_000).encode_chat(
        [{"role": "user", "content": "hello"}]
    )
    assert f"prompt {len(steps)} tokens" in err


@posix
def test_an_interrupt_with_json_gives_the_object(endless, tmp_path):
    command = ["generate", "-m", endless, "hello", "-n", 50_000, "--ignore-eos"]
    target = tmp_path / "out.json"
    code, out, _ = interrupt(start(*command, "--output", target))
    found = json.loads(target.read_text(encoding="utf-8"))
    assert code == 130 and found["finish_reason"] == "interrupted"
    assert found["generated_tokens"] == len(found["token_ids"]) > 0
    assert out.rstrip("\n") == found["text"].rstrip("\n")

    process = start(*command, "--json", "--verbose")  # nothing on stdout yet: listen to stderr
    while not process.stderr.readline().startswith(b"minifer: "):
        pass
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    found = json.loads(out)
    assert process.returncode == 130 and found["finish_reason"] == "interrupted"
    assert b"Traceback" not in err


@posix
def test_an_interrupt_ends_a_piped_chat(endless):
    process = start("chat", "-m", endless, "-n", 50_000, "--ignore-eos", pipe_stdin=True)
    process.stdin.write(b"hello\nagain\n")
    process.stdin.flush()
    code, out, err = interrupt(process)
    assert code == 130 and "Traceback" not in err and len(out) > 1
    assert err.count("prompt tokens were in the cache") == 1


# ---- pipes and devices -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "flags"),
    [("generate", []), ("generate", ["--json"]), ("generate", ["--no-stream"]), ("chat", [])],
)
def test_a_reader_that_leaves(endless, folder, command, flags):
    model, n = (folder, 50) if flags else (endless, 50_000)
    prompt = ["hello"] if command == "generate" else []
    args = [command, "-m", model, *prompt, "-n", n, "--ignore-eos", *flags]
    process = start(*args, pipe_stdin=True)
    process.stdin.write(b"hello\n" * 3)
    process.stdin.close()
    process.stdin = None
    if not flags:
        assert process.stdout.read(1)
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0 and err == b""


@posix
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("command", [["generate", "-n3"], ["score"], ["tokenize"], ["doctor"]])
def test_a_full_disk_is_said_once(folder, command):
    model = [] if command == ["doctor"] else ["-m", str(folder), "hello"]
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "minifer", *command, *model],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=60,
        )
    err = ran.stderr.decode("utf-8")
    assert ran.returncode == 1 and err == "minifer: error: No space left on device\n"


@posix
def test_a_device_is_written_to_and_not_replaced(folder, tmp_path):
    command = ["generate", "-m", folder, "hello", "-n", 2, "--ignore-eos", "-q", "--output"]
    os.mkfifo(tmp_path / "pipe")
    process = start(*command, tmp_path / "pipe")
    found = json.loads((tmp_path / "pipe").read_text(encoding="utf-8"))
    process.communicate(timeout=30)
    assert len(found["token_ids"]) == 2 and not (tmp_path / "pipe").is_file()
    (tmp_path / "link").symlink_to("target")
    assert run(*command, tmp_path / "link").code == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").is_file()


@posix
@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_streams_that_are_closed(folder, closed):
    for command in (["generate", "-", "-n2", "-q"], ["chat"], ["tokenize", "-"]):
        words = [sys.executable, "-m", "minifer", *command, "-m", str(folder)]
        ran = subprocess.run(
            ["sh", "-c", f'"$@" {closed}', "sh", *words],
            input=b"hello\n" if closed == ">&-" else None,
            capture_output=True,
            env=environment(),
            timeout=60,
        )
        # An empty prompt is an error; an empty chat is not.
        empty = closed == "<&-" and command[0] == "generate"
        assert ran.returncode == (1 if empty else 0) and b"Traceback" not in ran.stderr
        assert (b"the prompt is empty" in ran.stderr) == empty


# ---- encodings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252"])
def test_a_stream_that_lacks_characters(folder, encoding):
    env = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    ids = tiny_model().tokenizer.encode("日é")
    for command in (
        ["tokenize", "-m", folder, "日é"],
        ["tokenize", "-m", folder, "--token-ids", ",".join(map(str, ids))],
        ["generate", "-m", folder, "日é", "-n", 40, "--ignore-eos"],
    ):
        ran = run(*command, **env)
        assert ran.code == 0 and "Traceback" not in ran.err and "?" in ran.out
    found = run("tokenize", "-m", folder, "日é", "--json", **env).json
    assert found["ids"] == ids and found["pieces"][0]["end"] == 1
    command = ["generate", "-m", folder, "日é", "-n", 40, "--ignore-eos", "--json"]
    assert run(*command, **env).json["text"] == run(*command).json["text"]


def test_stdin_is_utf8_whatever_the_locale(folder):
    env = {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    content = "日é".encode()
    ran = run("tokenize", "-m", folder, "--ids", "-", stdin=content, **env)
    assert ran.out.strip() == ",".join(map(str, tiny_model().tokenizer.encode("日é")))
    chat = ["chat", "-m", folder, "-n", 1]
    assert (
        run(*chat, stdin=content, **env).err.split(",")[0]
        == (run(*chat, stdin=content).err.split(",")[0])
    )


@posix
def test_a_prompt_of_bytes_that_are_no_utf8(folder):
    ran = run("generate", "-m", folder, "a\udcff", "-n", 1)
    assert ran.code == 1 and ran.err.startswith("minifer: error: ") and "not UTF-8 text" in ran.err


def test_every_text_file_is_opened_with_an_encoding(folder, tmp_path):
    strict = ["-X", "warn_default_encoding", "-W", "error::EncodingWarning"]
    strict += ["-W", "ignore:UTF-8 Mode affects:EncodingWarning"]  # the regex package's own
    common = ["-m", folder, "-f", tmp_path / "prompt.txt"]
    (tmp_path / "prompt.txt").write_text("the é", encoding="utf-8")
    output = tmp_path / "out.json"
    for command in (
        ["generate", *common, "-n", 2, "-q", "--output", output],
        ["tokenize", *common, "--compare", "--ids"],
        ["score", *common],
        ["doctor"],
    ):
        ran = run(*command, python=strict, PYTHONUTF8="0", LC_ALL="C.UTF-8")
        assert ran.code == 0 and "Warning" not in ran.err


# ---- a cold start ------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["--help"], ["generate", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(args):
    heavy = ("numpy", "jinja2", "tokenizers", "regex", "rich", "platformdirs")
    code = (
        "import sys\nfrom minifer.cli.main import main\n"
        f"try: main({args!r})\nexcept SystemExit: pass\n"
        f"print(*[name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment(), timeout=60
    )
    assert ran.returncode == 0 and ran.stdout and ran.stderr.strip() == b""
