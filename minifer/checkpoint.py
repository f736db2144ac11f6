"""Weights on disk: safetensors files, mapped and never copied.

A safetensors file is 8 bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}
and the tensors' bytes, little-endian, without a hole. Nothing in it is trusted: every number is
checked against the file's size before it is used.
Format: https://huggingface.co/docs/safetensors (the metadata parsing section).
"""

import math
import mmap
import re
from collections.abc import Iterator, Mapping
from os.path import lexists
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import CheckpointError
from .json_file import parse_json, read_json, refuse_pipes

# How a stored dtype looks to NumPy. bfloat16 has no NumPy type: it stays raw 16-bit words.
STORED = {"F32": ("float32", "<f4"), "F16": ("float16", "<f2"), "BF16": ("bfloat16", "<u2")}
# The sizes of the rest are known so that a file holding one is checked; reading one is refused.
ITEM_BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32},
    **{"I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}
MAX_HEADER = 100_000_000


class Weight(NamedTuple):
    """A stored tensor: `words` is a read-only view of the mapped file, uint16 for bfloat16."""

    words: np.ndarray
    dtype: str
    shape: tuple[int, ...]


class Checkpoint(Mapping[str, Weight]):
    """Tensor names -> Weight, over one file or the shards of an index."""

    def __init__(self, files: dict[str, "TensorFile"]) -> None:
        self.files = files

    def __getitem__(self, name: str) -> Weight:
        return self.files[name].weight(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


class TensorFile:
    """One safetensors file: its header is validated at once, tensors are viewed when asked for."""

    def __init__(self, path: Path, map_file: bool = True) -> None:
        self.path = path
        self.data = _open_bytes(path, map_file)
        self.start, self.entries = _read_header(path, self.data)

    def weight(self, name: str) -> Weight:
        """The view of one tensor. Raises CheckpointError for a dtype this version cannot read."""
        dtype, shape, begin, _ = self.entries[name]
        if dtype not in STORED:
            raise CheckpointError(
                f"{self.path}: tensor {name} is stored as {dtype}, which minifer does not read; "
                f"it reads {', '.join(STORED)}. Save it in one of these dtypes"
            )
        kind, layout = STORED[dtype]
        count = math.prod(shape)
        words = np.frombuffer(self.data, layout, count, self.start + begin) if count else None
        if words is None:
            words = np.empty(0, layout)
        return Weight(words.reshape(shape), kind, shape)


def open_checkpoint(path: Path, map_file: bool = True) -> Checkpoint:
    """A model folder or one .safetensors file -> Checkpoint.

    In a folder: model.safetensors, or the shards that model.safetensors.index.json names.
    `map_file=False` reads the file into memory instead. Raises CheckpointError.
    """
    path = Path(path)
    if path.is_file():
        return _one_file(path, map_file)
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if lexists(single):
        return _one_file(single, map_file)
    if lexists(index):
        return _shards(index, map_file)
    others = sorted(found.name for found in path.glob("*.safetensors"))
    hint = f"; it holds {', '.join(others[:3])}: pass that file's path" if others else ""
    raise CheckpointError(
        f"{path}: no weights here, expected model.safetensors or model.safetensors.index.json{hint}"
    )


def _one_file(path: Path, map_file: bool) -> Checkpoint:
    file = TensorFile(path, map_file)
    return Checkpoint(dict.fromkeys(file.entries, file))


def _shards(index: Path, map_file: bool) -> Checkpoint:
    weight_map = read_json(index, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: expected an object weight_map {{tensor: file}}")
    opened: dict[str, TensorFile] = {}
    files: dict[str, TensorFile] = {}
    for name, shard in weight_map.items():
        # A plain base name only: an index must not make us read outside its folder.
        if not isinstance(shard, str) or not re.fullmatch(r"[\w.+-]+\.safetensors", shard):
            raise CheckpointError(
                f"{index}: tensor {name:.200} is said to be in {shard!r:.80}; expected the plain "
                "name of a .safetensors file in the same folder"
            )
        if shard not in opened:
            if not (index.parent / shard).is_file():
                raise CheckpointError(f"{index}: the shard {shard} is missing from {index.parent}")
            opened[shard] = TensorFile(index.parent / shard, map_file)
        if name not in opened[shard].entries:
            raise CheckpointError(
                f"{index.parent / shard}: tensor {name} is missing from this shard"
            )
        files[name] = opened[shard]
    return Checkpoint(files)


def _open_bytes(path: Path, map_file: bool) -> Any:
    refuse_pipes(path, CheckpointError)
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if size < 8:
                raise CheckpointError(
                    f"{path}: {size} bytes; a safetensors file has at least 8. "
                    "The file is empty or truncated"
                )
            file.seek(0)
            if map_file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return file.read()
    except OSError as problem:
        raise CheckpointError(f"{path}: cannot be read ({problem.strerror or problem})") from None


def _read_header(path: Path, data: Any) -> tuple[int, dict[str, tuple]]:
    """-> (where the tensors begin, {name: (dtype, shape, begin, end)}), all of it checked."""
    length = int.from_bytes(data[:8], "little")
    room = min(len(data) - 8, MAX_HEADER)
    if not 2 <= length <= room:
        raise CheckpointError(
            f"{path}: the header says it has {length} bytes, allowed are 2 to {room}. "
            "The file is truncated or not a safetensors file"
        )
    header = parse_json(bytes(data[8 : 8 + length]), f"{path}: header", CheckpointError)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(type(text) is str for text in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ is {metadata!r:.80}, expected texts by name")
    entries = {name: _entry(path, name, entry) for name, entry in header.items()}

    expected = 0
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != expected:
            fault = "overlaps the one before" if begin < expected else "leaves a hole before it"
            raise CheckpointError(
                f"{path}: tensor {name} begins at byte {begin}, expected {expected}: it {fault}"
            )
        expected = end
    found = len(data) - 8 - length
    if expected != found:
        raise CheckpointError(
            f"{path}: the header describes {expected} bytes of tensors, the file holds {found}. "
            "It is truncated or has bytes nobody describes"
        )
    return 8 + length, entries


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    where = f"{path}: tensor {name}"
    if not isinstance(entry, dict) or {"dtype", "shape", "data_offsets"} - set(entry):
        raise CheckpointError(
            f"{where}: expected dtype, shape and data_offsets, found {entry!r:.80}"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        raise CheckpointError(
            f"{where}: unknown dtype {dtype!r:.40}; known are {', '.join(sorted(ITEM_BITS))}"
        )
    if not _naturals(shape) or len(shape) > 32:
        raise CheckpointError(f"{where}: shape {shape!r:.80} is not a list of up to 32 sizes")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets {offsets!r:.80}, expected [begin, end]")
    if math.prod(size or 1 for size in shape) >= 2**60:  # also beside a size of 0
        raise CheckpointError(f"{where}: shape {shape!r:.80} is more than a file can hold")
    bits = math.prod(shape) * ITEM_BITS[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        raise CheckpointError(
            f"{where}: shape {shape} of {dtype} takes {bits / 8:g} bytes, "
            f"data_offsets give it {offsets[1] - offsets[0]}"
        )
    return dtype, tuple(shape), offsets[0], offsets[1]


def _naturals(value: Any) -> bool:
    # bool is an int to isinstance; 2**63 bounds what a file offset can be.
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)
