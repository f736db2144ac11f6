"""What is there and cannot be read is an error: never taken for absent, never waited for."""

import os
import shutil

import pytest
from tiny_model import write_tiny_model

import minifer
from minifer import FetchError, MiniferError
from minifer.fetch import FILES, _sound, cache_root

NAMES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
]
needs_posix = pytest.mark.skipif(os.name != "posix", reason="links and pipes as POSIX has them")


def dangling(path):
    path.symlink_to("nowhere")


def loop(path):
    path.symlink_to(path.name)


def folder(path):
    path.mkdir()


def pipe(path):
    os.mkfifo(path)


@needs_posix
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [dangling, loop, folder, pipe])
def test_a_file_that_is_there_but_no_file_is_named(tmp_path, name, make):
    path = write_tiny_model(tmp_path / "model") / name
    path.unlink(missing_ok=True)
    make(path)
    with pytest.raises(MiniferError, match=name) as caught:
        minifer.load(tmp_path / "model")
    assert "pass that file's path" not in str(caught.value)


def test_a_home_of_nobody_is_refused_in_words(monkeypatch):
    monkeypatch.setenv("MINIFER_CACHE", "~no_such_user_here/x")
    with pytest.raises(FetchError, match="MINIFER_CACHE is '~no_such_user_here/x'"):
        cache_root()


@pytest.mark.parametrize("name", FILES)
def test_a_fetched_folder_is_sound_only_while_all_of_it_can_be_read(tmp_path, name):
    model = write_tiny_model(tmp_path / "model")
    assert _sound(model)
    content = (model / name).read_bytes()
    (model / name).write_bytes(content[: len(content) // 2])
    assert not _sound(model)
    (model / name).unlink()
    assert not _sound(model)
    (model / name).write_bytes(content)
    assert _sound(model)


@pytest.mark.default_model
def test_a_damaged_default_model_says_how_to_mend_it(tmp_path, monkeypatch):
    good = cache_root() / "models"
    monkeypatch.setenv("MINIFER_CACHE", str(tmp_path))
    name = "SmolLM2-135M-Instruct-float32"
    (tmp_path / "models" / name).mkdir(parents=True)
    for file in FILES[1:]:
        shutil.copy(good / name / file, tmp_path / "models" / name / file)
    with open(good / name / FILES[0], "rb") as weights:
        (tmp_path / "models" / name / FILES[0]).write_bytes(weights.read(1000))
    with pytest.raises(MiniferError, match=r"truncated.*minifer fetch --force` writes the default"):
        minifer.load("default")
