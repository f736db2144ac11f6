"""minifer diff: what it prints, its exit codes, and what it refuses."""

import importlib.metadata
import json

import numpy as np
import pytest
from cli_runs import cli, run
from tiny_model import (
    CONFIG,
    tiny_tensors,
    tokenizer_json,
    write_json,
    write_tensors,
    write_tiny_model,
)

from minifer.cli import diff
from minifer.model import Model

IDS = "5,100,299,7,9,31,200"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("diff") / "tiny")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """The same model with one weight of one key changed, and its folder a long name."""
    folder = write_tiny_model(tmp_path_factory.mktemp("diff") / ("a long name " * 9).strip())
    tensors = tiny_tensors()
    tensors["model.layers.1.self_attn.k_proj.weight"][3, 5] += 0.5
    write_tensors(folder / "model.safetensors", tensors)
    return folder


@pytest.fixture
def compared(capsys, folder):
    return lambda *args: cli(capsys, "diff", "-m", folder, *args)


def row_of(out, place):
    return next(line for line in out.splitlines() if line.startswith(f"{place} "))


# ---- what it prints ----------------------------------------------------------------------------


def test_a_control(compared):
    for sides in ((), ("--left", "kernels=numpy", "--right", "kernels=auto,prefill_chunk=600")):
        ran = compared("hello", *sides)
        assert ran.code == 0 and "the same run twice, a control: every bit must be" in ran.out
        assert ran.out.endswith("result    equal, bit for bit\n")
        assert "first bit that differs   none\nfirst beyond tolerance   none\n" in ran.out
        assert "of allowed" not in ran.out, "no table of zeros"
        ran_all = compared("hello", "--all", *sides)
        assert row_of(ran_all.out, 1).split()[-2:] == ["0", "0"]
        assert ran.err.startswith("minifer: comparing needs ") and " MB " in ran.err
        assert "opened    transformer, block, attend, mlp: run op by op" in ran.out


def test_chunks_are_equal_within_the_tolerance(compared):
    ran = compared("hello and more", "--right", "prefill_chunk=2", "--left", "kernels=reference")
    assert ran.code == 0 and ran.out.endswith("result    equal within the tolerance\n")
    assert "the same run" not in ran.out and "first beyond tolerance   none" in ran.out
    assert "reference kernels, cpu, prefill_chunk 9" in " ".join(ran.out.split())
    assert "numpy kernels, cpu, prefill_chunk 2" in " ".join(ran.out.split())
    assert "the same likeliest token at 9 positions of 9" in ran.out


def test_a_fault_is_named(compared, wrong):
    ran = compared("--token-ids", IDS, "--right", f"model={wrong}")
    assert ran.code == 1
    for what in ("first bit that differs ", "first beyond tolerance "):
        assert f"{what}  layers.1.attend.linear key\n" in ran.out
    result = "result    different: layers.1.attend.linear key is beyond the tolerance\n"
    assert ran.out.endswith(result) and "beyond" in row_of(ran.out, 2)
    assert row_of(ran.out, 0).split() == ["0", "nothing", "0", "0"]
    assert row_of(ran.out, "before").split()[1] == "nothing"
    assert row_of(ran.out, "logits").split()[1:3] == ["linear", "head"]


def test_json(compared, wrong):
    ran = compared("--token-ids", IDS, "--right", f"model={wrong}", "--json", "--all")
    found = ran.json
    assert ran.code == 1 and ran.out.count("\n") == 1
    assert (found["equal"], found["equal_bits"], found["control"]) == (False, False, False)
    assert found["first_beyond"]["name"] == "layers.1.attend.linear key"
    assert found["first_beyond"]["tolerances"] > 1 and not found["first_beyond"]["equal"]
    assert found["token_ids"] == [5, 100, 299, 7, 9, 31, 200]
    assert found["right"]["model"] == str(wrong) and found["left"]["prefill_chunk"] == 7
    assert [row["place"] for row in found["layers"]] == "before 0 1 2 after logits".split()
    assert len(found["ops"]) == 68 and found["ops"][-1]["name"] == "linear head"
    control = compared("--token-ids", IDS, "--json")
    assert control.code == 0 and control.json["control"] and "ops" not in control.json
    assert control.json["first_bit"] is None


def test_every_op_and_nothing_wider_than_80_columns(compared, wrong):
    for more in ((), ("--all",)):
        ran = compared("--token-ids", IDS, "--right", f"model={wrong}", *more)
        assert max(map(len, ran.out.splitlines())) <= 80
        assert "right     ..." in ran.out and ran.out.count("name") < 9
    rows = [line for line in ran.out.splitlines() if line.startswith("1 ")]
    assert len(rows) == 21 and rows[2].split()[1:4] == ["attend.linear", "key", rows[2].split()[3]]
    assert float(rows[1].split()[3]) == 0 < float(rows[2].split()[3])


def test_weights_that_are_no_numbers(compared, tmp_path):
    folder, tensors = write_tiny_model(tmp_path), tiny_tensors()
    tensors["model.layers.0.mlp.down_proj.weight"][1, 1] = np.nan
    write_tensors(folder / "model.safetensors", tensors)
    for sides in (("--right", f"model={folder}"), ("-m", folder)):  # a control of them too
        ran = compared("--token-ids", "1,2", *sides)
        assert ran.code == 1 and "first beyond tolerance   layers.0.mlp.linear down\n" in ran.out
        assert "values that are not finite: left " in ran.out
        found = compared("--token-ids", "1,2", *sides, "--json")
        assert found.code == 1
        json.loads(found.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_control_that_is_not_repeatable_is_different(compared, monkeypatch):
    forward, calls = Model.forward, iter(range(10))

    def drifting(model, token_ids, cache):
        if next(calls):
            norm = np.nextafter(model.layers[0].mlp_norm, np.float32(9))
            model.layers[0] = model.layers[0]._replace(mlp_norm=norm)
        return forward(model, token_ids, cache)

    monkeypatch.setattr(Model, "forward", drifting)
    ran = compared("--token-ids", IDS)
    assert ran.code == 1
    assert "result    different: layers.0.rms_norm mlp_norm, which a control must not be" in ran.out


def test_as_a_process_and_interrupted(compared, folder, monkeypatch):
    ran = run("diff", "-m", folder, "-", "--right", "prefill_chunk=1", stdin=b"hello you")
    assert ran.code == 0 and "equal within the tolerance" in ran.out
    monkeypatch.setattr(Model, "forward", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    ran = compared("hello")
    assert (ran.code, ran.out) == (130, "") and ran.err.endswith("minifer: interrupted\n")


# ---- what it refuses ---------------------------------------------------------------------------

USAGE = {
    "needs one prompt": [],
    "--left 'numpy': expected K=V, as in kernels=reference; K: kernels,": ["a", "--left", "numpy"],
    "--right 'kernels=': expected K=V": ["a", "--right", "kernels="],
    "--right '': expected K=V": ["a", "--right", ""],
    "--left: there is no 'kernel'; near it: kernels; allowed: kernels, dtype,": [
        "a", "--left", "dtype=float32,kernel=numpy"
    ],
    "--left: there is no 'x'; allowed: kernels": ["a", "--left", "x=1"],
    "--right kernels='nunpy': near it: numpy; allowed: auto, reference,": [
        "a", "--right", "kernels=nunpy"
    ],
    "--right dtype='int8': allowed: float32,": ["a", "--right", "dtype=int8"],
    "--left reference='torch': allowed: transformers": ["a", "--left", "reference=torch"],
    "--left: kernels is given twice": ["a", "--left", "kernels=numpy", "--left", "kernels=numpy"],
    "--left prefill_chunk='0': expected a whole number from 1": ["a", "--left", "prefill_chunk=0"],
    "--left prefill_chunk='x': expected": ["a", "--left", "prefill_chunk=x"],
    "device 'cuda' is not here": ["a", "--left", "device=cuda"],
    "kernels='cuda': allowed: auto, reference, numpy": ["a", "--left", "kernels=cuda"],
    "--left: prefill_chunk says nothing about reference=transformers": [
        "a", "--left", "reference=transformers,prefill_chunk=3"
    ],
}  # fmt: skip


@pytest.mark.parametrize("message", USAGE)
def test_usage(compared, message):
    ran = compared(*USAGE[message])
    assert ran.code == 2 and ran.out == "" and message in ran.err


@pytest.mark.parametrize(("package", "found"), [("torch", None), ("transformers", "4.55.9")])
def test_a_reference_that_is_not_installed(compared, monkeypatch, package, found):
    def version(name):
        if name == package and found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found if name == package else "9.1"

    monkeypatch.setattr("minifer.observe.reference.version", version)
    ran = compared("a", "--right", "reference=transformers")
    assert ran.code == 2 and f"{package} {found or 'not installed'}" in ran.err
    assert 'pip install -U torch "transformers>=4.56"' in ran.err and ran.out == ""


def test_models_that_cannot_be_compared(compared, tmp_path):
    small = write_tiny_model(tmp_path / "small", num_hidden_layers=2)
    ran = compared("a", "--right", f"model={small}")
    assert ran.code == 2 and "num_hidden_layers is 3 in " in ran.err and " and 2 in " in ran.err
    other, tokenizer = write_tiny_model(tmp_path / "other"), tokenizer_json()
    del tokenizer["model"]["merges"][-10:]
    write_json(other / "tokenizer.json", tokenizer)
    ran = compared("the user of it", "--right", f"model={other}")
    assert ran.code == 1 and "read the prompt differently; pass --token-ids" in ran.err
    assert compared("--token-ids", "1,2", "--right", f"model={other}").code == 0
    ran = compared("a", "--right", "model=nowhere")
    assert ran.code == 1 and "nowhere: no such folder" in ran.err
    ran = compared("a", "--right", "model=with,comma,dtype=float32")
    assert ran.code == 1 and "with,comma: no such folder" in ran.err


def test_a_prompt_too_long(compared, monkeypatch):
    ids = ",".join(["7"] * (CONFIG["max_position_embeddings"] + 1))
    ran = compared("--token-ids", ids)
    assert ran.code == 1 and "the model's context holds 128; shorten it" in ran.err
    monkeypatch.setattr(diff, "LIMIT", 10_000)
    ran = compared("--token-ids", IDS)
    assert ran.code == 1 and ran.out == ""
    assert "comparing 7 tokens needs 0.0 GB" in ran.err and "shorten the prompt" in ran.err
