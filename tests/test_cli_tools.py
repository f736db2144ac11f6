"""chat, tokenize and doctor on a tiny model, in this process."""

import re

import pytest
from cli_runs import cli
from tiny_model import SPECIAL, tiny_model, tokenizer_json, write_json, write_tiny_model

TEXT = "the user é日 <|im_end|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("cli") / "tiny", max_position_embeddings=400)


# ---- chat --------------------------------------------------------------------------------------


@pytest.fixture
def chat(capsys, folder, monkeypatch):
    def talk(text, *args):
        args = ("--ignore-eos", "-n", 4, *args)
        return cli(capsys, "chat", "-m", folder, *args, stdin=text, monkeypatch=monkeypatch)

    return talk


def cached(ran):
    """(in the cache, in the prompt) of every turn."""
    found = re.findall(r"(\d+) of (\d+) prompt tokens were in the cache", ran.err)
    return [(int(kept), int(whole)) for kept, whole in found]


def test_the_cache_is_kept_between_turns(chat):
    ran = chat("hello\nand you\n")
    first, second = cached(ran)
    assert ran.code == 0 and first == (0, 17)
    # What was answered is text again, so its ids may differ: the prompt itself is always kept.
    assert second[0] >= 17 and second[1] > 17 + 4
    assert ran.out.count("\n") >= 2 and "minifer" not in ran.out


def test_a_second_turn_answers_as_a_fresh_run_would(chat, capsys, folder):
    ran = chat("hello\n\nand you", "--quiet")
    assert ran.err == ""
    model = tiny_model(max_position_embeddings=400)
    messages, expected = [], ""
    for text in ("hello", "and you"):
        messages.append({"role": "user", "content": text})
        ids = ",".join(map(str, model.encode_chat(messages)))
        command = ["generate", "-m", folder, "--ignore-eos", "-n", 4, "--json", "--token-ids", ids]
        answer = cli(capsys, *command).json["text"]
        messages.append({"role": "assistant", "content": answer})
        expected += answer + "\n"
    assert ran.out == expected


def test_without_a_cache_the_same_answers_and_none_claimed(chat):
    with_cache, without = chat("hello\nand you\n"), chat("hello\nand you\n", "--no-kv-cache")
    assert without.out == with_cache.out
    assert [kept for kept, _ in cached(without)] == [0, 0]


def test_new_forgets_all_but_the_system_prompt(chat):
    plain = cached(chat("hello\n/new\nhello\n"))
    assert plain[0] == (0, 17) and plain[1] == (16, 17)
    first, second = cached(chat("hello\n/new\nhello\n", "--system-prompt", "be kind"))
    assert first[1] == second[1] > 17


@pytest.mark.parametrize("text", ["", "\n\n  \n", b"\r\n", b"\xef\xbb\xbf"])
def test_an_empty_input_is_an_empty_chat(chat, text):
    assert chat(text) == (0, "", "")


def test_a_byte_order_mark_and_windows_line_ends(chat):
    assert chat(b"\xef\xbb\xbfhello\r\n").out == chat("hello").out


def test_special_text_typed_by_a_user_forges_no_turn(chat):
    (_, whole), *_ = cached(chat(f"a{SPECIAL[2]}\n"))
    model = tiny_model(max_position_embeddings=400)
    assert whole == len(model.encode_chat([{"role": "user", "content": f"a{SPECIAL[2]}"}]))


def test_a_full_context_is_said_and_ends_a_piped_chat(chat):
    ran = chat("hello\n" + "x" * 300 + "\nhello\n", "--ctx-size", 60)
    assert ran.code == 1 and len(cached(ran)) == 1
    problem, hint = ran.err.splitlines()[-2:]
    assert problem.endswith(" tokens, the KV cache holds 60; shorten it")
    assert hint == "minifer: /new starts a new conversation"


def test_an_option_out_of_range(chat):
    ran = chat("hello\n", "--ctx-size", 401)
    assert ran.code == 2 and "the model's context is 400" in ran.err


class Terminal:
    """A stdin that somebody types at."""

    def isatty(self):
        return True


def test_chat_typed_at_a_terminal(capsys, folder, monkeypatch):
    lines = iter(["hello", "x" * 500, "/help me", "/" + "y" * 90, "/new", "hello", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setattr("sys.stdin", Terminal())
    ran = cli(
        capsys, "chat", "-m", folder, "-n", 3, "--ignore-eos", "--temp", 1, "--seed", 2**64 - 1
    )
    said = ran.err.splitlines()
    assert ran.code == 0 and all(len(line) <= 80 for line in said)
    assert said[0] == "minifer: type a message; /new forgets it all, an empty line or Ctrl-D ends"
    assert "minifer: /help is no command; there is /new, an empty line ends" in said
    assert "minifer: /new starts a new conversation" in said and len(cached(ran)) == 2


def test_an_unknown_command_is_no_message_to_the_model(chat):
    ran = chat("/bye\nhello\n")
    assert ran.err.startswith("minifer: /bye is no command; there is /new, an empty line ends\n")
    assert ran.code == 0 and ran.out == chat("hello\n").out and cached(ran) == [(0, 17)]


def test_ctrl_c_at_the_prompt_leaves_the_line_first(capsys, folder, monkeypatch):
    def interrupted(prompt):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    monkeypatch.setattr("sys.stdin", Terminal())
    ran = cli(capsys, "chat", "-m", folder)
    assert (ran.code, ran.out) == (130, "\n")
    assert ran.err.splitlines()[1:] == ["minifer: interrupted"]


def test_the_seed_of_a_turn_repeats_it(chat):
    flags = ["--temp", 1.5, "-n", 12]
    ran = chat("hello\n", *flags)
    (seed,) = re.findall(r"^minifer: seed (\d+)$", ran.err, re.MULTILINE)
    assert chat("hello\n", *flags, "--seed", seed).out == ran.out
    assert "seed" not in chat("hello\n").err  # greedy: nothing is drawn


# ---- tokenize ----------------------------------------------------------------------------------


@pytest.fixture
def tokenize(capsys, folder):
    return lambda *args: cli(capsys, "tokenize", "-m", folder, *args)


def test_the_table_has_a_line_per_piece(tokenize):
    ran = tokenize(TEXT)
    pieces = tiny_model().tokenizer.pieces(TEXT)
    lines = ran.out.splitlines()
    assert ran.code == 0 and ran.err == "" and len(lines) == 1 + len(pieces)
    assert lines[0].split() == ["id", "from", "to", "piece", "text"]
    for line, piece in zip(lines[1:], pieces, strict=True):
        assert line.split()[:3] == [str(piece.id), str(piece.start), str(piece.end)]
        assert repr(TEXT[piece.start : piece.end]) in line


def test_ids_json_and_plain(tokenize):
    tokenizer = tiny_model().tokenizer
    ids = tokenizer.encode(TEXT)
    assert tokenize("--ids", TEXT).out == ",".join(map(str, ids)) + "\n"
    found = tokenize("--json", TEXT).json
    assert found["ids"] == ids == [piece["id"] for piece in found["pieces"]]
    assert found["pieces"][1] == {"id": ids[1], "token": "he", "start": 1, "end": 3}
    plain = tokenize("--ids", "--plain", TEXT).out
    assert plain == ",".join(map(str, tokenizer.encode(TEXT, parse_special=False))) + "\n"
    assert tokenize("--ids", "").out == "\n"


def test_ids_are_decoded(tokenize):
    ids = tiny_model().tokenizer.encode(TEXT)
    assert tokenize("--token-ids", ",".join(map(str, ids))).out == TEXT + "\n"
    ran = tokenize("--token-ids", "75,5000,75,5000")
    assert (ran.code, ran.out) == (0, "HH\n") and ran.err.count("no token has the id 5000") == 1


def test_the_ids_go_round(tokenize, capsys, folder):
    ids = tokenize("--ids", TEXT).out.strip()
    ran = cli(capsys, "generate", "-m", folder, "--token-ids", ids, "-n", 1, "--json")
    assert ran.json["prompt_token_ids"] == [int(part) for part in ids.split(",")]


def test_a_file_is_taken_exactly(tokenize, tmp_path):
    (tmp_path / "text.txt").write_bytes(b"a\n\n")
    ids = tokenize("--json", "-f", tmp_path / "text.txt").json["ids"]
    assert tiny_model().tokenizer.decode(ids) == "a\n\n"


@pytest.mark.parametrize("flags", [[], ["--plain"], ["--no-special-tokens"]])
def test_compare_with_the_library(tokenize, flags):
    ran = tokenize("--compare", "--ids", TEXT, *flags)
    assert ran.code == 0 and "the tokenizers library gives the same" in ran.err


def test_compare_says_where_they_differ(capsys, tmp_path, monkeypatch):
    write_json(tmp_path / "tokenizer.json", tokenizer_json())
    import minifer

    right = minifer.Tokenizer.pieces
    command = ["tokenize", "-m", tmp_path, "--compare", "--ids", "abc"]
    for wrong, place in ((lambda p: p[:2], 2), (lambda p: [p[0], p[0], p[2]], 1)):
        monkeypatch.setattr(
            minifer.Tokenizer, "pieces", lambda *a, wrong=wrong, **k: wrong(right(*a, **k))
        )
        ran = cli(capsys, *command)
        assert ran.code == 1 and f"the tokenizers library differs from piece {place}: [" in ran.err


# ---- doctor ------------------------------------------------------------------------------------


def test_doctor_names_what_is_here(capsys, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("MINIFER_CACHE", str(cache))
    ran = cli(capsys, "doctor")
    assert ran.code == 0 and ran.err == "" and not cache.exists()
    for name in ("minifer", "Python", "CPU", "NumPy", "BLAS", "threads", "kernels", "GPU", "cache"):
        assert re.search(f"^{name} +[^ ]", ran.out, re.MULTILINE), name
    assert "none yet; python -m minifer fetch brings the default one" in ran.out
    write_tiny_model(cache / "models" / "Tiny")
    assert "Tiny, 0 MB" in cli(capsys, "doctor").out


def test_doctor_fits_80_columns(capsys, monkeypatch):
    from minifer.cli import doctor, report

    long = "A Very Long Name of a Processor " * 4
    monkeypatch.setattr(report, "hardware", lambda: long)
    monkeypatch.setattr("platform.platform", lambda: long)
    lines = cli(capsys, "doctor").out.splitlines()
    paths = [line for line in lines if len(line) > 80]
    assert all(len(line.split()) <= 2 for line in paths)  # a path is not torn apart
    assert doctor.wrapped("name", "a" * 90) == ["name" + " " * 8 + "a" * 90]


def test_doctor_where_there_is_no_proc(capsys, monkeypatch):
    from minifer.cli import report

    def missing(*args, **options):
        raise FileNotFoundError(2, "No such file", "/proc/cpuinfo")

    monkeypatch.setattr(report, "open", missing, raising=False)
    assert isinstance(report.hardware(), str)
