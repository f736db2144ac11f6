"""generate --explain and --trace: a receipt per token, the same text, nothing on stdout but it."""

import json

import pytest
from cli_runs import cli
from tiny_model import tiny_model, write_tiny_model

import minifer
from minifer.observe.recorder import Receipt

IDS = "5,100,299,7"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("explain") / "tiny")


@pytest.fixture
def generate(capsys, folder):
    return lambda *args: cli(
        capsys, "generate", "-m", folder, "--ignore-eos", "--token-ids", IDS, "-n", 6, *args
    )


def receipts(**options):
    with minifer.record(time="step"):
        steps = minifer.generate(
            tiny_model(), [5, 100, 299, 7], max_tokens=6, ignore_eos=True, **options
        )
        return [step.receipt for step in steps]


def test_a_line_per_token_with_the_receipts_figures(generate):
    plain, ran = generate(), generate("--explain")
    assert (ran.code, ran.out) == (0, plain.out), "the text is the same, and alone on stdout"
    lines = ran.err.splitlines()
    assert max(map(len, lines)) <= 80
    head = next(n for n, line in enumerate(lines) if line.startswith("token"))
    rows = lines[head + 1 : head + 7]
    assert [row[17:26].strip() for row in rows] == ["prefill"] + ["decode"] * 5
    assert [int(row[26:34]) for row in rows] == [4, 5, 6, 7, 8, 9]
    for row, receipt in zip(rows, receipts(), strict=True):
        weights, kv, flops, intensity, spent = map(float, row[34:].split())
        assert weights == pytest.approx(receipt.weight_bytes / 1e6, abs=6e-5)
        assert kv == pytest.approx(
            (receipt.kv_bytes_read + receipt.kv_bytes_written) / 1e6, abs=6e-5
        )
        assert flops == pytest.approx(receipt.flops / 1e9, abs=6e-5)
        assert intensity == pytest.approx(receipt.intensity, rel=1e-3)
        assert spent > 0
    prefill, decode = lines[head + 7 : head + 9]
    assert prefill.startswith("prefill: 4 tokens, each ") and decode.startswith("decode: 5 tokens")
    assert "floor" not in ran.err, "no roof is known yet"


def test_the_weights_are_read_once_per_chunk(generate):
    whole, chunked = receipts()[0], receipts(prefill_chunk=2)[0]
    head_and_blocks = whole.weight_bytes - 4 * 4 * tiny_model().config.hidden_size
    assert chunked.weight_bytes == whole.weight_bytes + head_and_blocks
    ran = generate("--explain", "--prefill-chunk", 2)
    row = next(line for line in ran.err.splitlines() if " prefill " in line)
    assert float(row[34:45]) == pytest.approx(chunked.weight_bytes / 1e6, abs=6e-5)


def test_json_holds_the_receipts_and_no_table(generate):
    ran = generate("--explain", "--json")
    found = ran.json["receipts"]
    assert [set(receipt) for receipt in found] == [{"phase", "position", *Receipt._fields}] * 6
    assert [receipt["position"] for receipt in found] == [4, 5, 6, 7, 8, 9]
    assert [receipt["phase"] for receipt in found] == ["prefill"] + ["decode"] * 5
    for mine, theirs in zip(found, receipts(), strict=True):
        expected = theirs._asdict()
        assert {k: mine[k] for k in expected if k != "seconds"} == {
            k: v for k, v in expected.items() if k != "seconds"
        }
    assert "2 per multiply-add" in ran.json["convention"]
    assert "token  " not in ran.err
    assert "receipts" not in generate("--json").json


def test_quiet_is_quiet(generate):
    ran = generate("--explain", "--quiet")
    assert ran.err == ""


def test_one_token_has_no_decode_line(capsys, folder):
    ran = cli(capsys, "generate", "-m", folder, "--token-ids", IDS, "-n", 1, "--explain")
    assert "prefill: 4 tokens" in ran.err
    assert "decode:" not in ran.err


def test_a_later_floor_gets_its_columns(generate, monkeypatch):
    """Once roofs are known, a receipt has a floor and a wall: they stand beside the time."""
    from minifer.cli import explain

    step = next(minifer.generate(tiny_model(), [5, 6], max_tokens=1))
    receipt = Receipt(10**6, 10**5, 10**4, 10**7, 9.0, 0.002, 0.0015, "memory")
    lines = explain.explain_lines(tiny_model(), [step._replace(receipt=receipt)])
    assert lines[0].endswith("floor ms  wall")
    assert lines[1].split()[-2:] == ["1.500", "memory"]


def test_a_trace_is_written_whole_and_named(generate, tmp_path):
    path = tmp_path / "trace.json"
    ran = generate("--trace", path)
    assert (ran.code, ran.out) == (0, generate().out)
    assert f"trace: {path}; open it at ui.perfetto.dev" in ran.err
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    names = {event["name"] for event in events}
    assert {"attention", "linear", "rope"} <= names
    assert [other.name for other in tmp_path.iterdir()] == ["trace.json"]


def test_explain_and_trace_go_together(generate, tmp_path):
    ran = generate("--trace", tmp_path / "t.json", "--explain")
    assert "prefill: 4 tokens" in ran.err and "trace: " in ran.err


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "is a folder"), ("no/trace.json", "does not exist"), ("x\0y", "null|embedded|Invalid")],
)
def test_a_trace_that_cannot_be_written_is_refused_before_the_run(
    generate, tmp_path, name, message
):
    import re

    ran = generate("--trace", str(tmp_path / name) if name else tmp_path)
    assert ran.code == 1 and ran.out == ""
    assert re.search(f"--trace .*({message})", ran.err)
