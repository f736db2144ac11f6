"""checkpoint.py: folders, shards and the index that names them."""

import json
import os

import numpy as np
import pytest
from tiny_model import tiny_tensors, write_tensors

from minifer.checkpoint import open_checkpoint
from minifer.errors import CheckpointError

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def sharded(tmp_path):
    """A folder of two shards, tensors a and b in the first, c in the second."""
    tensors = {name: np.full((2, 3), value, np.float32) for value, name in enumerate("abc")}
    write_tensors(tmp_path / ONE, {name: tensors[name] for name in "ab"})
    write_tensors(tmp_path / TWO, {"c": tensors["c"]})
    write_index(tmp_path, {"a": ONE, "b": ONE, "c": TWO})
    return tmp_path


def write_index(folder, weight_map, **more):
    text = json.dumps({"metadata": {"total_size": 72}, "weight_map": weight_map, **more})
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def test_shards_are_one_checkpoint(sharded):
    found = open_checkpoint(sharded)
    assert list(found) == ["a", "b", "c"]
    assert [float(found[name].words[1, 2]) for name in "abc"] == [0, 1, 2]
    assert found.files["a"] is found.files["b"] and found.files["a"] is not found.files["c"]


def test_one_shard_can_be_opened_alone(sharded):
    assert list(open_checkpoint(sharded / TWO)) == ["c"]


def test_a_single_file_comes_before_an_index(sharded):
    write_tensors(sharded / "model.safetensors", {"only": np.zeros(3, np.float32)})
    assert list(open_checkpoint(sharded)) == ["only"]


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "sub/model.safetensors",
        "sub\\model.safetensors",
        "/etc/model.safetensors",
        "C:model.safetensors",
        "//host/share.safetensors",
        "..",
        "",
        ".safetensors",
        "model.bin",
        "model.safetensors\n",
        "model.safetensors\0",
        "model.safetensors ",
        None,
        7,
        ["model.safetensors"],
    ],
)
def test_only_plain_names_beside_the_index(sharded, shard):
    write_tensors(sharded.parent / "model.safetensors", {"a": np.zeros(1, np.float32)})
    write_index(sharded, {"a": shard})
    with pytest.raises(CheckpointError, match=r"index.json: tensor a is said to be in .*plain nam"):
        open_checkpoint(sharded)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "found a JSON list, expected an object"),
        ("{}", "expected an object weight_map"),
        ('{"weight_map": {}}', "expected an object weight_map"),
        ('{"weight_map": null}', "expected an object weight_map"),
        ('{"weight_map": ["a"]}', "expected an object weight_map"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "'a' stands there twice"),
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"weight_map": ' + "[" * 100_000, "not valid JSON"),
    ],
)
def test_a_malformed_index(tmp_path, text, message):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(tmp_path)
    assert str(path) in str(caught.value)


def test_an_index_that_is_not_text(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(CheckpointError, match=r"not UTF-8"):
        open_checkpoint(tmp_path)


def test_a_missing_shard_is_named(sharded):
    (sharded / TWO).unlink()
    with pytest.raises(CheckpointError, match=f"the shard {TWO} is missing from"):
        open_checkpoint(sharded)


def test_a_shard_that_is_a_folder_is_missing(sharded):
    (sharded / TWO).unlink()
    (sharded / TWO).mkdir()
    with pytest.raises(CheckpointError, match=f"the shard {TWO} is missing from"):
        open_checkpoint(sharded)


def test_a_missing_tensor_is_named_with_its_shard(sharded):
    write_index(sharded, {"a": ONE, "d": TWO})
    with pytest.raises(CheckpointError, match=f"{TWO}: tensor d is missing from this shard"):
        open_checkpoint(sharded)


def test_a_damaged_shard_is_named(sharded):
    (sharded / TWO).write_bytes((sharded / TWO).read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{TWO}: the header describes 24 bytes"):
        open_checkpoint(sharded)


def test_tensors_the_index_does_not_name_are_not_there(sharded):
    write_index(sharded, {"a": ONE})
    assert list(open_checkpoint(sharded)) == ["a"]


def test_a_folder_without_weights_says_what_it_holds(tmp_path):
    with pytest.raises(CheckpointError, match=r"no weights here, expected model.safetensors or"):
        open_checkpoint(tmp_path)
    write_tensors(tmp_path / "other.safetensors", {"a": np.zeros(1, np.float32)})
    with pytest.raises(CheckpointError, match=r"it holds other.safetensors: pass that file's path"):
        open_checkpoint(tmp_path)


def test_no_such_folder(tmp_path):
    with pytest.raises(CheckpointError, match=r"no weights here"):
        open_checkpoint(tmp_path / "nowhere")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
@pytest.mark.parametrize("with_index", [False, True])
def test_links_into_the_blobs_of_a_hub_cache(tmp_path, with_index):
    tensors = dict(list(tiny_tensors().items())[:4])
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abcd"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    write_tensors(blobs / "5f3c", tensors)
    name = ONE if with_index else "model.safetensors"
    (snapshot / name).symlink_to("../../blobs/5f3c")
    if with_index:
        write_index(snapshot, dict.fromkeys(tensors, ONE))
    found = open_checkpoint(snapshot)
    assert all((found[name].words == values).all() for name, values in tensors.items())
    assert list(open_checkpoint(snapshot / name)) == list(tensors)


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_dangling_link_is_no_weight_file(tmp_path):
    (tmp_path / "model.safetensors").symlink_to("gone")
    with pytest.raises(CheckpointError, match=r"model.safetensors: cannot be read"):
        open_checkpoint(tmp_path)
