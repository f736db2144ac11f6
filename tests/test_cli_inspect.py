"""inspect: the card on a terminal, the object on stdout, and what it refuses."""

import re
import subprocess
import sys

import pytest
from cli_runs import cli, environment, start
from tiny_model import CONFIG, write_json

from minifer.fetch import FILES, NAME
from minifer.observe.cost_card import cost_card
from minifer.observe.devices import DEVICES, find_device
from minifer.observe.prediction import ceiling, cost_per_million

LLAMA_2_70B = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "torch_dtype": "float16",
}  # fmt: skip
SMOLLM2 = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    """Any of the configurations above as a file, with keys changed."""

    def write(data=CONFIG, **more):
        write_json(tmp_path / "config.json", data | more)
        return tmp_path / "config.json"

    return write


@pytest.fixture
def inspect(capsys, config):
    """The command on the tiny configuration, unless another comes first."""

    def run(*args, of=None):
        return cli(capsys, "inspect", "--config", of or config(), *args)

    return run


# ---- figures -----------------------------------------------------------------------------------


def test_the_object_holds_the_defined_keys(inspect):
    L, D, F, V, HE, KE = 3, 32, 48, CONFIG["vocab_size"], 32, 16
    layer = 2 * D * HE + 2 * D * KE + 3 * D * F
    P_mm, norms = L * layer + V * D, 7 * D
    found = inspect("--json", "--prompt-tokens", 20, "--context", 9, "--kv-dtype", "float16")
    assert (found.code, found.err) == (0, "") and found.out.count("\n") == 1
    expected = {
        "dtype": "float32", "kv_dtype": "float16", "prompt_tokens": 20, "context": 9, "batch": 1,
        "parameters": P_mm + norms + V * D,
        "matmul_parameters": P_mm,
        "weight_bytes": 4 * (P_mm + norms + V * D),
        "kv_bytes_per_token": 2 * 2 * L * KE,
        "kv_bytes": {"prompt_tokens": 20 * 4 * L * KE, "context": 9 * 4 * L * KE},
        "attention_flops_per_context_token": 4 * HE * L,
        "prefill_flops": 2 * 20 * L * layer + 2 * V * D + 4 * HE * L * 210,
        "prefill_bytes": 4 * (P_mm + norms + 20 * D) + 4 * L * KE * 20,
        "decode_flops": 2 * P_mm + 4 * HE * L * 10,
        "decode_bytes": 4 * (P_mm + norms + D) + 4 * L * KE * 10,
        "dimensions": {"L": L, "D": D, "F": F, "H": 4, "K": 2, "G": 2, "E": 8, "V": V},
        "price_per_hour": None,
    }  # fmt: skip
    assert {key: found.json[key] for key in expected} == expected
    assert found.json["decode_intensity"] == expected["decode_flops"] / expected["decode_bytes"]
    assert found.json["elementwise_flops"] > found.json["decode_elementwise_flops"] > 0


def test_a_batch_shares_the_weights(inspect):
    one, four = inspect("--json").json, inspect("--json", "--batch", 4).json
    assert four["decode_flops"] == 4 * one["decode_flops"]
    assert four["decode"]["kv_bytes_read"] == 4 * one["decode"]["kv_bytes_read"]
    rows = 3 * 4 * CONFIG["hidden_size"]  # three more rows of the embedding
    assert four["decode"]["weight_bytes"] == one["decode"]["weight_bytes"] + rows
    assert four["prefill_flops"] == one["prefill_flops"]


@pytest.mark.parametrize(
    ("keys", "args", "dtype", "why"),
    [
        ({}, [], "float32", "config.json names none"),
        ({"torch_dtype": None}, [], "float32", "config.json names none"),
        ({"torch_dtype": "float16"}, [], "float16", "torch_dtype of config.json"),
        ({"dtype": "bfloat16"}, [], "bfloat16", "dtype of config.json"),
        ({"torch_dtype": "float16"}, ["--dtype", "bfloat16"], "bfloat16", "--dtype"),
        ({"torch_dtype": "float64"}, [], "float32", "torch_dtype of config.json is 'float64'"),
        ({"dtype": ["float16"]}, [], "float32", "dtype of config.json is ['float16']"),
    ],
)
def test_the_dtype_and_why_this_one(inspect, config, keys, args, dtype, why):
    of = config(**keys)
    found, shown = inspect("--json", *args, of=of).json, inspect(*args, of=of).out
    assert found["dtype"] == found["kv_dtype"] == dtype and found["dtype_source"].startswith(why)
    assert f"  weights {dtype} ({why}" in shown
    assert f"  KV cache {dtype} (as the weights)\n" in shown
    assert "  KV cache float16 (--kv-dtype)\n" in inspect("--kv-dtype", "float16", of=of).out


# ---- the card ----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [CONFIG, LLAMA_2_70B, SMOLLM2])
@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--batch", 256, "--price-per-hour", 0.5, "--dtype", "bfloat16", "--device-spec", "T4"],
        ["--batch", 2**31 - 1, "--price-per-hour", 999999, "--context", 0, "--prompt-tokens", 1],
    ],
)
def test_the_card_fits_80_columns(inspect, config, data, args):
    ran = inspect(*args, of=config(data))
    path, *lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "") and path.endswith("config.json")
    assert [line for line in lines if len(line) > 80] == []
    heads = ["parameters", "one pass", "one layer", "ceilings", "roofs"]
    assert [head for line in lines for head in heads if line.startswith(head)] == heads


def test_the_greatest_figures_fit_80_columns(inspect, config):
    most = 2**31 - 1
    sizes = "vocab_size hidden_size intermediate_size num_attention_heads num_key_value_heads"
    huge = dict.fromkeys(sizes.split(), most) | {"head_dim": most - 1, "num_hidden_layers": 10_000}
    small = {**dict.fromkeys(sizes.split(), 1), "head_dim": 2, "num_hidden_layers": 1}
    for sizes in (huge, small):
        more = {"max_position_embeddings": most, "torch_dtype": "界" * 30}
        more |= {"bos_token_id": 0, "eos_token_id": 0}
        for args in (["--prompt-tokens", most, "--context", most - 1, "--batch", most], []):
            ran = inspect(*args, "--price-per-hour", 1e-9, of=config(**sizes, **more))
            lines = ran.out.splitlines()[1:]
            assert ran.code == 0 and all(len(line) <= 80 and line.isascii() for line in lines)


def test_counts_are_exact_and_predictions_have_three_digits(inspect, config):
    ran = inspect("--prompt-tokens", 2048, of=config(LLAMA_2_70B))
    card = inspect("--json", "--prompt-tokens", 2048, of=config(LLAMA_2_70B)).json
    for key in ("parameters", "matmul_parameters", "weight_bytes", "kv_bytes_per_token",
                "prefill_flops", "elementwise_flops", "decode_flops", "decode_bytes"):  # fmt: skip
        assert f" {card[key]:,}" in ran.out, key
    assert "all                         68,976,648,192 100.00 %" in ran.out
    # 285,876,231,864,320 FLOPs / 989.4e12, and 138,100,441,088 bytes / 3.35e12.
    (row,) = re.findall(r"^  H100-SXM !.*compute.*$", ran.out, re.MULTILINE)
    assert row.split() == "H100-SXM ! 289 ms compute 7090 41.2 ms memory 24.3".split()
    flat = " ".join(ran.out.split())
    assert "No machine reaches them" in flat and "need its measured roofs" in flat
    first = card["devices"][0]
    assert (first["ttft_seconds"], first["itl_seconds"]) == (0.289, 0.0412)
    assert (first["prefill_roof"], first["decode_roof"], first["fits"]) == (
        "compute", "memory", False
    )  # fmt: skip
    assert "No machine reaches them" in card["ceilings"]


def test_the_matrices_of_a_layer_stand_in_rows(inspect):
    out = inspect("--prompt-tokens", 100, "--context", 5).out
    names = ["query", "key", "value", "attention", "output", "gate", "up", "down", "head"]
    rows = {line.split()[0]: line.split() for line in out.splitlines() if "  " in line[:2]}
    shapes = {"query": "32 -> 32", "key": "32 -> 16", "down": "48 -> 32", "head": "32 -> 300"}
    assert set(names) <= set(rows)
    for name, shape in shapes.items():
        assert rows[name][1:4] == shape.split()
    flops, moved = 2 * 32 * 32, 4 * (32 * 32 + 64)
    assert rows["query"][7:] == ["0.0020", "0.0044", f"{flops / moved:.2f}"]
    assert "hidden" in out and "visible pairs" in out


# ---- devices and prices ------------------------------------------------------------------------


def test_devices_are_those_named_or_a_short_list(inspect):
    found = [device["device"] for device in inspect("--json").json["devices"]]
    assert found == ["H100-SXM", "A100-80G", "RTX-4090", "Xeon-8480+"]
    assert "--device-spec list shows" in inspect().out
    ran = inspect("--device-spec", "t4", "--device-spec", "NVIDIA A100", "--device-spec", "T4")
    assert re.findall(r"^  (\S+) .*\d GB ", ran.out, re.MULTILINE) == ["T4", "A100-80G"]
    assert "--device-spec list shows" not in ran.out
    flat = " ".join(ran.out.split())
    assert all(DEVICES[name].source in flat for name in ("T4", "A100-80G"))


def test_a_device_without_the_dtype_says_so_in_its_row(inspect):
    args = "--dtype", "bfloat16", "--device-spec", "T4", "--price-per-hour", 1
    ran, found = inspect(*args), inspect(*args, "--json").json["devices"][0]
    assert ran.code == 0 and re.search(r"^  T4 +no peak for bfloat16", ran.out, re.MULTILINE)
    assert re.search(r"^  T4 +- +-$", ran.out, re.MULTILINE)  # and no price
    assert found["ttft_seconds"] is None and found["cost_per_million_input_tokens"] is None
    assert found["sequences_that_fit"] > 0 and found["source"] == DEVICES["T4"].source


def test_the_list_of_devices_needs_no_model(capsys):
    ran = cli(capsys, "inspect", "-m", "nowhere", "--device-spec", "list")
    lines = ran.out.splitlines()
    assert ran.code == 0 and all(len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines[1:] if line[0] != " "] == list(DEVICES)
    flat = " ".join(ran.out.split())
    assert all(device.source in flat for device in DEVICES.values())
    found = cli(capsys, "inspect", "--device-spec", "list", "--json").json["devices"]
    assert found == [device._asdict() for device in DEVICES.values()]


def test_a_price_is_per_million_tokens_at_the_ceilings(inspect):
    args = "--batch", 8, "--device-spec", "L4", "--price-per-hour", 0.8
    ran, found = inspect(*args), inspect(*args, "--json").json
    read = found["devices"][0]
    from minifer.families import llama

    best = ceiling(cost_card(llama.read_config(CONFIG, ""), batch=8), find_device("L4"))
    for phase, kind in (("prefill", "input"), ("decode", "output")):
        rate = getattr(best, f"{phase}_tokens_per_second")
        cost = 0.8 / 3600 / rate * 1e6
        assert cost == pytest.approx(cost_per_million(0.8, rate))
        assert read[f"cost_per_million_{kind}_tokens"] == float(f"{cost:.3g}") > 0
    assert found["price_per_hour"] == 0.8 and "price, 0.8 per hour" in ran.out
    assert "\nprice" in ran.out and "\nprice" not in inspect().out


# ---- where the configuration comes from --------------------------------------------------------


def test_a_folder_needs_nothing_but_its_config(capsys, config):
    folder = config().parent
    (folder / "model.safetensors").write_bytes(b"not weights at all")
    ran = cli(capsys, "inspect", "-m", folder, "--json")
    assert ran.code == 0 and ran.json == cli(capsys, "inspect", "--config", config(), "--json").json
    assert ran.json["model"] == str(config())
    weights = cli(capsys, "inspect", "-m", folder / "model.safetensors", "--json")
    assert weights.json == ran.json


@pytest.mark.parametrize("args", [[], ["-m", "default"], ["--dtype", "float16"]])
def test_the_default_model_is_read_where_it_is_and_never_fetched(
    capsys, tmp_path, monkeypatch, args
):
    monkeypatch.setenv("MINIFER_CACHE", str(tmp_path / "cache"))
    ran = cli(capsys, "inspect", *args)
    assert (ran.code, ran.out) == (1, "") and "`python -m minifer fetch`" in ran.err
    assert not (tmp_path / "cache").exists()
    folder = tmp_path / "cache" / "models" / f"{NAME}-float32"
    folder.mkdir(parents=True)
    for name in FILES:  # empty, but for the one that is read
        write_json(folder / name, SMOLLM2) if name == "config.json" else (folder / name).touch()
    found = cli(capsys, "inspect", *args, "--json").json
    assert found["parameters"] == 134_515_008 and found["model"] == str(folder / "config.json")


@pytest.mark.parametrize("args", [[], ["--json"], ["--device-spec", "list"]])
def test_neither_numpy_nor_a_weight_is_loaded(config, args):
    heavy = ("numpy", "jinja2", "tokenizers", "regex", "rich", "minifer.checkpoint")
    code = (
        "import sys\nfrom minifer.cli.main import main\n"
        f"code = main({['inspect', '--config', str(config()), *args]!r})\n"
        f"print(*[name for name in {heavy!r} if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment(), timeout=60
    )
    assert ran.returncode == 0 and ran.stdout and ran.stderr.strip() == b""


def test_a_reader_that_leaves_is_no_error(config):
    process = start("inspect", "--config", config(), "--device-spec", "list")
    process.stdout.close()
    assert process.wait(60) == 0 and process.stderr.read() == b""
    process.stderr.close()


def test_help_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli(capsys, "inspect", "--help").out.splitlines()
    assert lines and all(len(line) <= 80 for line in lines)


def test_memory_stands_in_the_card_and_in_the_object(inspect):
    from minifer.families import llama
    from minifer.observe.inference_ledger import inference_ledger
    from minifer.observe.training_ledger import training_ledger

    asked = ("--prompt-tokens", 20)
    found, model = inspect(*asked, "--json").json, llama.read_config(CONFIG, "config.json")
    assert found["inference_memory"] == inference_ledger(model, 20, 20)._asdict()
    for variant in ("2-byte", "fp32-master"):
        step = training_ledger(model, 20, variant=variant)
        assert found["training_memory"][variant] == step._asdict()
    lines = inspect(*asked).out.splitlines()
    line = next(line for line in lines if line.startswith("  all  ") and "%" not in line)
    totals = [found["inference_memory"]["total"]]
    totals += [step["total"] for step in found["training_memory"].values()]
    assert line.split()[1:] == [f"{total:,}" for total in totals]
