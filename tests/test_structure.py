"""The shape of the source: reading order, who imports whom, sizes, what math files leave out."""

import ast
import re
from pathlib import Path

import pytest

import minifer

PACKAGE = Path(minifer.__file__).parent
ROOT = PACKAGE.parent

# The order in which a prompt meets the files; a helper stands before the file it helps.
READING_ORDER = """errors json_file
unicode_age pattern normalize pretokenize bpe added_tokens tokenizer_schema tokenizer_file
tokenizer tokenizer_library protect template_environment chat config checkpoint
op_signature op debugger op_table layers rope attention kv_cache mlp checks batch model
sampling stopping decoding""".split()
MATH = ("layers", "rope", "attention", "kv_cache", "mlp", "model", "batch")
# They refuse or guard, or name what is not ours; nobody needs them to follow a prompt.
CHECKING = {
    "checks",
    "protect",
    "errors", "json_file", "unicode_age", "pattern", "tokenizer_schema", "tokenizer_file",
    "tokenizer_library", "template_environment", "op_signature", "debugger",
}  # fmt: skip
BESIDE = {
    "__init__", "__main__", "load", "fetch", "fetch_source", "gguf", "gguf_blocks", "gguf_llama",
    "gguf_tokenizer", "hub", "safetensors_writer",
}  # fmt: skip
OUTSIDE_CORE = ("observe", "serving", "course", "cli")


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path):
    """Modules a file imports, our own as 'minifer.x', wherever the import stands."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = path.relative_to(PACKAGE).parts[: -node.level]
                base = ".".join(["minifer", *parents, *([base] if base else [])])
                if not node.module:
                    found |= {f"{base}.{alias.name}" for alias in node.names}
            found.add(base)
    return found


def test_every_core_file_stands_in_the_reading_order_or_beside_it():
    core = {path.stem for path in PACKAGE.glob("*.py")}
    assert core == set(READING_ORDER) | BESIDE


@pytest.mark.parametrize("name", READING_ORDER)
def test_a_core_file_imports_only_files_above_it(name):
    above = {f"minifer.{other}" for other in READING_ORDER[: READING_ORDER.index(name)]}
    ours = {found for found in imports(PACKAGE / f"{name}.py") if found.startswith("minifer.")}
    if name == "tokenizer":
        above.add("minifer.tokenizer_library")  # its subclass, met where a file is not ours
    assert ours <= above


def test_the_core_imports_nothing_that_watches_serves_or_prints():
    for path in [*PACKAGE.glob("*.py"), *PACKAGE.glob("backend/*.py"), *PACKAGE.glob("families/*")]:
        if path.suffix != ".py" or path.stem in ("__main__", "__init__"):
            continue
        bad = {
            i for i in imports(path) if i.startswith(tuple(f"minifer.{o}" for o in OUTSIDE_CORE))
        }
        assert not bad, f"{path.name}: {bad}"


@pytest.mark.parametrize("name", MATH)
def test_math_files_know_neither_numpy_nor_time_nor_a_device(name):
    path = PACKAGE / f"{name}.py"
    assert not imports(path) & {"numpy", "cupy", "time", "ctypes", "threading"}
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\bnp\.|\bnumpy\.|perf_counter|cuda", text)


def test_only_the_backend_may_import_cupy():
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "backend":
            assert not {i for i in imports(path) if i.split(".")[0] == "cupy"}, path.name


def test_families_hold_no_arithmetic_on_arrays():
    for path in PACKAGE.glob("families/*.py"):
        assert not imports(path) & {"numpy", "cupy"}


def source_files():
    return [p for d in ("minifer", "tests", "examples") for p in sorted((ROOT / d).rglob("*.py"))]


def test_no_file_is_longer_than_300_lines():
    long = {
        path.name: count
        for path in source_files()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 300
    }
    assert not long


def test_the_path_of_a_prompt_is_an_afternoon():
    """From tokenizer.py to decoding.py in logical lines, without what only checks files."""
    total = 0
    for name in set(READING_ORDER) - CHECKING:
        tree = tree_of(PACKAGE / f"{name}.py")
        statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
        docs = sum(
            ast.get_docstring(node) is not None
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        )
        total += statements - docs
    assert total <= 1500


def test_every_text_file_is_opened_with_an_encoding():
    for path in source_files():
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called != "open" and not called.endswith((".open", ".read_text", ".write_text")):
                continue
            text = ast.unparse(node)
            binary = re.search(r"""['"][rwax]\+?b\+?['"]""", text)
            other = re.search(r"utf-8|tarfile|GGUF|os\.open|archive\.open|self\._open", text)
            assert binary or other or "encoding=" in text, f"{path.name}:{node.lineno} {text}"


def test_public_functions_are_typed_and_say_what_they_do():
    for path in PACKAGE.rglob("*.py"):
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                where = f"{path.name}: {node.name}"
                assert ast.get_docstring(node), where
                assert node.returns is not None, where
                arguments = [*node.args.args, *node.args.kwonlyargs]
                assert all(argument.annotation for argument in arguments), where
