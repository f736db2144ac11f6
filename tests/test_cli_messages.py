"""What the command line says: usage errors word for word, the table, help; and when it says it."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from cli_runs import cli
from tiny_model import tiny_model, write_tiny_model

import minifer
from minifer.json_file import refuse_unwritable, whole_file

posix = pytest.mark.skipif(os.name == "nt", reason="modes, links and long names of POSIX")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("cli") / "tiny")


@pytest.fixture
def generate(capsys, folder):
    return lambda *args, **more: cli(capsys, "generate", "-m", folder, *args, **more)


# ---- usage errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["a", "--temprature", "1"], "unknown option --temprature; near it: --temperature, --temp"),
        (["a", "--temprature=1"], "unknown option --temprature=1; near it: --temperature, --temp"),
        (["a", "--top", "1"], "unknown option --top; near it: --stop, --top-p"),
        (["a", "--xyzzy"], "unknown option --xyzzy"),
        (["a", "-z"], "unknown option -z"),
        (["a", "b"], "unexpected 'b'; put a prompt of several words in quotes"),
        (["a", "--threads", "9" * 9], f"--threads {'9' * 9}: at most 1024"),
    ],
)
def test_a_usage_error_is_two_lines(generate, args, said):
    ran = generate(*args)
    assert (ran.code, ran.out) == (2, "")
    hint = "minifer generate --help shows what is allowed"
    assert ran.err == f"minifer generate: error: {said}\n{hint}\n"


def test_the_most_threads_that_are_allowed(generate, monkeypatch):
    told = []
    monkeypatch.setattr("minifer.cli.main.set_threads", told.append)
    assert generate("a", "-n", 1, "--threads", 1024).code == 0 and told == [1024]


def test_without_a_command_the_help_is_no_result(capsys):
    ran, asked = cli(capsys), cli(capsys, "--help")
    assert (ran.code, ran.out, ran.err) == (2, "", asked.out)


COMMANDS = "generate chat tokenize score inspect walk diff fetch doctor".split()


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_fits_80_columns(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert all(len(line) <= 80 for line in cli(capsys, *command, "--help").out.splitlines())


# ---- prompts that say nothing ------------------------------------------------------------------


@pytest.mark.parametrize("chat", ["--chat", "--no-chat"])
@pytest.mark.parametrize("given", [[""], ["-p", ""], ["-"], ["-p", "-"]])
@pytest.mark.parametrize("stdin", [b"", b"\n", b"\xef\xbb\xbf"])
def test_an_empty_prompt(generate, monkeypatch, chat, given, stdin):
    ran = generate(*given, chat, stdin=stdin, monkeypatch=monkeypatch)
    assert (ran.code, ran.out) == (1, "") and len(ran.err.splitlines()) == 1
    assert ran.err.startswith("minifer: error: the prompt is empty")


def test_an_argument_is_taken_exactly(generate):
    """Line ends and a byte-order mark are a file's; who types them as an argument means them."""
    ran = generate("\ufeffé\r\n", "--no-chat", "-n", 1, "--json", "-q")
    ids = ran.json["prompt_token_ids"]
    assert tiny_model().tokenizer.decode(ids) == "\ufeffé\r\n"


# ---- the table of --logprobs -------------------------------------------------------------------


def test_logprobs_without_json_are_a_table_on_stderr(generate):
    flags = ["hello", "-n", 3, "--ignore-eos", "--no-stats"]
    plain, ran = generate(*flags), generate(*flags, "--logprobs", 2)
    assert (ran.code, ran.out) == (0, plain.out) and plain.err == ""
    head, *lines = ran.err.splitlines()
    assert head == "  logprob  token and the likeliest in its place"
    found = generate(*flags, "--logprobs", 2, "--json")
    assert found.err == ""  # there they are in the object
    decode = tiny_model().tokenizer.decode
    assert len(lines) == 3
    for line, token, logprob, best in zip(
        lines,
        *(found.json[key] for key in ("token_ids", "logprobs", "top_logprobs")),
        strict=True,
    ):
        others = ", ".join(f"{decode([other])!r} {chance:.2f}" for other, chance in best)
        assert line == f"{logprob:>9.4f}  {decode([token])!r}: {others}"
    assert generate(*flags, "--logprobs", 2, "-q").err == ""


# ---- --output is looked at before the run ------------------------------------------------------


@pytest.fixture
def never_loaded(monkeypatch):
    def load(args):
        raise minifer.MiniferError("the model was loaded first")

    monkeypatch.setattr("minifer.cli.generate.open_model", load)


def test_a_name_the_system_refuses(generate, tmp_path, never_loaded):
    ran = generate("a", "--output", tmp_path / ("x" * 300))
    assert ran.code == 1 and re.search("too long|No such file", ran.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_cannot_be_written(generate, tmp_path, monkeypatch, never_loaded, there):
    target = tmp_path / "answer.json"
    if there:  # it would be replaced: its own permissions do not help
        target.write_text("old", encoding="utf-8")

    def refused(self, *args, **options):
        assert self.parent == tmp_path and self != target
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.touch", refused)
    ran = generate("a", "--output", target)
    assert (ran.code, ran.err) == (1, f"minifer: error: --output {target}: Permission denied\n")
    assert target.exists() == there


def test_a_file_that_is_read_only_is_not_replaced(generate, tmp_path, monkeypatch, never_loaded):
    target = tmp_path / "answer.json"
    target.write_text("old", encoding="utf-8")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    ran = generate("a", "--output", target)
    assert (ran.code, ran.err) == (
        1,
        f"minifer: error: --output {target}: the file is read-only; make it writable (chmod u+w) "
        "or give another name\n",
    )


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_that_is_written_again_keeps_its_mode(generate, tmp_path, mode):
    target, fresh = tmp_path / "answer.json", tmp_path / "fresh.json"
    target.write_text("old", encoding="utf-8")
    target.chmod(mode)
    for path in (target, fresh):
        assert generate("a", "-n", 1, "-q", "--output", path).code == 0
        assert json.loads(path.read_text(encoding="utf-8"))
    umask = os.umask(0)
    os.umask(umask)
    assert [path.stat().st_mode & 0o777 for path in (target, fresh)] == [mode, 0o666 & ~umask]


@posix
def test_a_name_as_long_as_the_system_allows(generate, tmp_path):
    assert generate("a", "-n", 1, "-q", "--output", tmp_path / ("x" * 255)).code == 0
    assert [len(path.name) for path in tmp_path.iterdir()] == [255]


def test_of_writers_at_the_same_time_one_wins_whole(tmp_path):
    target, texts = tmp_path / "a.json", [letter * 300_000 for letter in "abcdefgh"]

    def write(text):
        for _ in range(20):
            refuse_unwritable(target, "it")
            with whole_file(target) as file:
                file.write(text)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, texts))  # raises what a thread raised
    assert target.read_text(encoding="utf-8") in texts and list(tmp_path.iterdir()) == [target]


@posix
@pytest.mark.parametrize("other", ["o.json", "./o.json", "sub/../o.json", "link.json", "late.json"])
def test_result_and_trace_in_one_file_are_a_usage_error(
    generate, tmp_path, monkeypatch, never_loaded, other
):
    monkeypatch.chdir(tmp_path)
    os.mkdir("sub")
    os.symlink("o.json", "link.json")  # dangling: a name for a file that is not there yet
    os.symlink(tmp_path / "link.json", "late.json")
    for flags in (
        ("--output", "o.json", "--trace", other),
        ("--trace", "o.json", "--output", other),
    ):
        ran = generate("a", *flags)
        assert (ran.code, ran.out) == (2, "") and "are one file; give each its own\n" in ran.err
    assert "loaded first" in generate("a", "--output", "o.json", "--trace", "t.json").err
    assert "loaded first" in generate("a", "--output", os.devnull, "--trace", os.devnull).err


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
def test_a_folder_that_takes_no_files(generate, never_loaded):
    ran = generate("a", "--output", "/proc/answer.json")
    assert ran.code == 1 and "--output /proc/answer.json: " in ran.err


def test_a_look_at_the_output_leaves_nothing_and_spoils_nothing(generate, tmp_path, never_loaded):
    target = tmp_path / "answer.json"
    assert "loaded first" in generate("a", "--output", target).err
    assert list(tmp_path.iterdir()) == []
    target.write_text("old", encoding="utf-8")
    assert "loaded first" in generate("a", "--output", target).err
    assert target.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]
