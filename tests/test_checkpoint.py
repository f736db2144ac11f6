"""checkpoint.py: what a safetensors file may hold, and everything that is refused by name."""

import json
import mmap

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import bfloat16_words

from minifer.checkpoint import ITEM_BITS, open_checkpoint
from minifer.errors import CheckpointError

FOUR = b"\x00\x00\x80\x3f"  # 1.0 as float32


def entry(dtype="F32", shape=(1,), begin=0, end=4, **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


def file_bytes(header, data=b"", length=None):
    if not isinstance(header, bytes):
        header = json.dumps(header).encode("utf-8")
    length = len(header) if length is None else length
    return length.to_bytes(8, "little") + header + data


@pytest.fixture
def store(tmp_path):
    """Writes a file and gives its path."""

    def write(content, name="model.safetensors"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


# ---- refused -----------------------------------------------------------------------------------

DEEP = b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"
REFUSED = {
    "empty": (b"", "0 bytes.*empty or truncated"),
    "seven bytes": (b"1234567", "7 bytes.*empty or truncated"),
    "no header": (file_bytes(b""), "header says it has 0 bytes"),
    "a header of one byte": (file_bytes(b"{"), "header says it has 1 bytes"),
    "header beyond the file": (file_bytes(b"{}", length=3), "has 3 bytes, allowed are 2 to 2"),
    "header of 2**63 bytes": (file_bytes(b"{}", length=2**63), "truncated or not a safetensors"),
    "header of 2**64 - 1 bytes": (file_bytes(b"{}", length=2**64 - 1), "truncated or not"),
    "truncated header": (file_bytes({"a": entry()}, FOUR)[:30], "truncated"),
    "a pickle": (b"PK\x03\x04" + b"\0" * 60, "truncated or not a safetensors file"),
    "bad JSON": (file_bytes(b'{"a": '), "not valid JSON"),
    "bad UTF-8": (file_bytes(b'{"\xff": 1}'), r"not UTF-8 text \(byte 2\)"),
    "a list": (file_bytes([]), "found a JSON list, expected an object"),
    "null": (file_bytes(b"null"), "found a JSON NoneType"),
    "deep nesting": (file_bytes(DEEP), "tensor a: expected dtype|not valid JSON"),
    "deeper nesting": (file_bytes(DEEP.replace(b"[", b"[" * 99)), "not valid JSON"),
    "a huge number": (file_bytes(b'{"a": %s}' % (b"9" * 5000)), "not valid JSON"),
    "duplicate tensor": (
        file_bytes(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2), FOUR),
        "the key 'a' stands there twice",
    ),
    "duplicate key in a tensor": (
        file_bytes(b'{"a":{"dtype":"F32","dtype":"F16","shape":[],"data_offsets":[0,4]}}', FOUR),
        "the key 'dtype' stands there twice",
    ),
    "entry is a number": (file_bytes({"a": 1}), "tensor a: expected dtype, shape and data_offsets"),
    "no dtype": (file_bytes({"a": {"shape": [], "data_offsets": [0, 0]}}), "expected dtype"),
    "unknown dtype": (file_bytes({"a": entry("F31")}, FOUR), "unknown dtype 'F31'; known are BF16"),
    "lower-case dtype": (file_bytes({"a": entry("f32")}, FOUR), "unknown dtype 'f32'"),
    "dtype is a list": (file_bytes({"a": entry(["F32"])}, FOUR), "unknown dtype"),
    "shape is text": (
        file_bytes({"a": entry() | {"shape": "1"}}, FOUR),
        "shape '1' is not a list of up to 32 sizes",
    ),
    "shape of a bool": (file_bytes({"a": entry(shape=[True])}, FOUR), r"shape \[True\] is not"),
    "shape of a float": (file_bytes({"a": entry(shape=[1.0])}, FOUR), r"shape \[1.0\] is not"),
    "shape of NaN": (file_bytes({"a": entry(shape=[float("nan")])}, FOUR), "shape .nan. is not"),
    "negative sizes": (file_bytes({"a": entry(shape=[-1, -1])}, FOUR), r"shape \[-1, -1\] is not"),
    "size of 2**64": (file_bytes({"a": entry(shape=[2**64 + 1])}, FOUR), "is not a list"),
    "sizes that wrap at 2**64": (file_bytes({"a": entry(shape=[2**32, 2**32])}), "more than a"),
    "sizes beyond a float": (file_bytes({"a": entry(shape=[2**62] * 32)}, FOUR), "more than a"),
    "huge sizes beside 0": (file_bytes({"a": entry(shape=[0, 2**62, 2**62], end=0)}), "more than"),
    "33 sizes": (file_bytes({"a": entry(shape=[1] * 33)}, FOUR), "up to 32 sizes"),
    "one offset": (
        file_bytes({"a": entry() | {"data_offsets": [4]}}, FOUR),
        r"data_offsets \[4\], expected \[begin, end\]",
    ),
    "begin > end": (file_bytes({"a": entry(begin=4, end=0)}, FOUR), "expected .begin, end."),
    "negative begin": (file_bytes({"a": entry(begin=-4, end=0)}, FOUR), "expected .begin, end."),
    "bool offsets": (
        file_bytes({"a": entry("U8", [1], False, True)}, b"1"),
        "expected .begin, end.",
    ),
    "more bytes than the shape": (
        file_bytes({"a": entry(end=8)}, FOUR * 2),
        r"shape \[1\] of F32 takes 4 bytes, data_offsets give it 8",
    ),
    "half a byte": (file_bytes({"a": entry("F4", [3], 0, 1)}, b"1"), "takes 1.5 bytes"),
    "out of range": (file_bytes({"a": entry()}, b"12"), "describes 4 bytes.*the file holds 2"),
    "far out of range": (
        file_bytes({"a": entry("U8", [2**50], 0, 2**50)}),
        "describes 1125899906842624 bytes",
    ),
    "bytes left over": (file_bytes({"a": entry()}, FOUR + b"!"), "bytes nobody describes"),
    "overlap": (
        file_bytes({"a": entry(shape=[2], end=8), "b": entry(begin=4, end=8)}, FOUR * 2),
        "tensor b begins at byte 4, expected 8: it overlaps the one before",
    ),
    "the same bytes twice": (
        file_bytes({"a": entry(), "b": entry()}, FOUR),
        "tensor b begins at byte 0, expected 4: it overlaps",
    ),
    "nothing inside something": (
        file_bytes({"a": entry(shape=[2], end=8), "b": entry("F32", [0], 4, 4)}, FOUR * 2),
        "overlaps the one before",
    ),
    "a hole": (
        file_bytes({"a": entry(), "b": entry(begin=8, end=12)}, FOUR * 3),
        "tensor b begins at byte 8, expected 4: it leaves a hole before it",
    ),
    "a hole at the start": (file_bytes({"a": entry(begin=4, end=8)}, FOUR * 2), "leaves a hole"),
    "metadata of numbers": (file_bytes({"__metadata__": {"a": 1}}), "expected texts by name"),
    "metadata is a list": (file_bytes({"__metadata__": []}), "expected texts by name"),
}


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(store, case, mapped):
    content, message = REFUSED[case]
    path = store(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(path, map_file=mapped)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < len(str(path)) + 400


@pytest.mark.parametrize("depth", range(780, 1010, 3))
def test_no_depth_of_nesting_escapes(store, depth):
    with pytest.raises(CheckpointError):
        open_checkpoint(store(file_bytes(b'{"a":' + b"[" * depth + b"]" * depth + b"}")))


def test_a_library_refuses_the_same_files(store):
    ours_alone = {"33 sizes", "duplicate key in a tensor", "duplicate tensor"}
    for case, (content, _) in REFUSED.items():
        if case not in ours_alone:
            with pytest.raises((safetensors.SafetensorError, ValueError, OSError)):
                safetensors.numpy.load_file(store(content))
                pytest.fail(f"the library opens: {case}")


# ---- accepted ----------------------------------------------------------------------------------


def test_keys_out_of_order_padding_metadata_and_empty_shapes(store):
    header = {
        "last": entry("F16", [2, 1], 12, 16),
        "__metadata__": {"format": "pt"},
        "scalar": entry("F32", [], 0, 4),
        "nothing": entry("F32", [0, 7], 4, 4),
        "first": entry("F32", [1, 2], 4, 12, note="more keys are no harm"),
    }
    halves = np.array([[1.5], [-2]], "<f2")
    data = FOUR + np.array([2, 3], "<f4").tobytes() + halves.tobytes()
    found = open_checkpoint(store(file_bytes(json.dumps(header).encode() + b" " * 61, data)))
    assert list(found) == ["last", "scalar", "nothing", "first"]
    assert found["scalar"].words.shape == () and found["scalar"].words == 1
    assert found["nothing"].words.shape == (0, 7)
    assert found["nothing"].words.dtype == np.float32
    assert found["first"].words.tolist() == [[2, 3]]
    assert found["last"].dtype == "float16" and (found["last"].words == halves).all()


def test_a_file_without_tensors(store):
    assert len(open_checkpoint(store(file_bytes({})))) == 0


@pytest.mark.parametrize("dtype", sorted(set(ITEM_BITS) - {"F32", "F16", "BF16"}))
def test_other_dtypes_are_known_and_refused_when_asked_for(store, dtype):
    count = 8
    size = count * ITEM_BITS[dtype] // 8
    header = {"w": entry(dtype, [count], 0, size), "b": entry("F32", [1], size, size + 4)}
    found = open_checkpoint(store(file_bytes(header, bytes(size) + FOUR)))
    assert found["b"].words.tolist() == [1]
    with pytest.raises(CheckpointError, match=f"tensor w is stored as {dtype}.*F32, F16, BF16"):
        found["w"]


def test_bfloat16_stays_words(store):
    values = np.array([[1.0, -2.5], [3e38, 1e-40]], np.float32)
    words = bfloat16_words(values)
    path = store(file_bytes({"w": entry("BF16", [2, 2], 0, 8)}, words.astype("<u2").tobytes()))
    weight = open_checkpoint(path)["w"]
    assert weight.dtype == "bfloat16" and weight.words.dtype == np.uint16
    assert (weight.words == words).all()


def test_mapped_views_are_read_only_and_share_the_mapping(store):
    path = store(file_bytes({"a": entry(shape=[2], end=8)}, FOUR * 2))
    for mapped in (True, False):
        checkpoint = open_checkpoint(path, map_file=mapped)
        file = checkpoint.files["a"]
        assert isinstance(file.data, mmap.mmap) is mapped
        words = checkpoint["a"].words
        whole = np.frombuffer(file.data, np.uint8)
        assert np.shares_memory(words, whole) and np.shares_memory(words, checkpoint["a"].words)
        assert not words.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            words[0] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            words.flags.writeable = True


# ---- against the library, and broken at random -------------------------------------------------

arrays = st.dictionaries(
    st.text('abcé.日"\\', max_size=6).filter(lambda name: name != "__metadata__"),
    st.tuples(
        st.sampled_from(["<f4", "<f2"]),
        st.lists(st.integers(0, 4), max_size=4),
        st.integers(0, 2**32),
    ).map(lambda t: np.random.default_rng(t[2]).standard_normal(t[1]).astype(t[0])),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(arrays)
def test_what_the_library_writes_is_read(tmp_path_factory, tensors):
    tensors = {name: np.asarray(values) for name, values in tensors.items()}
    path = tmp_path_factory.mktemp("library") / "model.safetensors"
    safetensors.numpy.save_file(tensors, path, {"format": "np"})
    found = open_checkpoint(path)
    assert set(found) == set(tensors)
    for name, values in tensors.items():
        assert found[name].words.dtype == values.dtype
        assert found[name].shape == values.shape
        assert (found[name].words == values).all()


VALID = file_bytes(
    {
        "__metadata__": {"format": "pt"},
        "a.weight": entry("F32", [2, 3], 0, 24),
        "b.weight": entry("BF16", [4], 24, 32),
        "c": entry("I64", [], 32, 40),
    },
    bytes(range(40)),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=4),
    st.integers(0, len(VALID)) | st.just(len(VALID)),
)
def test_a_damaged_file_opens_or_is_refused(tmp_path_factory, changes, keep):
    content = bytearray(VALID)
    for place, value in changes:
        content[place] = value
    path = tmp_path_factory.mktemp("damaged") / "model.safetensors"
    path.write_bytes(content[:keep])
    try:
        found = open_checkpoint(path)
        for name in found:
            assert found[name].words.nbytes <= len(content)
    except CheckpointError as refusal:
        assert str(refusal).startswith(str(path))
