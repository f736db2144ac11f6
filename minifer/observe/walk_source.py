"""The functions a pass runs, as text: which lines make up a statement, and which names it sets."""

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from ..batch import lay_out
from ..errors import MiniferError
from ..kv_cache import KVCache
from ..layers import widen
from ..model import Model
from ..op import REGISTRY

ROOT = Path(__file__).resolve().parents[2]

# What a pass runs besides its ops. The first three call ops, as a group does; ops call the last.
CALLERS, HELPERS = (Model.step, lay_out, KVCache.append), (widen,)


class Statement(NamedTuple):
    """One statement, of a compound one its head alone. The first of a function is its `def`."""

    first: int
    last: int
    names: tuple[str, ...]  # that it sets; of a `def` its parameters


class Function(NamedTuple):
    """One function as it stands in its file."""

    name: str
    file: str  # "minifer/attention.py"
    lines: tuple[str, ...]  # from `def` on, without the indentation all of them share
    statements: tuple[Statement, ...]
    comments: dict[int, int]  # line -> column, of comments after code
    group: bool  # it calls ops
    scope: str | None  # the parameter that counts layers
    code: CodeType

    @property
    def first(self) -> int:
        """The line of its `def`."""
        return self.statements[0].first

    def statement_of(self) -> dict[int, int]:
        """Line -> first line of the statement it belongs to."""
        return {
            line: found.first
            for found in self.statements
            for line in range(found.first, found.last + 1)
        }

    def code_and_comment(self, line: int, text: str) -> tuple[str, str]:
        """One line of the source in two parts, either of which may be empty."""
        column = self.comments.get(line, len(text))
        return text[:column].rstrip(), text[column:]

    def blocks(self) -> Iterator[tuple[int, Statement | None, tuple[str, ...]]]:
        """First line, statement, text: all of the function, statement by statement.

        What is no statement (docstring, comment, blank line, `else:`) comes line by line.
        """
        begins = {found.first: found for found in self.statements}
        line = self.first
        while line < self.first + len(self.lines):
            found = begins.get(line)
            end = found.last + 1 if found else line + 1
            yield line, found, self.lines[line - self.first : end - self.first]
            line = end


def watched_functions() -> list[Function]:
    """Every function of a pass that is shown. Raises MiniferError where there is no source.

    An op whose own source is not to be had counts on the line that calls it.
    """
    given = [(function, True, None) for function in CALLERS]
    given += [(function, False, None) for function in HELPERS]
    given += [(spec.reference, spec.group, spec.scope) for spec in REGISTRY.values()]
    found = [read_function(*what) for what in given]
    if found[0] is None:
        raise MiniferError(
            f"{inspect.getfile(Model)}: the source is not here, and walk shows it; "
            "install minifer from its repository: pip install -e ."
        )
    return [function for function in found if function is not None]


def read_function(function: Callable, group: bool, scope: str | None) -> Function | None:
    """A function and its statements; None where its source is not to be had."""
    try:
        source, begin = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return None
    text = textwrap.dedent("".join(source))
    tree = ast.parse(text)
    ast.increment_lineno(tree, begin - 1)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    path = Path(inspect.getfile(function)).resolve()
    return Function(
        function.__qualname__.replace("<locals>.", ""),
        path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path),
        tuple(text.splitlines()[definition.lineno - begin :]),
        (_head(definition), *_statements(definition.body)),
        _comments(text, begin),
        group,
        scope,
        function.__code__,
    )


def _head(definition: ast.FunctionDef) -> Statement:
    given = definition.args
    names = tuple(part.arg for part in (*given.posonlyargs, *given.args, *given.kwonlyargs))
    last = max(definition.lineno, definition.body[0].lineno - 1)
    return Statement(definition.lineno, last, names)


def _statements(body: list) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        # Of `if`, `for`, `while` the head alone: what they hold are statements of their own.
        inner = [part for name in ("body", "orelse") for part in getattr(node, name, [])]
        heads = [getattr(node, name, None) for name in ("test", "iter")]
        ends = [head.end_lineno for head in heads if head is not None] if inner else []
        last = ends[0] if ends else node.lineno if inner else node.end_lineno
        yield Statement(node.lineno, last, _names(node))
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield from _statements(inner)


def _names(node: ast.stmt) -> tuple[str, ...]:
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    named = [part for target in targets if target is not None for part in ast.walk(target)]
    found = [p.id for p in named if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)]
    return tuple(dict.fromkeys(found))


def _comments(text: str, begin: int) -> dict[int, int]:
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line, column = token.start
        if token.type == tokenize.COMMENT and token.line[:column].strip():
            found[line + begin - 1] = column
    return found
