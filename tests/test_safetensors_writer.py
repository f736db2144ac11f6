"""The safetensors library is the oracle: it must read what our writer wrote."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from minifer.errors import CheckpointError
from minifer.safetensors_writer import write_safetensors


def entry(name, array, dtype="F32"):
    return name, dtype, array.shape, lambda: array


def read_header(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size].decode("utf-8")), 8 + size, len(data)


def test_library_reads_the_same_values(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        "z.last.by.name": rng.standard_normal((3, 5)).astype(np.float32),
        "a": rng.standard_normal((4, 1, 2)).astype(np.float16),
        "naïve 名": np.array([np.nan, -0.0, np.inf], np.float32),
        "empty": np.zeros((0, 7), np.float32),
        "scalar": np.float32(2.5).reshape(()),
        "transposed": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    }
    dtypes = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}
    path = tmp_path / "model.safetensors"
    order = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    write_safetensors(path, [entry(n, a, dtypes[a.dtype]) for n, a in order], {"format": "pt"})

    back = load_file(path)
    assert back.keys() == tensors.keys()
    for name, array in tensors.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        np.testing.assert_array_equal(back[name], array)
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}


def test_bfloat16_words_and_bytes_come_back(tmp_path):
    path = tmp_path / "words.safetensors"
    words = np.array([[0x3F80, 0xC000], [0x0001, 0x7F80]], np.uint16)
    raw = ("raw", "BF16", (2,), lambda: b"\x80\x3f\x00\x40")
    write_safetensors(path, [entry("words", words, "BF16"), raw])
    header, start, _ = read_header(path)
    assert header["words"]["dtype"] == "BF16"
    np.testing.assert_array_equal(np.fromfile(path, "<u2", offset=start)[:4], words.reshape(-1))
    with safe_open(path, framework="numpy") as file:  # values would need ml_dtypes
        words_slice, raw_slice = file.get_slice("words"), file.get_slice("raw")
        assert (words_slice.get_dtype(), words_slice.get_shape()) == ("BF16", [2, 2])
        assert (raw_slice.get_dtype(), raw_slice.get_shape()) == ("BF16", [2])


def test_given_order_is_kept_without_a_hole_and_the_data_are_aligned(tmp_path):
    path = tmp_path / "order.safetensors"
    names = ["q", "k", "v", "gate", "up", "down", "a"]
    write_safetensors(path, [entry(name, np.ones((2, 3), np.float32)) for name in names])
    header, start, size = read_header(path)
    assert list(header) == names
    assert start % 64 == 0
    end = 0
    for name in names:
        assert header[name]["data_offsets"][0] == end
        end = header[name]["data_offsets"][1]
    assert start + end == size


def test_no_tensors_is_a_file_too(tmp_path):
    write_safetensors(tmp_path / "none.safetensors", [])
    assert load_file(tmp_path / "none.safetensors") == {}


def test_one_tensor_is_made_at_a_time(tmp_path):
    seen = []

    def entries():
        for i in range(3):
            yield f"t{i}", "F32", (2,), lambda i=i: seen.append(i) or np.zeros(2, np.float32)

    write_safetensors(tmp_path / "lazy.safetensors", entries())
    assert seen == [0, 1, 2]


ZEROS = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([entry("a", ZEROS, "F8_E4M3")], "F8_E4M3"),
        ([entry("a", ZEROS), entry("a", ZEROS)], "taken"),
        ([entry("__metadata__", ZEROS)], "taken"),
        ([("a", "F32", (3, 2), lambda: ZEROS)], r"\(2, 3\)"),
        ([("a", "F32", (2, 3), lambda: ZEROS.astype(np.float64))], "float64"),
        ([("a", "BF16", (2, 3), lambda: ZEROS)], "float32"),
        ([("a", "F32", (2, 3), lambda: b"\0" * 23)], "23 bytes"),
        ([("a", "F32", (-1, 3), lambda: b"")], r"\(-1, 3\)"),
        ([("a", "BF16", (1,), lambda: b"\0\0"), entry("b", ZEROS)], "wider dtypes first"),
    ],
)
def test_a_wrong_tensor_is_refused_and_leaves_no_file(tmp_path, entries, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        write_safetensors(tmp_path / "bad.safetensors", entries)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_safetensors(path, [("a", "F32", (1,), interrupted)])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
