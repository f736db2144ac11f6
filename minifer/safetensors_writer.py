"""Write a safetensors file in the order given, one tensor in memory at a time.

The safetensors library sorts tensors by dtype and name. minifer wants q, k, v (and gate, up) to be
neighbours in the file, so that a reader can view them as one matrix; hence a writer of its own.

Format (github.com/huggingface/safetensors, "Format"): a little-endian uint64 N, N bytes of JSON
`{name: {"dtype", "shape", "data_offsets": [begin, end]}}`, then the data without a hole.
"""

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .errors import CheckpointError

# How an element lies in the file: numpy has no bfloat16, so its words travel as uint16.
STORED_AS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

# The data start at a multiple of a cache line: a mapped float32 file is aligned for every kernel.
DATA_ALIGNMENT = 64

# The library refuses longer headers, so nobody could read such a file.
MAX_HEADER_BYTES = 100_000_000

Entry = tuple[str, str, tuple[int, ...], Callable[[], "np.ndarray | bytes"]]


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Iterable[Entry],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write `tensors`, entries (name, dtype, shape, produce), to `path`.

    dtype is "F32", "F16" or "BF16". `produce()` is called when its tensor's turn comes and answers
    an array of that shape (float32, float16, or the uint16 words of bfloat16) or the finished
    little-endian bytes. The file appears under its name only when it is complete.

    CheckpointError: an unknown dtype, a name twice, a tensor of another size than announced, or an
    order of dtypes that would leave a tensor unaligned. OSError: whatever the disk says.
    """
    path, entries = Path(path), list(tensors)
    header = _header(path, entries, metadata)
    unfinished = path.with_name(path.name + ".partial")
    try:
        with open(unfinished, "wb") as file:
            file.write(header)
            for name, dtype, shape, produce in entries:
                file.write(_as_bytes(f"{path}: tensor {name!r}", dtype, shape, produce()))
            file.flush()
            os.fsync(file.fileno())  # a rename must not overtake the data on a power cut
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _header(path: Path, entries: list[Entry], metadata: dict[str, str] | None) -> bytes:
    """The length word and the JSON, padded with spaces up to the start of the data."""
    table: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape, _ in entries:
        where = f"{path}: tensor {name!r}"
        if name in table or name == "__metadata__":
            raise CheckpointError(f"{where}: the name is taken; every name may occur once")
        if dtype not in STORED_AS:
            raise CheckpointError(f"{where}: dtype {dtype!r}; allowed: {', '.join(STORED_AS)}")
        if any(size < 0 for size in shape):
            raise CheckpointError(f"{where}: shape {tuple(shape)}; sizes are 0 or more")
        itemsize = STORED_AS[dtype].itemsize
        if offset % itemsize:  # the format allows no hole to fill
            raise CheckpointError(
                f"{where}: {dtype} would start at byte {offset}, no multiple of {itemsize};"
                " put the wider dtypes first"
            )
        end = offset + math.prod(shape) * itemsize
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end

    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: a header of {len(text)} bytes; readers accept at most {MAX_HEADER_BYTES}"
        )
    return len(text).to_bytes(8, "little") + text


def _as_bytes(
    where: str, dtype: str, shape: tuple[int, ...], values: "np.ndarray | bytes"
) -> memoryview:
    """The bytes of one tensor, checked against what the header already promised."""
    stored = STORED_AS[dtype]
    if isinstance(values, np.ndarray):
        if values.shape != tuple(shape) or values.dtype != stored.newbyteorder("="):
            raise CheckpointError(
                f"{where}: got {values.dtype} {values.shape}, announced as {dtype} {tuple(shape)}"
                f" (an array of {stored.newbyteorder('=')})"
            )
        # Both are no-ops for a contiguous array on a little-endian machine.
        values = np.ascontiguousarray(values, dtype=stored).reshape(-1).view(np.uint8)
    data = memoryview(values)
    wanted = math.prod(shape) * stored.itemsize
    if data.nbytes != wanted:
        raise CheckpointError(f"{where}: got {data.nbytes} bytes, announced are {wanted}")
    return data
