"""A run of transformers under our names: the mapping everywhere, the library where it is."""

import numpy as np
import pytest
from cli_runs import cli
from tiny_model import tiny_model, tiny_tensors, write_tensors, write_tiny_model

from minifer.observe.capture import Run, capture
from minifer.observe.differences import compare
from minifer.observe.reference import attach, names_of, run_reference

IDS = [5, 100, 299, 7, 9, 31, 200, 4, 77]
NOT_SHOWN = ["attend.rope query", "attend.rope key", "attend.store key", "attend.store value"]


class FakeModule:
    """As much of a torch module as is asked for: hooks, and a call that runs them."""

    def __init__(self):
        self.hooks = {}

    def register_forward_hook(self, hook):
        self.hooks[id(hook)] = hook
        return Handle(lambda: self.hooks.pop(id(hook)))

    def called(self, given, result):
        for hook in self.hooks.values():
            hook(self, given, result)


class Handle:
    def __init__(self, remove):
        self.remove = remove


class FakeModel:
    def __init__(self, layers=2):
        inside = """input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj
        self_attn.o_proj self_attn post_attention_layernorm mlp.gate_proj mlp.up_proj mlp.act_fn
        mlp.down_proj mlp""".split()
        paths = ["", "model", "model.embed_tokens", "model.rotary_emb"]
        for layer in range(layers):
            paths += [f"model.layers.{layer}.{name}" for name in inside] + [f"model.layers.{layer}"]
        self.modules = {path: FakeModule() for path in [*paths, "model.norm", "lm_head"]}

    def named_modules(self):
        return self.modules.items()


def test_every_name_is_one_of_ours_and_what_is_missing_is_known():
    ours = list(capture(tiny_model(), IDS).parts)
    shown = [name for path in FakeModel(3).modules for side in names_of(path) for name in side]
    shown += ["rotation cos", "rotation sin"]
    assert len(set(shown)) == len(shown) and set(shown) <= set(ours)
    missing = {f"layers.{layer}.{name}" for layer in range(3) for name in NOT_SHOWN}
    assert set(ours) - set(shown) == missing


def test_hooks_name_what_they_see_and_go():
    model, found = FakeModel(), Run()
    handles = attach(model, found.take, np.asarray)

    def fresh(*shape):
        return np.random.default_rng(len(found.parts)).standard_normal((1, 3, *shape))

    into, out = fresh(8), fresh(8)
    model.modules["model.layers.1.self_attn.o_proj"].called((into,), out)
    for name in ("attention", "join"):
        assert (found.array(f"layers.1.attend.{name}") == into[0]).all()
    assert (found.array("layers.1.attend.linear output") == out[0]).all()
    layer = fresh(8)
    model.modules["model.layers.0"].called((into,), (layer, None))
    assert (found.array("layers.0.block") == layer[0]).all()
    cos, sin = fresh(4), fresh(4)
    model.modules["model.rotary_emb"].called((into,), (cos, sin))
    assert (found.array("rotation sin") == sin[0, :, :2]).all()
    model.modules["model.layers.0.mlp.act_fn"].called((into,), out)  # nothing of ours
    count = len(found.parts)
    for handle in handles:
        handle.remove()
    assert not any(module.hooks for module in model.modules.values())
    model.modules["lm_head"].called((into,), out)
    assert len(found.parts) == count == 7


# ---- with torch and transformers ---------------------------------------------------------------


@pytest.fixture
def library():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")


@pytest.mark.parametrize(
    "config", [{}, {"tie_word_embeddings": True}, {"num_key_value_heads": 1, "rope_theta": 500.0}]
)
def test_the_library_is_equal_within_the_tolerance(library, tmp_path, config):
    import minifer

    folder = write_tiny_model(tmp_path, **config)
    ours, theirs = capture(minifer.load(folder), IDS, 4), Run()
    run_reference(theirs.take, folder, IDS)
    found, back = compare(ours, theirs), compare(theirs, ours)
    assert found.equal and back.equal and not found.greedy
    assert len(found.ops) == len(back.ops) == 68 - 12 and found.only_right == []
    assert found.only_left == back.only_right
    assert {name.split(".", 2)[2] for name in found.only_left} == set(NOT_SHOWN)


FAULTS = {
    "model.layers.1.self_attn.k_proj.weight": "layers.1.attend.linear key",
    "model.layers.2.mlp.up_proj.weight": "layers.2.mlp.linear up",
    "model.layers.0.post_attention_layernorm.weight": "layers.0.rms_norm mlp_norm",
    "model.embed_tokens.weight": "embedding",
    "lm_head.weight": "linear head",
}


@pytest.mark.parametrize("tensor", FAULTS)
def test_a_weight_that_is_not_theirs_is_named(library, capsys, tmp_path, tensor):
    mine, tensors = write_tiny_model(tmp_path / "mine"), tiny_tensors()
    tensors[tensor][5 if tensors[tensor].ndim == 1 else (5, 3)] += 0.25
    other = write_tiny_model(tmp_path / "other")
    write_tensors(other / "model.safetensors", tensors)
    sides = ("--left", f"model={other}", "--right", "reference=transformers")
    ran = cli(capsys, "diff", "-m", mine, "--token-ids", "5,100,299,7", *sides, "--json")
    assert ran.code == 1 and ran.json["first_beyond"]["name"] == FAULTS[tensor]


def test_the_command(library, capsys, tmp_path):
    folder = write_tiny_model(tmp_path)
    ran = cli(capsys, "diff", "-m", folder, "hello you", "--left", "reference=transformers")
    assert ran.code == 0 and "result    equal within the tolerance" in ran.out
    assert "not compared, as only right shows it: attend.rope query," in " ".join(ran.out.split())
    assert max(map(len, ran.out.splitlines())) <= 80 and "Loading weights" not in ran.err
    both = ("--left", "reference=transformers", "--right", "reference=transformers")
    control = cli(capsys, "diff", "-m", folder, "hello you", *both)
    assert control.code == 0 and "result    equal, bit for bit" in control.out


def test_a_folder_the_library_cannot_read(library, tmp_path):
    from minifer.errors import MiniferError

    (tmp_path / "config.json").write_text('{"model_type": "no such"}', encoding="utf-8")
    with pytest.raises(MiniferError, match=r"transformers cannot load .*no such"):
        run_reference(Run().take, tmp_path, IDS)


@pytest.mark.default_model
def test_the_default_model(library):
    import minifer
    from minifer.load import locate

    model, theirs = minifer.load("default", offline=True), Run()
    ids = model.tokenizer.encode("The quick brown fox jumps over the lazy dog. 12 * 7 = 84.")
    run_reference(theirs.take, locate("default", offline=True), ids)
    found = compare(capture(model, ids), theirs)
    assert found.equal and not found.greedy and max(op.tolerances for op in found.ops) < 0.55
