"""load.py: a folder, a file or a name -> a Model, and every way it can be wrong."""

import json
import mmap
import warnings

import numpy as np
import pytest
from tiny_model import CONFIG, tiny_tensors, write_json, write_tensors, write_tiny_model

import minifer
from minifer.errors import (
    CheckpointError,
    ConfigError,
    ContextError,
    DeviceError,
    FetchError,
    MiniferError,
    MiniferWarning,
    TemplateError,
    TokenizerError,
)

IDS = [5, 100, 299, 0, 7]


@pytest.fixture
def folder(tmp_path):
    return write_tiny_model(tmp_path / "model")


@pytest.fixture
def changed(folder):
    """Replaces tensors of the folder and says nothing else has changed."""

    def change(dtype="F32", **changes):
        tensors = tiny_tensors()
        for name, values in changes.items():
            name = name.replace("__", ".")
            if values is None:
                del tensors[name]
            else:
                tensors[name] = np.asarray(values, np.float32)
        write_tensors(folder / "model.safetensors", tensors, dtype)
        return folder

    return change


def logits(model):
    return np.asarray(model.forward(IDS))


# ---- what loads --------------------------------------------------------------------------------


def test_a_folder_a_file_a_string_and_twice(folder):
    found = [minifer.load(folder), minifer.load(str(folder)), minifer.load(folder)]
    found.append(minifer.load(folder / "model.safetensors"))
    for model in found:
        assert model.config == found[0].config and model.tokenizer is not None
        assert (logits(model) == logits(found[0])).all()
        assert len(model.encode_chat([{"role": "user", "content": "hi"}])) > 5
    assert found[0].name == str(folder)


def test_weights_stay_in_the_mapped_file(folder):
    model = minifer.load(folder)
    base = model.embedding
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)
    assert not model.embedding.flags.writeable


def test_no_mmap_gives_the_same(folder):
    read = minifer.load(folder, mmap=False)
    assert (logits(read) == logits(minifer.load(folder))).all()
    (folder / "model.safetensors").write_bytes(b"")  # nothing depends on the file any more
    assert logits(read).shape == (len(IDS), 300)


@pytest.mark.parametrize(("stored", "name"), [("F32", "float32"), ("BF16", "bfloat16")])
def test_dtypes_as_stored(tmp_path, stored, name):
    folder = write_tiny_model(tmp_path, dtype=stored)
    assert minifer.load(folder).dtype == minifer.load(folder, dtype=name).dtype == name
    for other in {"float32", "bfloat16", "float16", "int8", ""} - {name}:
        message = f"weights are stored as {name}, asked for is '{other}'; leave dtype out"
        with pytest.raises(ConfigError, match=message):
            minifer.load(folder, dtype=other)


def test_a_model_without_tokenizer_and_template(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    model = minifer.load(folder)
    assert model.tokenizer is None and model.template is None
    steps = list(minifer.generate(model, IDS, max_tokens=3, ignore_eos=True))
    assert [step.text for step in steps] == ["", "", ""] and steps[-1].finish_reason == "length"
    with pytest.raises(TokenizerError, match="a text prompt needs a tokenizer"):
        minifer.generate(model, "hello")
    with pytest.raises(TokenizerError, match="stop strings need a tokenizer"):
        minifer.generate(model, IDS, stop="x")
    with pytest.raises(TemplateError, match="has no chat template; pass the prompt as plain text"):
        minifer.generate(model, [{"role": "user", "content": "hi"}])


def test_a_template_without_a_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    model = minifer.load(folder)
    assert "hi" in model.render([{"role": "user", "content": "hi"}])
    with pytest.raises(MiniferError, match=r"has no tokenizer.json"):
        model.encode_chat([{"role": "user", "content": "hi"}])


def test_every_eos_of_both_files_stops(folder):
    write_json(folder / "generation_config.json", {"eos_token_id": [0, 7]})
    assert minifer.load(folder).config.eos_token_ids == {0, 2, 7}
    for absent in ({}, {"eos_token_id": None}):
        write_json(folder / "generation_config.json", absent)
        assert minifer.load(folder).config.eos_token_ids == {2}
    write_json(folder / "generation_config.json", {"eos_token_id": 300})
    with pytest.raises(ConfigError, match=r"generation_config.json: eos_token_id is 300"):
        minifer.load(folder)


# ---- tied or not -------------------------------------------------------------------------------


def test_a_tied_head_is_the_embedding(tmp_path):
    model = minifer.load(write_tiny_model(tmp_path, tie_word_embeddings=True))
    assert model.head is model.embedding


def test_a_tied_model_may_carry_its_head(tmp_path):
    folder = write_tiny_model(tmp_path, tie_word_embeddings=True)
    tied = logits(minifer.load(folder))
    tensors = tiny_tensors(CONFIG | {"tie_word_embeddings": True})
    embedding = tensors["model.embed_tokens.weight"]
    write_tensors(folder / "model.safetensors", tensors | {"lm_head.weight": embedding})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = minifer.load(folder)
    assert model.head is model.embedding and (logits(model) == tied).all()
    write_tensors(folder / "model.safetensors", tensors | {"lm_head.weight": embedding * 2})
    with pytest.warns(MiniferWarning, match=r"lm_head.weight differs from the embedding: it is"):
        model = minifer.load(folder)
    assert np.allclose(logits(model), 2 * tied, rtol=1e-5)


def test_an_untied_model_needs_its_head(changed):
    with pytest.raises(CheckpointError, match=r"tensor lm_head.weight is missing; config.json ask"):
        minifer.load(changed(lm_head__weight=None))


# ---- tensors -----------------------------------------------------------------------------------


def test_a_missing_tensor_is_named_with_its_shape(changed):
    folder = changed(model__layers__1__self_attn__k_proj__weight=None)
    message = r"tensor model.layers.1.self_attn.k_proj.weight is missing; .* shape \(16, 32\)"
    with pytest.raises(CheckpointError, match=message):
        minifer.load(folder)


@pytest.mark.parametrize("shape", [(32, 32), (16, 31), (512,), (16, 32, 1), ()])
def test_a_mismatched_tensor_is_named_with_both_shapes(changed, shape):
    folder = changed(model__layers__1__self_attn__k_proj__weight=np.zeros(shape))
    with pytest.raises(CheckpointError) as caught:
        minifer.load(folder)
    assert f"k_proj.weight has shape {shape}, config.json asks for (16, 32)" in str(caught.value)


def test_more_layers_than_tensors_and_the_reverse(tmp_path):
    folder = write_tiny_model(tmp_path)
    write_json(folder / "config.json", CONFIG | {"num_hidden_layers": 10_000})
    with pytest.raises(CheckpointError, match=r"tensor model.layers.3.input_layernorm.weight is m"):
        minifer.load(folder)
    write_json(folder / "config.json", CONFIG | {"num_hidden_layers": 2})
    with pytest.warns(MiniferWarning, match=r"not used by this model: .*and 6 more$") as caught:
        minifer.load(folder)
    assert len(caught) == 1


def test_unused_tensors_are_named_once_and_known_ones_never(changed):
    folder = changed(extra__weight=[1], model__layers__0__self_attn__rotary_emb__inv_freq=[1])
    with pytest.warns(MiniferWarning, match=r"not used by this model: extra.weight$") as caught:
        minifer.load(folder)
    assert len(caught) == 1


def test_biases_are_used_where_the_configuration_says_so(tmp_path):
    folder = write_tiny_model(tmp_path, attention_bias=True, mlp_bias=True)
    model = minifer.load(folder)
    assert model.layers[2].key_bias.shape == (16,) and model.layers[0].down_bias.shape == (32,)
    write_tensors(folder / "model.safetensors", tiny_tensors())
    with pytest.raises(CheckpointError, match=r"q_proj.bias is missing; .* with shape \(32,\)"):
        minifer.load(folder)


def test_an_unread_dtype_is_refused_by_name(folder):
    content = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    norm = header["model.norm.weight"]
    norm.update(dtype="I32")
    text = json.dumps(header, separators=(",", ":")).encode("utf-8").ljust(length)
    (folder / "model.safetensors").write_bytes(content[:8] + text + content[8 + length :])
    with pytest.raises(CheckpointError, match=r"model.norm.weight is stored as I32, which minifer"):
        minifer.load(folder)


# ---- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["nowhere", "a\0b", "x" * 5000, "default/", "~"],
)
def test_a_name_that_is_no_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "default/":
        (tmp_path / "default").mkdir()
        with pytest.raises(ConfigError, match="no config.json in this folder"):
            minifer.load("./default")
        return
    with pytest.raises(CheckpointError, match=r"no such folder or file. Pass a folder .*\"default"):
        minifer.load(name)


@pytest.mark.parametrize("name", [None, 3, "", b"model", ["model"]])
def test_no_name_at_all(name):
    with pytest.raises(CheckpointError, match=r"the model is .*, expected a path or a name"):
        minifer.load(name)


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(
        CheckpointError, match=r"expected a model folder or a .safetensors .*--from"
    ):
        minifer.load(path)


def test_an_empty_folder_and_one_without_weights(tmp_path, folder):
    with pytest.raises(ConfigError, match="no config.json in this folder"):
        minifer.load(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no weights here, expected model.safetensors or"):
        minifer.load(folder)


def test_offline_never_fetches(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIFER_CACHE", str(tmp_path / "empty"))
    with pytest.raises(FetchError, match=r"the default model is not in .*minifer fetch"):
        minifer.load(offline=True)
    assert not (tmp_path / "empty").exists()
    with pytest.raises(ConfigError, match=r"the default model is there as float32 and bfloat16"):
        minifer.load("default", dtype="float16", offline=True)


def test_devices_and_kernels_that_are_not_here(folder):
    with pytest.raises(DeviceError, match=r"device 'tpu' is not here: .*allowed: auto, cpu"):
        minifer.load(folder, device="tpu")
    with pytest.raises(DeviceError, match=r"kernels .*'magic'.*reference"):
        minifer.load(folder, kernels="magic")


def test_a_malformed_tokenizer_or_template_file_is_named(folder):
    (folder / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(TemplateError, match=r"tokenizer_config.json: not valid JSON"):
        minifer.load(folder)
    (folder / "tokenizer.json").write_text("[]", encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer.json: found a JSON list"):
        minifer.load(folder)


def test_a_prompt_of_wrong_ids_is_refused_before_anything_runs(folder):
    model = minifer.load(folder)
    for ids in ([300], [-1], [1.0], [True], ["1"], []):
        with pytest.raises(ContextError):
            minifer.generate(model, ids)
