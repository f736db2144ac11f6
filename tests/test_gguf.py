"""GGUF: well-formed files read exactly, malformed ones refused by name, blocks decoded exactly."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import gguf_bytes, llama_bytes, random_tensor, text, typed

from minifer.errors import CheckpointError
from minifer.gguf import GGUF, dequantise
from minifer.gguf_blocks import DECODERS, to_bfloat16_words, widen_bfloat16


def opened(tmp_path, data):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return GGUF.open(path)


ONES = np.ones((2, 3), "<f4")
TENSOR = ("w", "F32", (2, 3), ONES.tobytes())
ENTRY = text("k") + struct.pack("<II", 4, 7)


def head(tensors=0, entries=0, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, entries)


def info(name="w", sizes=(3, 2), kind=0, offset=0, dimensions=None):
    count = len(sizes) if dimensions is None else dimensions
    packed = struct.pack(f"<I{len(sizes)}Q", count, *sizes)
    return text(name) + packed + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors_are_read(tmp_path, version):
    metadata = {
        "general.alignment": 64,
        "text": "naïve 名",
        "empty": "",
        "number": 4_000_000_000,
        "real": 0.5,
        "truth": True,
        "list": ["a", "bc", ""],
        "numbers": [1, 2, 3],
        "none": [],
    }
    half = np.arange(4, dtype="<f2")
    tensors = [TENSOR, ("h", "F16", (4,), half.tobytes())]
    with opened(tmp_path, gguf_bytes(metadata, tensors, version, alignment=64)) as gguf:
        assert gguf.metadata == metadata
        assert list(gguf.tensors) == ["w", "h"]
        assert (gguf.tensors["w"].type, gguf.tensors["w"].shape) == ("F32", (2, 3))
        np.testing.assert_array_equal(dequantise(gguf.tensors["w"]), ONES)
        widened = dequantise(gguf.tensors["h"])
    assert widened.dtype == np.float32  # a copy: it outlives the mapping
    np.testing.assert_array_equal(widened, half)


def test_every_scalar_type(tmp_path):
    values = [
        200,
        -100,
        60000,
        -30000,
        2**32 - 1,
        -(2**31),
        0.25,
        False,
        2**64 - 1,
        -(2**63),
        1e300,
    ]
    numbers = [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12]
    data = head(entries=len(values))
    for number, form, value in zip(numbers, "BbHhIif?Qqd", values, strict=True):
        data += text(f"t{number}") + struct.pack("<I", number) + struct.pack("<" + form, value)
    with opened(tmp_path, data) as gguf:
        assert list(gguf.metadata.values()) == values


HUGE = struct.pack("<Q", 2**63)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "empty"),
        (b"GG", "magic wants 4 bytes"),
        (head(magic=b"PK\3\4"), "starts with"),
        (head(version=1), "version 1"),
        (head(version=0x03000000), "big-endian"),
        (head(tensors=2**63), "number of tensors is 9223372036854775808"),
        (head(entries=2**62), "number of metadata entries"),
        (head(entries=1) + HUGE + b"k" * 30, "key of 9223372036854775808 bytes"),
        (head(entries=1) + text("") + b"\0" * 20, "key of 0 bytes"),
        (head(entries=2) + ENTRY * 2, "'k' occurs twice"),
        (head(entries=1) + text("k") + struct.pack("<II", 13, 0), "unknown type 13"),
        (head(entries=1) + text("k") + struct.pack("<I", 8) + HUGE, "wants 9223372036854775808"),
        (head(entries=1) + text("k") + struct.pack("<IQ", 8, 1) + b"\xff", "UTF-8"),
        (head(entries=1) + text("k") + struct.pack("<IB", 7, 2), "no truth value"),
        (
            head(entries=1) + text("k") + struct.pack("<II", 9, 4) + HUGE,
            "length of metadata 'k' is",
        ),
        (
            head(entries=1) + text("k") + struct.pack("<II", 9, 8) + HUGE,
            "length of metadata 'k' is",
        ),
        (head(entries=1) + text("k") + struct.pack("<IIQ", 9, 9, 0), "array of arrays"),
        (head(entries=1) + text("k") + struct.pack("<IIQ", 9, 99, 0), "unknown type 99"),
        (head(entries=1) + text("general.alignment") + struct.pack("<II", 4, 24), "power of two"),
        (head(entries=1) + text("general.alignment") + typed(True), "general.alignment is True"),
        (head(tensors=1) + info(dimensions=5) + b"\0" * 64, "5 dimensions"),
        (head(tensors=1) + info(sizes=(), dimensions=0) + b"\0" * 64, "0 dimensions"),
        (head(tensors=1) + info(name="n" * 65), "tensor name of 65 bytes"),
        (head(tensors=1) + info(kind=99) + b"\0" * 64, "unknown tensor type 99"),
        (head(tensors=1) + info(sizes=(0, 2)) + b"\0" * 64, "none zero"),
        (head(tensors=1) + info(sizes=(33, 2), kind=8) + b"\0" * 99, "multiple of 32"),
        (head(tensors=1) + info(sizes=(2**63, 2**63)) + b"\0" * 64, "truncated"),
        (head(tensors=1) + info(offset=8) + b"\0" * 99, "multiple of 32"),
        (head(tensors=1) + info(offset=2**63) + b"\0" * 99, "truncated"),
        (head(tensors=2) + info() * 2 + b"\0" * 99, "'w' occurs twice"),
        (head(tensors=2) + info("a") + info("b") + b"\0" * 99, "'a' and 'b' overlap"),
        (gguf_bytes({}, [TENSOR])[:-1], "truncated"),
        (head(tensors=1) + info(), "file holds 0"),
    ],
)
def test_malformed_files_are_refused_by_name(tmp_path, data, complaint):
    with pytest.raises(CheckpointError, match=complaint) as caught:
        opened(tmp_path, data)
    assert "model.gguf" in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            GGUF.open(path)


def test_a_type_that_is_not_built_can_be_listed_but_not_decoded(tmp_path):
    with opened(tmp_path, gguf_bytes({}, [("w", "Q4_K", (256,), b"\0" * 144)])) as gguf:
        assert gguf.tensors["w"].type == "Q4_K"
        with pytest.raises(CheckpointError, match=r"'w' is stored as Q4_K; built are F32, F16, Q4"):
            dequantise(gguf.tensors["w"])


def test_closing_with_an_array_alive_does_not_hide_the_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), opened(tmp_path, gguf_bytes({}, [TENSOR])) as gguf:
        alive = np.frombuffer(gguf.tensors["w"].data, "<f4")
        raise KeyboardInterrupt
    np.testing.assert_array_equal(alive, ONES.reshape(-1))
    gguf.close()


def test_expected_keys_are_named(tmp_path):
    with opened(tmp_path, gguf_bytes({"t": True, "l": [1]}, [])) as gguf:
        for call, complaint in (
            (lambda: gguf.expect("absent", int), "absent is missing; wanted a int"),
            (lambda: gguf.expect("t", int), "t is of type bool"),
            (lambda: gguf.expect_list("l", str), "l holds int"),
        ):
            with pytest.raises(CheckpointError, match=complaint):
                call()


VALID = llama_bytes()


@settings(max_examples=300, deadline=5000, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused_never_anything_else(tmp_path, data):
    mutated = bytearray(VALID)
    limit = data.draw(st.sampled_from([64, 1500, len(VALID)]))  # most bytes that matter are early
    for _ in range(data.draw(st.integers(0, 4))):
        mutated[data.draw(st.integers(0, limit - 1))] = data.draw(st.integers(0, 255))
    del mutated[data.draw(st.integers(0, len(VALID)) | st.just(len(VALID))) :]
    try:
        with opened(tmp_path, bytes(mutated)) as gguf, np.errstate(all="ignore"):
            for tensor in gguf.tensors.values():
                if tensor.type in DECODERS:
                    assert dequantise(tensor).shape == tensor.shape
    except CheckpointError:
        pass


def scalar_blocks(kind, data):
    """The formulas of the format, one element at a time."""
    values = []
    for start in range(0, len(data), {"Q4_1": 20, "Q8_0": 34}[kind]):
        (scale,) = np.frombuffer(data, "<f2", 1, start).astype(np.float32)
        if kind == "Q8_0":
            values += [np.float32(q) * scale for q in struct.unpack_from("32b", data, start + 2)]
        else:
            (minimum,) = np.frombuffer(data, "<f2", 1, start + 2).astype(np.float32)
            packed = data[start + 4 : start + 20]
            quants = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
            values += [np.float32(q) * scale + minimum for q in quants]
    return np.array(values, np.float32)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_blocks_follow_the_scalar_formula(kind):
    *_, data = random_tensor(np.random.default_rng(3), "w", kind, (5, 64))
    decoded = DECODERS[kind](memoryview(data))
    np.testing.assert_array_equal(
        decoded.view(np.uint32), scalar_blocks(kind, data).view(np.uint32)
    )


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_blocks_equal_the_gguf_package(kind):
    path = Path(__file__).parent / "golden" / "gguf_blocks.json"
    golden = json.loads(path.read_text(encoding="utf-8"))[kind]
    decoded = DECODERS[kind](memoryview(bytes.fromhex("".join(golden["blocks"]))))
    assert decoded.astype("<f4").tobytes().hex() == "".join(golden["float32"])


def test_bfloat16_rounds_to_nearest_even():
    bits = np.array(
        [0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x80000000,
         0xFF800000, 0x00008000, 0x00018000], np.uint32,
    )  # fmt: skip
    wanted = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0x8000, 0xFF80, 0x0000, 0x0002]
    assert to_bfloat16_words(bits.view(np.float32)).tolist() == wanted


def test_bfloat16_keeps_nan_and_its_own_values():
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001], np.uint32).view(np.float32)
    assert np.isnan(widen_bfloat16(to_bfloat16_words(nans))).all()
    every = np.arange(1 << 16, dtype=np.uint16)
    values = widen_bfloat16(every).reshape(256, 256).T  # also not contiguous
    same = to_bfloat16_words(values)
    kept = ~np.isnan(values)
    assert same.shape == (256, 256)
    np.testing.assert_array_equal(same[kept], every.reshape(256, 256).T[kept])
    with pytest.raises(TypeError, match="float64"):
        to_bfloat16_words(np.zeros(2))
