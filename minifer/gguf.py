"""Read GGUF files, the format of llama.cpp: metadata, names and shapes, and the bytes of tensors.

The file is mapped, so only what is looked at is read. Nothing in it is trusted: every count and
length is compared with the bytes that are left before it is used.

Layout (github.com/ggml-org/ggml, docs/gguf.md), all little-endian: "GGUF", version uint32, number
of tensors uint64, number of metadata entries uint64; the entries (key, type, value); per tensor
name, number of dimensions, sizes (fastest first), type, offset; padding; the data.
"""

import math
import mmap
import os
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from .errors import CheckpointError
from .gguf_blocks import DECODERS, TENSOR_TYPES

VERSIONS = (2, 3)
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 64
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

# Types of metadata: number in the file -> format of struct. Strings and arrays are apart.
SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
STRING, ARRAY, BOOL = 8, 9, 7


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor as it lies in the file; `shape` is row-major, (O, D) for a projection."""

    name: str
    type: str
    shape: tuple[int, ...]
    data: memoryview = field(repr=False)
    file: Path = field(repr=False)


class GGUF:
    """An open GGUF file: `metadata` {key: value} and `tensors` {name: GGUFTensor}, in file order.

    Use it as a context manager, or call `close`; the views of its tensors end there.
    """

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self._mapped = mapped
        self._view = memoryview(mapped)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GGUFTensor] = {}
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "GGUF":
        """Map the file and read its header; CheckpointError when anything in it is wrong."""
        path = Path(path)
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size == 0:  # mmap refuses to map nothing
                    raise CheckpointError(f"{path}: the file is empty; wanted a GGUF file")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        return cls(path, mapped)

    def __enter__(self) -> "GGUF":
        """Answer the file itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Unmap the file."""
        self.close()

    def expect(self, key: str, kind: type) -> Any:
        """The metadata value of `key`, which must be there and of the type `kind`."""
        value = self.metadata.get(key)
        if type(value) is not kind:  # isinstance would let True pass as an int
            found = "missing" if value is None else f"of type {type(value).__name__}"
            raise CheckpointError(f"{self.path}: {key} is {found}; wanted a {kind.__name__}")
        return value

    def expect_list(self, key: str, kind: type) -> list[Any]:
        """The metadata list of `key`, whose elements must be of the type `kind`."""
        values = self.expect(key, list)
        if values and type(values[0]) is not kind:  # all elements of a GGUF array have one type
            raise CheckpointError(
                f"{self.path}: {key} holds {type(values[0]).__name__}; wanted {kind.__name__}"
            )
        return values

    def close(self) -> None:
        """Unmap the file, so that Windows lets it be deleted."""
        releases = [tensor.data.release for tensor in self.tensors.values()]
        for release in (*releases, self._view.release, self._mapped.close):
            # An array may still look into the file, as in the frames of a passing error; the
            # mapping then ends with it.
            with suppress(BufferError):
                release()

    def _read(self) -> None:
        read = _Cursor(self.path, self._view)
        magic = read.take(4, "magic")
        if magic != b"GGUF":
            raise CheckpointError(f"{self.path}: starts with {magic!r}; a GGUF file with b'GGUF'")
        version = read.number("<I", "version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
            order = " (a big-endian file)" if swapped in VERSIONS else ""
            raise CheckpointError(
                f"{self.path}: GGUF version {version}{order}; read are little-endian 2 and 3"
            )
        # least: name length, dimensions, one size, type, offset; and key length, key, type, value.
        tensor_count = read.count("number of tensors", least=8 + 4 + 8 + 4 + 8)
        entry_count = read.count("number of metadata entries", least=8 + 1 + 4 + 1)
        for _ in range(entry_count):
            key = read.string("key", MAX_KEY_BYTES)
            if key in self.metadata:
                raise CheckpointError(f"{self.path}: metadata key {key!r} occurs twice")
            self.metadata[key] = read.value(f"metadata {key!r}")
        infos = [_read_tensor_info(read) for _ in range(tensor_count)]
        self._place(infos, data_start=self._align(read.position))

    def _align(self, position: int) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        # A power of two, as llama.cpp demands; True would pass as 1.
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(
                f"{self.path}: general.alignment is {alignment!r}; allowed: a power of two"
            )
        self._alignment = alignment
        return position + -position % alignment

    def _place(self, infos: "list[_TensorInfo]", data_start: int) -> None:
        """Check where each tensor lies, then take its view."""
        space = len(self._view) - data_start
        taken: list[tuple[int, int, str]] = []
        for name, type_name, shape, size, offset in infos:
            where = f"{self.path}: tensor {name!r}"
            if name in self.tensors:
                raise CheckpointError(f"{where} occurs twice")
            if offset % self._alignment:
                raise CheckpointError(
                    f"{where}: offset {offset}; allowed: a multiple of {self._alignment}"
                )
            if offset + size > space:
                raise CheckpointError(
                    f"{where}: {type_name} {shape} lies at bytes {offset} to {offset + size} of the"
                    f" data; the file holds {max(space, 0)} (is it truncated?)"
                )
            data = self._view[data_start + offset : data_start + offset + size]
            self.tensors[name] = GGUFTensor(name, type_name, shape, data, self.path)
            taken.append((offset, offset + size, name))
        taken.sort()
        for (_, end, name), (begin, _, other) in pairwise(taken):
            if begin < end:
                raise CheckpointError(f"{self.path}: tensors {name!r} and {other!r} overlap")


def dequantise(tensor: GGUFTensor) -> np.ndarray:
    """The values of a tensor as a fresh float32 array of `tensor.shape`.

    CheckpointError: a type whose blocks are not built (the formulas are in gguf_blocks.py).
    """
    if tensor.type not in DECODERS:
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name!r} is stored as {tensor.type}; built are"
            f" {', '.join(DECODERS)}"
        )
    return DECODERS[tensor.type](tensor.data).reshape(tensor.shape)


_TensorInfo = tuple[str, str, tuple[int, ...], int, int]  # name, type, shape, bytes, offset


def _read_tensor_info(read: "_Cursor") -> _TensorInfo:
    name = read.string("tensor name", MAX_NAME_BYTES)
    where = f"{read.path}: tensor {name!r}"
    dimensions = read.number("<I", f"dimensions of {name!r}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise CheckpointError(f"{where}: {dimensions} dimensions; allowed: 1 to {MAX_DIMENSIONS}")
    sizes = tuple(read.number("<Q", f"shape of {name!r}") for _ in range(dimensions))
    number = read.number("<I", f"type of {name!r}")
    if number not in TENSOR_TYPES:
        known = ", ".join(known for known, _, _ in TENSOR_TYPES.values())
        raise CheckpointError(f"{where}: unknown tensor type {number}; known: {known}")
    type_name, block, block_bytes = TENSOR_TYPES[number]
    if 0 in sizes or sizes[0] % block:
        raise CheckpointError(
            f"{where}: sizes {sizes}, fastest first; allowed for {type_name}: none zero and rows of"
            f" a multiple of {block}"
        )
    size = math.prod(sizes) // block * block_bytes  # Python integers: no overflow to exploit
    offset = read.number("<Q", f"offset of {name!r}")
    return name, type_name, sizes[::-1], size, offset


class _Cursor:
    """Reads on from a position, never past the end of the file."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.path = path
        self.position = 0
        self._view = view

    def take(self, size: int, what: str) -> bytes:
        left = len(self._view) - self.position
        if size > left:
            raise CheckpointError(
                f"{self.path}: {what} wants {size} bytes at byte {self.position}; the file has"
                f" {left} more (is it truncated?)"
            )
        self.position += size
        return bytes(self._view[self.position - size : self.position])

    def number(self, form: str, what: str) -> Any:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form), what))
        return value

    def count(self, what: str, least: int) -> int:
        """A number of things of which each takes at least `least` bytes of what is left."""
        count = self.number("<Q", what)
        left = len(self._view) - self.position
        if count * least > left:
            raise CheckpointError(
                f"{self.path}: {what} is {count}; {left} bytes are left, room for {left // least}"
            )
        return count

    def string(self, what: str, most: int | None = None) -> str:
        size = self.number("<Q", f"length of {what}")
        if most is not None and not 1 <= size <= most:
            raise CheckpointError(f"{self.path}: {what} of {size} bytes; allowed: 1 to {most}")
        data = self.take(size, what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {what} is not UTF-8: {error}") from None

    def value(self, what: str) -> Any:
        kind = self.number("<I", f"type of {what}")
        if kind == STRING:
            return self.string(what)
        if kind != ARRAY:
            return self._scalars(kind, 1, what)[0]
        kind = self.number("<I", f"element type of {what}")
        if kind == STRING:
            return [self.string(what) for _ in range(self.count(f"length of {what}", least=8))]
        if kind == ARRAY:  # llama.cpp refuses it too, and nesting would cost a recursion
            raise CheckpointError(f"{self.path}: {what} is an array of arrays, which is not built")
        size = struct.calcsize(SCALARS.get(kind, "<B"))
        return self._scalars(kind, self.count(f"length of {what}", least=size), what)

    def _scalars(self, kind: int, count: int, what: str) -> list[Any]:
        if kind not in SCALARS:
            raise CheckpointError(f"{self.path}: {what} is of unknown type {kind}; known: 0 to 12")
        form = SCALARS[kind]
        data = self.take(count * struct.calcsize(form), what)
        if kind == BOOL and not set(data) <= {0, 1}:
            raise CheckpointError(f"{self.path}: {what} is no truth value; allowed bytes: 0 and 1")
        return [value for (value,) in struct.iter_unpack(form, data)]
