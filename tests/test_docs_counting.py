"""docs/counting.md: its formulas are those of the code, its figures are computed anew."""

import re
from pathlib import Path

import numpy as np
import pytest

import minifer.model  # noqa: F401  (registers the ops)
from minifer.config import ModelConfig, RopeConfig
from minifer.observe.passes import pass_costs, total
from minifer.op import REGISTRY

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "counting.md").read_text(encoding="utf-8")
LETTERS = {"T": 5, "D": 12, "O": 7, "N": 3, "E": 8, "K": 2, "F": 11, "H": 6, "S": 9}

SMOLLM2 = ModelConfig(
    "llama", 49152, 576, 1536, 30, 9, 3, 64, 8192, 1e-5, RopeConfig(), tie_word_embeddings=True
)


def value(formula):
    """A formula as the table writes it, 4(TD + DO), with the letters' values put in."""
    spaced = re.sub(r"(?<=[\dA-Z)])(?=[A-Z(])", "*", formula)
    assert re.fullmatch(r"[\dA-Z+*/() ]+", spaced), formula
    return eval(spaced, {}, LETTERS)


def arrays():
    T, D, O, N, E, K, F = (LETTERS[x] for x in "TDONEKF")  # noqa: E741
    make = lambda *shape: np.zeros(shape, np.float32)  # noqa: E731
    angles = make(T, E // 2)
    return {
        "embedding": (np.zeros(T, np.int64), make(20, D)),
        "rotation": (np.zeros(T, np.int64), make(E // 2)),
        "rms_norm": (make(T, D), make(D), 1e-5),
        "linear": (make(T, D), make(O, D)),
        "rope": (make(T, N, E), angles, angles),
        "store": (make(K, T, E), make(T, K, E)),
        "gate": (make(T, F), make(T, F)),
        "residual": (make(T, D), make(T, D)),
    }


ROWS = re.findall(r"^\| `(\w+)`[^|]*\| ([^|]+) \| ([^|]+) \|$", TEXT, re.MULTILINE)


def test_the_table_has_every_op_that_computes_or_moves():
    named = {name for name, _, _ in ROWS}
    assert named == set(arrays()) | {"attention"}
    assert named == {n for n, spec in REGISTRY.items() if not spec.group} - {"select", "join"}


@pytest.mark.parametrize(("name", "flops", "executed"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_its_cost_function(name, flops, executed):
    if name == "attention":
        T, S, H, K, E = (LETTERS[x] for x in "TSHKE")
        query, key = np.zeros((T, H, E), np.float32), np.zeros((K, S, E), np.float32)
        places = np.arange(S)
        cost = REGISTRY[name].cost(query, key, key, places[-T:], places)
        per_pair, rows = flops.split(" per visible pair, ")
        visible = sum(S - T + i + 1 for i in range(T))
        assert cost.flops == value(per_pair) * visible + value(rows)
        assert cost.executed_flops == value(per_pair) * T * S + value(rows)
        assert cost.executed_bytes == value(executed.replace("16..32 THE", "32THE"))
        return
    cost = REGISTRY[name].cost(*arrays()[name])
    assert cost.flops == value(flops)
    # In the row of the cache, K heads store one of key and value; both columns in bytes.
    assert cost.executed_bytes == value(executed)


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        ((512, 0), "float32", "a prefill of 512 tokens executes 3.6 times"),
        ((2048, 0), "float32", "one of 2,048 tokens 10.5 times"),
        ((1, 512), "float32", "a decode step 1.02 times"),
        ((1, 512), "bfloat16", "a decode step executes 4.7 times"),
    ],
)
def test_a_ratio_of_the_text_is_that_of_the_formulas(shape, dtype, said):
    assert said in " ".join(TEXT.split())
    cost = total(pass_costs(SMOLLM2, [shape], dtype))
    ratio = re.search(r"([\d.]+) times$", said)[1]
    digits = len(ratio.split(".")[1])
    assert f"{cost.executed_bytes / cost.required_bytes:.{digits}f}" == ratio


@pytest.mark.default_model
def test_its_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "counting.md", "exec"), names)
    assert (tmp_path / "trace.json").stat().st_size > 1000
    assert "gate ['executed_flops', 'executed_bytes'] 4608" in capsys.readouterr().out


@pytest.mark.default_model
def test_each_flop_per_byte_is_the_one_it_says():
    import minifer
    from minifer.observe.cost_card import cost_card

    shown = dict(re.findall(r"^\| (.*?) \|.*\| (\d+\.\d\d) \|$", TEXT, re.MULTILINE))
    model = minifer.load("default", offline=True)
    with minifer.record() as recording:
        (step,) = minifer.generate(model, list(range(100, 137)), max_tokens=1)
    whole = total(pass_costs(model.config, [(37, 0)]))
    card = cost_card(model.config, prompt_tokens=37)
    found = {
        "`--explain`, `receipt.intensity`": step.receipt.intensity,
        '`inspect`, "FLOP/B, products"': card.prefill.intensity,
        "a slice of `--trace`, `flops_per_byte`": whole.flops / whole.required_bytes,
        "`walk`": whole.executed_flops / whole.executed_bytes,
    }
    assert {name: f"{value:.2f}" for name, value in found.items()} == shown
    assert recording.receipt().flops == whole.flops
