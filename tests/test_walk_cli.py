"""The walk command: its text at 80 columns and wide, its JSON, its errors."""

import re
import sys

import pytest
from cli_runs import cli, run
from tiny_model import CONFIG, write_tiny_model
from walk_runs import ORDER

from minifer.cli.walk import PROMPT
from minifer.observe.walk_source import watched_functions
from minifer.observe.walk_words import figure

LAYERS = CONFIG["num_hidden_layers"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("walk") / "tiny", max_position_embeddings=400)


@pytest.fixture
def walk(capsys, folder):
    return lambda *args, **more: cli(capsys, "walk", "-m", folder, "--repeats", 1, *args, **more)


def rows(text, name):
    """Line number -> the lines below it, of one function in the 80-column text."""
    lines = text.split(f"\n{name} ")[1].split("\n\n")[0]
    block, found = lines.split("\n")[2:], {}
    for line in block:
        number = re.match(r" {0,2}(\d+)(?: |$)", line)
        if number:
            found[int(number[1])] = [line]
        else:
            found[max(found)].append(line)
    return found


# ---- the text ----------------------------------------------------------------------------------


def test_without_arguments_it_walks_the_default_prompt(walk):
    ran = walk()
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert "\x1b" not in ran.out
    assert f'tokens: "{PROMPT}", in the chat template' in ran.out
    assert "float32 weights, reference kernels" in " ".join(ran.out.split())
    titles = [line.split()[0] for line in lines if re.search(r" minifer/\w+\.py:\d+$", line)]
    assert titles == ORDER
    assert [line[:20] for line in lines if line.startswith("Most")] == [
        "Most time in prefill", "Most time in decode "
    ]  # fmt: skip
    assert re.search(r"^new tokens T +\d+ +1 +\d", ran.out, re.MULTILINE)
    assert "Times of lines are of 1 traced run. Tracing changed" in ran.out


def test_every_line_of_the_source_is_there(walk):
    out = walk("hi", "--no-chat").out
    for function in watched_functions():
        shown = rows(out, function.name)
        assert list(shown) == list(range(function.first, function.first + len(function.lines)))
        for number, text in enumerate(function.lines, function.first):
            code = function.code_and_comment(number, text)[0]
            first = shown[number][0][4:]
            assert code.startswith(first) or first.startswith(code)
            indent = len(text) - len(text.lstrip())
            assert len(first) - len(first.lstrip()) == indent


def test_the_figures_stand_under_their_line(walk):
    ran, found = walk("hi", "--no-chat"), walk("hi", "--no-chat", "--json").json
    gate = next(f for f in found["functions"] if f["name"] == "gate")
    shown = rows(ran.out, "gate")
    checked = 0
    for statement in gate["statements"]:
        cells = shown[statement["last"]][-1].split("|")
        assert len(cells) == 2
        for cell, phase in zip(cells, ("prefill", "decode"), strict=True):
            own, hits = statement[phase]["own"], statement[phase]["hits"]
            size = own["bytes_read"] + own["bytes_written"]
            if size == 0:  # the def: what was given stands below its figures
                continue
            made = statement[phase]["made"]
            (shape,) = next(iter(made.values()))
            end = f"{figure(size / 1e6)} +{figure(own['flops'] / 1e6)}"
            row = rf"{re.escape(shape)} +{hits} .? ?[\d.~]+ +{end} *"
            assert re.fullmatch(row, cell.strip()), (row, cell)
            checked += 1
    assert checked == 8


def test_a_line_that_never_ran_has_no_figures(walk):
    shown = rows(walk().out, "linear")
    last = max(shown)
    assert shown[last] == [f" {last}     return product + widen(xp, bias)"]
    assert len(shown[last - 3]) == 2


def test_numbers_and_long_shapes(walk):
    out = walk("--token-ids", "5,6,7").out
    assert re.search(r"T=3 H=4 E=8 +3 .+\| T=1 H=4 E=8 +3 ", out)
    assert re.search(r"^ +K=2 S=3 +3 .+\| K=2 S=4 +3 ", out, re.MULTILINE)  # `_` says nothing
    assert re.search(r"^ +begin=0 end=3 +3 .+\| begin=3 end=4 +3 ", out, re.MULTILINE)
    given = re.escape("query (3, 4, 8), key (2, 3, 8),") + r" +\| "
    assert re.search(given + re.escape("query (1, 4, 8), key (2, 4, 8),"), out)
    assert re.search(r"\(3, 32\) \+3 +22 ", out)  # product of linear, with three other shapes
    assert "index=" not in out and re.search(r"index=1\b", walk("--layer", 1).out)


@pytest.mark.parametrize("width", [40, 80, 100, 134, 135, 200])
def test_it_fits_the_terminal(walk, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = walk("--token-ids", "5,6,7").out.splitlines()
    longest = max(map(len, lines))
    assert 0.9 * width < longest <= max(80, width)
    place = next(n for n, line in enumerate(lines) if "def gate(" in line)
    beside = re.search(r"\| +\d+ +[\d.~]+$", lines[place]) is not None
    assert beside == (width >= 135)


@pytest.mark.parametrize(
    ("width", "columns"),
    [*[(300, n) for n in ("9" * 20, 2**31, 301)], *[(80, n) for n in (0, -5, "", 20, "²", "wide")]],
)
def test_a_width_no_terminal_has(walk, monkeypatch, width, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = walk("hi", "--function", "gate").out.splitlines()
    assert max(map(len, lines)) == width


def test_a_pipe_is_80_columns_without_colours_and_in_its_encoding(folder):
    ran = run("walk", "-m", folder, "--repeats", 1, PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert ran.code == 0 and ran.out.isascii() and "\x1b" not in ran.out
    assert "?" not in ran.out.split("Of each statement")[1]
    assert max(map(len, ran.out.splitlines())) == 80
    assert re.search(r" [#%*] *[\d.]+ +[\d.]+ +[\d.]+\|", ran.out)


def test_colours_at_a_terminal_only(walk, monkeypatch):
    plain = walk("hi", "--function", "linear").out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    colourful = walk("hi", "--function", "linear").out
    bare = re.sub(r"\x1b\[[\d;]*m", "", colourful)
    assert "\x1b[2m" in colourful and all(len(line) <= 80 for line in bare.splitlines())
    source = [line for line in plain.splitlines() if re.match(r" \d\d ", line)]
    assert [line for line in bare.splitlines() if re.match(r" \d\d ", line)] == source
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert "\x1b" not in walk("hi", "--function", "linear").out


def test_some_functions(walk):
    out = walk("--function", "append", "--function", "gate").out
    titles = re.findall(r"^(\S+).* minifer/\w+\.py:\d+$", out, re.MULTILINE)
    assert titles == ["KVCache.append", "gate"] and "Most time in decode" in out
    out = walk("--function", "select", "--layer", 1).out
    assert "\nselect did not run in this layer\n" in out and "layer 1 of 3 alone" in out


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (0, "0"), (0.0, "0"), (0.0004, "~0"), (0.0005, "0.001"), (0.9996, "1.00"),
        (9.996, "10.0"), (99.96, "100"), (1234.4, "1234"), (99999.4, "99999"), (99999.6, "100k"),
        (8_900_000, "8900k"), (9_999_600, "10.0M"), (7e8, "700M"), (37, "37"), (100_000, "100k"),
    ],
)  # fmt: skip
def test_figures_are_short(value, text):
    assert figure(value) == text and len(text) <= 5


# ---- the JSON object ---------------------------------------------------------------------------


def test_json_holds_it_all_and_adds_up(walk, folder):
    found = walk("--token-ids", "5,6,7", "--json").json
    assert found["prompt_token_ids"] == [5, 6, 7] and found["model"] == str(folder)
    assert (found["dtype"], found["kernels"], found["layers"]) == ("float32", "reference", LAYERS)
    assert (found["layer"], found["repeats"]) == (None, 1)
    assert found["threads"] >= 1 and found["hardware"]
    assert [function["name"] for function in found["functions"]] == ORDER
    for phase, tokens, visible in (("prefill", 3, 3), ("decode", 1, 4)):
        about = found["phases"][phase]
        assert (about["tokens"], about["visible"]) == (tokens, visible)
        own = [
            statement[phase]["own"]
            for function in found["functions"]
            for statement in function["statements"]
            if phase in statement
        ]
        for name in ("flops", "bytes_read", "bytes_written"):
            assert sum(share[name] for share in own) == about["total"][name] > 0
        assert sum(share["ms"] for share in own) == pytest.approx(about["total"]["ms"])
        moved = about["total"]["bytes_read"] + about["total"]["bytes_written"]
        assert about["total"]["intensity"] == about["total"]["flops"] / moved
        assert len(about["hottest"]) == 5 and 0 < about["total"]["ms"] < about["traced_ms"]
    again = walk("--token-ids", "5,6,7", "--json", "--function", "gate", "--layer", 2).json
    assert [function["name"] for function in again["functions"]] == ["gate"]
    assert again["layer"] == 2 and again["functions"][0]["statements"][0]["prefill"]["hits"] == 1


# ---- prompts and errors ------------------------------------------------------------------------


def test_the_prompt_of_generate(walk, capsys, folder, tmp_path):
    (tmp_path / "text.txt").write_text("the user\n", encoding="utf-8")
    for args in (["the user"], ["-p", "the user", "--no-chat"], ["-f", tmp_path / "text.txt"],
                 ["hi", "--system-prompt", "be kind"], ["--token-ids", "9,8"]):  # fmt: skip
        theirs = cli(capsys, "generate", "-m", folder, "-n", 1, "--json", *args).json
        found = walk(*args, "--json").json
        assert found["prompt_token_ids"] == theirs["prompt_token_ids"]
        assert found["decoded_token_id"] == theirs["token_ids"][0]


def test_a_model_without_a_tokenizer(walk, capsys, tmp_path):
    folder = write_tiny_model(tmp_path / "bare", chat=False)
    (folder / "tokenizer.json").unlink()
    ran = cli(capsys, "walk", "-m", folder, "--token-ids", "5,6", "--repeats", 1)
    assert ran.code == 0 and re.search(r"^prompt +2 tokens$", ran.out, re.MULTILINE)
    ran = cli(capsys, "walk", "-m", folder)
    assert ran.code == 1 and "this model has none" in ran.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--kernels", "numpy"], "--kernels numpy: walk shows the reference kernels, the code you "
         "can read; leave it out"),
        (["--layer", "3"], "--layer 3: the model has the layers 0 to 2"),
        (["--layer", "-1"], "argument --layer: '-1': expected a whole number from 0"),
        (["--repeats", "0"], "argument --repeats: '0': expected a whole number from 1"),
        (["--function", "atention"], "--function 'atention': no such function; near it: attention"),
        (["--function", "?"], "--function '?': no such function; there are step, lay_out, append"),
        (["a", "-p", "b"], "needs one prompt: PROMPT, -p, -f or --token-ids; found 2 of them"),
        (["--token-ids", "1", "--chat"], "--chat needs a text; --token-ids are used as they are"),
        (["--htm", "x"], "unknown option --htm; near it: --html"),
    ],
)  # fmt: skip
def test_usage_errors(walk, args, said):
    ran = walk(*args)
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith(f"minifer walk: error: {said}")
    assert ran.err.endswith("\nminifer walk --help shows what is allowed\n")


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_the_kernels_are_the_readable_ones(walk, monkeypatch, kernels):
    monkeypatch.setenv("MINIFER_KERNELS", "numpy")
    assert walk("hi", "--kernels", kernels, "--json").json["kernels"] == "reference"


def test_a_prompt_too_long(walk, capsys, tmp_path):
    ran = walk("--token-ids", ",".join(["5"] * 400))
    assert ran.code == 1 and "has no room for a decode step" in ran.err


def test_a_debugger_has_settrace(walk):
    sys.settrace(lambda *event: None)
    try:
        ran = walk("hi")
    finally:
        sys.settrace(None)
    assert (ran.code, ran.out) == (1, "")
    assert "has it: a debugger, or coverage; run it without: python -m minifer walk" in ran.err


def test_interrupted(walk, monkeypatch):
    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("minifer.model.lay_out", stopped)
    assert walk("hi") == (130, "", "minifer: interrupted\n") and sys.gettrace() is None


def test_help_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = cli(capsys, "walk", "--help")
    assert ran.code == 0 and all(len(line) <= 80 for line in ran.out.splitlines())
    assert "walk" in cli(capsys, "--help").out


@pytest.mark.default_model
def test_the_default_model_shows_why_decode_is_slow(capsys):
    found = cli(capsys, "walk", "--repeats", 1, "--json").json
    assert len(found["prompt_token_ids"]) == 37 and found["decoded_token_id"] == 504
    prefill, decode = (found["phases"][phase]["total"] for phase in ("prefill", "decode"))
    assert prefill["intensity"] > 15 * decode["intensity"] and decode["intensity"] < 0.5
    linear = next(f for f in found["functions"] if f["name"] == "linear")
    place = found["phases"]["decode"]["hottest"][0]
    assert place["function"] == "linear"
    product = next(s for s in linear["statements"] if s["line"] == place["line"])
    assert product["decode"]["hits"] == 211 and "matmul" in product["source"]
