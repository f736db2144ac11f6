"""What inspect refuses: options out of range, configurations that are at fault or not there."""

import json

import pytest
from cli_runs import cli
from tiny_model import CONFIG, write_json


@pytest.fixture
def config(tmp_path):
    write_json(tmp_path / "config.json", CONFIG)
    return tmp_path / "config.json"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--prompt-tokens", 129], "a prompt of 129 tokens: this model takes 1 to 128"),
        (["--prompt-tokens", 0], "'0': expected a whole number from 1"),
        (["--context", 128], "needs 129 places: the model's context is 128, so 0 to 127 may be"),
        (["--context", -1], "'-1': expected a whole number from 0"),
        (["--batch", 0], "'0': expected a whole number from 1"),
        (["--batch", 2**31], "--batch 2147483648: at most 2147483647"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
        (["--kv-dtype", "fp8"], "invalid choice: 'fp8'"),
        (["-m", "default"], "not allowed with argument"),
        (["--device-spec", "A100-88G"], "--device-spec: no device is called 'A100-88G'; near it: "),
        (["--device-spec", ""], "--device-spec: no device is called ''"),
        *[
            (["--price-per-hour", value], f"'{value}': expected a number from 1e-9 to below 1e12")
            for value in ("0", "-1", "nan", "inf", "1e12", "cheap", "", "1e-320", "9e-10")
        ],
    ],
)
def test_options_out_of_range_are_usage_errors(capsys, config, args, said):
    for more in ([], ["--json"]):
        ran = cli(capsys, "inspect", "--config", config, *args, *more)
        assert (ran.code, ran.out) == (2, "") and said in ran.err
        assert ran.err.endswith("minifer inspect --help shows what is allowed\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "llama",', "not valid JSON"),
        ("[]", "found a JSON list, expected an object"),
        (json.dumps(CONFIG | {"model_type": "gpt9"}), "model_type is 'gpt9'; this version knows"),
        (json.dumps(CONFIG | {"hidden_size": 0}), "hidden_size is 0, expected a whole number"),
        (json.dumps({"model_type": "llama"}), "the key vocab_size is missing"),
    ],
)
def test_a_config_that_is_at_fault(capsys, tmp_path, text, said):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    for source in (["--config", path], ["-m", tmp_path]):
        ran = cli(capsys, "inspect", *source)
        assert (ran.code, ran.out) == (1, "") and len(ran.err.splitlines()) == 1
        assert ran.err.startswith(f"minifer: error: {path}: ") and said in ran.err


def test_a_config_that_is_not_there(capsys, tmp_path):
    def refused(*args):
        ran = cli(capsys, "inspect", *args)
        assert (ran.code, ran.out) == (1, "") and len(ran.err.splitlines()) == 1
        return ran.err

    missing = tmp_path / "no.json"
    assert f"{missing}: cannot be read (No such file" in refused("--config", missing)
    assert f"{missing}: no such folder or file" in refused("-m", missing)
    assert "--config FILE takes one from elsewhere" in refused("-m", tmp_path)
    assert f"is a folder; --model {tmp_path} reads" in refused("--config", tmp_path)
    write_json(tmp_path / "config.json", CONFIG)
    path = tmp_path / "config.json"
    assert f"is a file; --config {path} reads it" in refused("-m", path)
