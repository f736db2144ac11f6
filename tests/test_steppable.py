"""The reference path can be stepped through: no foreign frame, one operation a line, true notes."""

import ast
import bdb
import gc
import inspect
import io
import os
import pdb
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny_model

import minifer
from minifer import attention, debugger, layers, mlp, model, rope
from minifer.op import REGISTRY

PACKAGE = Path(minifer.__file__).parent
ROOT = PACKAGE.parent


def one_step(folder):
    found = minifer.load(folder, kernels="reference")
    cache = found.new_cache(16)
    found.forward([5, 17, 200], cache)
    return found, cache


class Walk(pdb.Pdb):
    """pdb that says `step` at every stop and notes where it stood."""

    def __init__(self):
        super().__init__(stdin=io.StringIO(), stdout=io.StringIO(), nosigint=True, readrc=False)
        self.stops = []

    def user_line(self, frame):
        self.stops.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_back))
        self.set_step()

    def user_call(self, frame, arguments):
        self.set_step()

    def user_return(self, frame, value):
        self.set_step()

    def user_exception(self, frame, info):
        self.set_step()


def test_pdb_walks_one_decode_step_without_a_foreign_frame(tmp_path):
    found, cache = one_step(write_tiny_model(tmp_path))
    walk = Walk()
    gc.disable()  # a collector's callback, such as hypothesis has, would be stepped into as well
    try:
        walk.runcall(found.forward, [7], cache, last_only=True)
    finally:
        gc.enable()
    stops = [stop for stop in walk.stops if Path(stop[0]).name != "test_steppable.py"]
    first = next(n for n, (_, name, _) in enumerate(stops) if name == "transformer")
    inside = stops[first:]
    inside = inside[: max(n for n, (_, name, _) in enumerate(inside) if name == "transformer") + 1]
    foreign = {name for name, _, _ in inside if not name.startswith(str(PACKAGE))}
    # NumPy's own reductions (x.sum, x.max) are Python: they lie below an op, never above one.
    assert all("numpy" in name for name in foreign), foreign
    visited = {name for file, name, _ in inside if file.startswith(str(PACKAGE))}
    ops = {"attention", "attend", "block", "mlp", "gate", "linear", "rms_norm", "rope", "store"}
    assert visited >= ops | {"residual", "embedding", "select", "join", "append"}
    for file, name, back in inside:
        if name in REGISTRY and Path(file).parent == PACKAGE:
            caller = back.f_code
            assert caller.co_name in {"step", "transformer", "block", "attend", "mlp", "append"}, (
                f"{caller.co_filename}:{caller.co_name} stands between the model and {name}"
            )


def test_every_line_of_attention_is_one_operation_with_a_named_result():
    tree = ast.parse(textwrap.dedent(inspect.getsource(attention.attention)))
    body = [node for node in tree.body[0].body if not isinstance(node, ast.Expr)]
    for node in body:
        assert isinstance(node, (ast.Assign, ast.Return)), ast.unparse(node)
        calls = [
            n for n in ast.walk(node)
            if isinstance(n, ast.Call) and ast.unparse(n.func) not in ("tap", "math.sqrt")
        ]  # fmt: skip
        moved = [n for n in calls if ast.unparse(n.func).endswith(("reshape", "transpose"))]
        arithmetic = [n for n in ast.walk(node) if isinstance(n, (ast.BinOp, ast.Compare))]
        arithmetic = [n for n in arithmetic if not _of_sizes(n)]
        assert len(calls) - len(moved) + len(arithmetic) <= 1, ast.unparse(node)
        assert len(node.targets if isinstance(node, ast.Assign) else [1]) == 1


def _of_sizes(node):
    """H // K, T * G, 1 / math.sqrt(E): arithmetic on sizes, not on arrays."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - {"math"}
    return all(len(name) == 1 for name in names)


NOTE = re.compile(r"^\s*(\w+(?:, \w+)*) = .*#\s*(\([\w\s*/,]*\))(?:, |;|:| |$)")


def noted_lines(module):
    """Line number -> (names, sizes), for each statement that ends in a shape note."""
    source = Path(module.__file__).read_text(encoding="utf-8").splitlines()
    found = {}
    for node in ast.walk(ast.parse("\n".join(source))):
        match = NOTE.match(source[node.end_lineno - 1]) if isinstance(node, ast.Assign) else None
        if match:
            dims = [dim.strip() for dim in match[2].strip("()").split(",") if dim.strip()]
            note = [name.strip() for name in match[1].split(",")], dims
            found.update(dict.fromkeys(range(node.lineno, node.end_lineno + 1), note))
    return found


class NoteChecker:
    """A trace function: after each noted line, hold its arrays against the note."""

    def __init__(self, modules, sizes):
        self.notes = {module.__file__: noted_lines(module) for module in modules}
        self.sizes, self.checked, self.lies, self.wide = sizes, set(), [], set()

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename not in self.notes:
            return None
        name, before = frame.f_code.co_name, frame.f_lineno

        def local(frame, event, argument):
            nonlocal before
            self.check(name, before, frame)
            before = frame.f_lineno
            return local

        return local

    def check(self, name, line, frame):
        names, dims = self.notes[frame.f_code.co_filename].get(line, ((), ()))
        sizes = self.sizes_in(name, frame.f_locals)
        for variable in names:
            value = frame.f_locals.get(variable)
            if not isinstance(value, np.ndarray) or name.endswith("_cost"):
                continue
            what = f"{Path(frame.f_code.co_filename).name}:{line} {variable}"
            wanted = tuple(eval(dim.replace("/", "//"), {}, sizes) for dim in dims)
            self.checked.add(what)
            if value.shape != wanted:
                self.lies.append(f"{what}: is {value.shape}, noted {dims} = {wanted}")
            if value.dtype == np.float64:
                self.wide.add(what)

    def sizes_in(self, name, local):
        """The letters that mean something else in an op that serves several places."""
        sizes = dict(self.sizes)
        if name in ("linear", "rms_norm"):
            sizes["T"], sizes["D"] = local["x"].shape
        if name == "linear":
            sizes["O"] = len(local["weight"])
        if name == "rope":
            sizes["N"] = local["heads"].shape[1]
        return sizes


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_every_trailing_shape_note_is_true_and_no_array_is_float64(tmp_path, T, dtype):
    shape = {"num_attention_heads": 3, "num_key_value_heads": 1}
    found, cache = one_step(write_tiny_model(tmp_path, dtype=dtype, **shape))
    c = found.config
    H, K = c.num_attention_heads, c.num_key_value_heads
    sizes = {
        "T": T, "S": 3 + T, "D": c.hidden_size, "F": c.intermediate_size, "V": c.vocab_size,
        "H": H, "K": K, "G": H // K, "E": c.head_dim, "W": c.head_dim // 2, "segments": 1, "N": 1,
    }  # fmt: skip
    checker = NoteChecker((attention, layers, mlp, model, rope), sizes)
    sys.settrace(checker)
    try:
        found.forward([7] * T, cache, last_only=True)
    finally:
        sys.settrace(None)
    assert not checker.lies
    assert not checker.wide
    assert len(checker.checked) >= 35, sorted(checker.checked)


def test_a_debugger_is_noticed_and_said_once(monkeypatch, tmp_path):
    monkeypatch.setattr(debugger, "_told", False)
    monkeypatch.delenv("MINIFER_KERNELS", raising=False)
    found = minifer.load(write_tiny_model(tmp_path, dtype="BF16"))
    assert found.table.in_use() == "numpy"
    seen = []

    def inside():
        seen.append(found.table.bind().linear.func)
        seen.append(found.table.in_use())

    with pytest.warns(minifer.MiniferWarning, match="a debugger is attached") as caught:
        Walk().runcall(inside)
    assert len(caught) == 1
    assert seen == [layers.linear, "reference"]
    assert found.table.bind().linear.func is not layers.linear


def test_coverage_and_profilers_are_no_debuggers():
    assert not debugger.debugger_attached()
    old = sys.gettrace()
    sys.settrace(lambda *event: None)
    try:
        assert not debugger.debugger_attached()
    finally:
        sys.settrace(old)
    assert isinstance(Walk(), bdb.Bdb)


def test_minifer_kernels_overrides_the_debugger_and_is_checked(monkeypatch, tmp_path):
    found = minifer.load(write_tiny_model(tmp_path))
    monkeypatch.setenv("MINIFER_KERNELS", "reference")
    assert found.table.in_use() == "reference"
    monkeypatch.setenv("MINIFER_KERNELS", "fastest")
    with pytest.raises(minifer.DeviceError, match="MINIFER_KERNELS is 'fastest'; allowed: auto"):
        found.forward([1])


@pytest.mark.default_model
def test_the_example_stops_before_a_decode_step_and_steps_into_the_model():
    """The README's first debugger session, typed by a machine."""
    script = ROOT / "examples" / "one_decode_step.py"
    typed = "b minifer.attention.attention\nc\np query.shape, key.shape\ncl 1\nc\n"
    done = subprocess.run(
        [sys.executable, str(script)],
        input=typed,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "one_decode_step.py" in done.stdout.splitlines()[0]
    assert "((1, 9, 64), (3, 6, 64))" in done.stdout, done.stdout + done.stderr
    assert "The capital of France is Paris" in done.stdout
