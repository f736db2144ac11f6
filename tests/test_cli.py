"""The command line on a tiny model, in this process: options, figures, exit codes."""

import json

import numpy as np
import pytest
from cli_runs import cli
from tiny_model import tiny_model, write_tiny_model

import minifer

IDS = "5,100,299,7"
JSON_KEYS = """token_ids text finish_reason prompt_tokens prompt_token_ids generated_tokens ttft_ms
itl_ms tpot_ms e2el_ms seed model dtype kernels threads""".split()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("cli") / "tiny")


@pytest.fixture
def generate(capsys, folder):
    return lambda *args: cli(capsys, "generate", "-m", folder, "--ignore-eos", *args)


def expected(prompt, n=12, **options):
    steps = minifer.generate(tiny_model(), prompt, max_tokens=n, ignore_eos=True, **options)
    steps = list(steps)
    return [step.token_id for step in steps], "".join(step.text for step in steps)


CHAT = [{"role": "user", "content": "hello"}]


# ---- text and figures --------------------------------------------------------------------------


@pytest.mark.parametrize("given", [["hello"], ["-p", "hello"]])
def test_the_text_alone_on_stdout_the_figures_on_stderr(generate, given):
    ran = generate(*given, "-n", 12)
    text = expected(CHAT)[1]
    assert ran.code == 0 and ran.out == text + "\n" * (not text.endswith("\n"))
    lines = ran.err.splitlines()
    assert all(line.startswith("minifer: ") and len(line) <= 80 for line in lines)
    for figure in ("prompt 17 tokens", "TTFT", "generated 12 tokens (length)", "tok/s", "ITL med"):
        assert figure in ran.err


def test_the_footer_fits_80_columns_whatever_the_figures(generate, monkeypatch):
    from minifer.cli import report

    monkeypatch.setattr(report, "hardware", lambda: "A Very Long Name of a Processor " * 4)
    monkeypatch.setattr(report, "peak_memory_mb", lambda: 123_456_789.0)
    ran = generate("hello", "-n", 40, "--temperature", 1, "--seed", 2**64 - 1)
    assert all(len(line) <= 80 for line in ran.err.splitlines())
    assert f"seed {2**64 - 1}" in ran.err


@pytest.mark.parametrize("flag", ["--quiet", "-q", "--no-stats"])
def test_no_figures(generate, flag):
    assert generate("hello", "-n", 3, flag).err == ""


def test_no_stream_prints_the_same(generate):
    assert generate("hello", "-n", 9, "--no-stream").out == generate("hello", "-n", 9).out


def test_verbose_says_what_is_loaded(generate):
    shown = generate("a", "-n1", "-v").err
    assert "llama L=3 D=32 H=4 K=2 E=8 context 128, float32" in shown


def test_json_is_one_object(generate, folder):
    ran = generate("hello", "-n", 12, "--json")
    found = ran.json
    assert ran.out.count("\n") == 1 and set(JSON_KEYS) <= set(found)
    ids, text = expected(CHAT)
    assert (found["token_ids"], found["text"]) == (ids, text)
    assert found["prompt_token_ids"] == tiny_model().encode_chat(CHAT)
    assert found["prompt_tokens"] == 17 and found["generated_tokens"] == 12
    assert found["finish_reason"] == "length" and found["model"] == str(folder)
    assert (found["dtype"], found["device"]) == ("float32", "cpu")
    assert len(found["itl_ms"]) == 11 and all(gap >= 0 for gap in found["itl_ms"])
    assert found["e2el_ms"] == pytest.approx(found["ttft_ms"] + sum(found["itl_ms"]))
    assert found["tpot_ms"] == pytest.approx(sum(found["itl_ms"]) / 11)
    assert "top_logprobs" not in found and len(found["logprobs"]) == 12


def test_json_of_one_token(generate):
    found = generate("hello", "-n", 1, "--json").json
    assert found["itl_ms"] == [] and found["tpot_ms"] is None


def test_logprobs(generate):
    found = generate("hello", "-n", 3, "--json", "--logprobs", 2).json
    for best, token_id, logprob in zip(
        found["top_logprobs"], found["token_ids"], found["logprobs"], strict=True
    ):
        assert len(best) == 2 and best[0] == [token_id, logprob] and best[1][1] <= logprob


def test_output_goes_to_a_file_and_leaves_nothing_beside_it(generate, tmp_path):
    target = tmp_path / "answer.json"
    target.write_text("old", encoding="utf-8")
    ran = generate("hello", "-n", 12, "--output", target)
    found = json.loads(target.read_text(encoding="utf-8"))
    assert found["text"] == expected(CHAT)[1] and ran.out.startswith(found["text"])
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]
    assert generate("hello", "-n", 2, "--json", "-q", "--output", target)[:2] == (0, "")


def test_output_that_fails_leaves_the_old_file(generate, tmp_path, monkeypatch):
    target = tmp_path / "answer.json"
    target.write_text("old", encoding="utf-8")
    monkeypatch.setattr("os.replace", lambda *args: (_ for _ in ()).throw(OSError(28, "disk full")))
    ran = generate("hello", "-n", 2, "--output", target)
    assert ran.code == 1 and "disk full" in ran.err
    assert target.read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]


# ---- prompts -----------------------------------------------------------------------------------


def prompt_of(ran):
    return tiny_model().tokenizer.decode(ran.json["prompt_token_ids"])


def test_a_plain_prompt_and_a_system_prompt(generate):
    plain = generate("hello", "--no-chat", "-n", 3, "--json")
    assert prompt_of(plain) == "hello"
    both = generate("hello", "--system-prompt", "be kind", "-n", 3, "--json")
    assert prompt_of(both).startswith("<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nh")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"hello", "hello"),
        (b"hello\n", "hello"),
        (b"hello\n\n", "hello\n"),
        (b"\xef\xbb\xbfhello\r\nyou\r\n", "hello\nyou"),
        ("é 日".encode(), "é 日"),
    ],
)
def test_a_prompt_from_a_file_or_stdin(capsys, folder, tmp_path, monkeypatch, content, text):
    path = tmp_path / "prompt.txt"
    path.write_bytes(content)
    command = ["generate", "-m", folder, "--no-chat", "-n", 1, "--json"]
    assert prompt_of(cli(capsys, *command, "-f", path)) == text
    for dash in (["-"], ["-p", "-"]):
        ran = cli(capsys, *command, *dash, stdin=content, monkeypatch=monkeypatch)
        assert prompt_of(ran) == text


@pytest.mark.parametrize("written", [IDS, "5 100 299 7", " 5, 100,299\n7 "])
def test_token_ids_are_used_as_they_are(generate, written):
    ran = generate("--token-ids", written, "-n", 12, "--json")
    assert ran.json["prompt_token_ids"] == [5, 100, 299, 7]
    assert ran.json["token_ids"] == expected([5, 100, 299, 7])[0]


# ---- options that change the answer, and options that must not ---------------------------------


@pytest.mark.parametrize(
    "same",
    [
        ["--no-kv-cache"],
        ["--prefill-chunk", 1],
        ["--prefill-chunk", 3],
        ["--ctx-size", 29],
        ["--no-mmap"],
        ["--kernels", "reference"],
        ["--kernels", "numpy"],
        ["--dtype", "float32"],
        ["--device", "cpu"],
        ["--offline"],
        ["--temp", 0, "--top-k", 3],
    ],
)
def test_options_that_leave_the_tokens_alone(generate, same):
    assert generate("hello", "-n", 12, "--json", *same).json["token_ids"] == expected(CHAT)[0]


def test_the_context_ends_an_answer(generate):
    found = generate("hello", "-n", 1000, "--ctx-size", 20, "--json").json
    assert len(found["token_ids"]) == 3 and found["finish_reason"] == "length"
    found = generate("hello", "-n", 1000, "--json").json
    assert len(found["token_ids"]) == 128 - 17


def test_stop_strings_are_repeatable(generate):
    text = expected(CHAT)[1]
    found = generate("hello", "-n", 12, "--json", "--stop", "nowhere", "--stop", text[5:7]).json
    assert found["finish_reason"] == "stop" and found["text"] == text[: text.find(text[5:7])]


def test_an_eos_stops_unless_ignored(capsys, tmp_path):
    first = expected(CHAT)[0][0]
    folder = write_tiny_model(tmp_path, eos_token_id=[2, first])
    command = ["generate", "-m", folder, "hello", "-n", 5, "--json"]
    found = cli(capsys, *command).json
    assert (found["token_ids"], found["text"], found["finish_reason"]) == ([first], "", "stop")
    assert len(cli(capsys, *command, "--ignore-eos").json["token_ids"]) == 5


def test_a_seed_repeats_an_answer(generate):
    command = ["hello", "-n", 12, "--json", "--temperature", 1.5, "--top-p", 0.9, "--min-p", 0.01]
    one = generate(*command, "--seed", 7).json
    assert (
        one["token_ids"] == generate(*command, "--seed", 7).json["token_ids"] and one["seed"] == 7
    )
    fresh = generate(*command).json
    assert fresh["token_ids"] != one["token_ids"]
    assert generate(*command, "--seed", fresh["seed"]).json["token_ids"] == fresh["token_ids"]


# ---- score -------------------------------------------------------------------------------------


def test_score_gives_the_models_own_figures(capsys, folder, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"the user\r\nand the error\n")
    ids = tiny_model().tokenizer.encode("the user\nand the error\n")
    logprobs = tiny_model().score(ids)
    found = cli(capsys, "score", "-m", folder, "-f", path, "--json").json
    assert found["token_ids"] == ids and found["tokens"] == len(ids)
    assert np.allclose(found["logprobs"], logprobs, rtol=0, atol=1e-6)
    assert found["logprob"] == pytest.approx(logprobs.sum(), abs=1e-4)
    assert found["perplexity"] == pytest.approx(np.exp(-logprobs.mean()), rel=1e-5)
    ran = cli(capsys, "score", "-m", folder, "-f", path, "--tokens")
    assert ran.code == 0 and f"{logprobs[0]:.4f}" in ran.out and ran.err == ""
    assert f"perplexity         {found['perplexity']:.4f}" in ran.out


def test_score_of_weights_that_are_at_fault(capsys, tmp_path):
    from tiny_model import tiny_tensors, write_tensors

    folder = write_tiny_model(tmp_path)
    tensors = tiny_tensors()
    command = ["score", "-m", folder, "--token-ids", IDS]
    head = tensors["lm_head.weight"]
    write_tensors(folder / "model.safetensors", tensors | {"lm_head.weight": head * 1e4})
    assert "perplexity         over 1e304" in cli(capsys, *command).out
    assert cli(capsys, *command, "--json").json["perplexity"] is None
    write_tensors(folder / "model.safetensors", tensors | {"lm_head.weight": head * np.nan})
    ran = cli(capsys, *command)
    assert ran.code == 1 and "nan: the weights are at fault" in ran.err
