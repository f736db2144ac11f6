"""A walk as text: each statement with what it made and took, prefill beside decode."""

import re
import textwrap
from typing import Any, NamedTuple

from .walk import Phase, Walk
from .walk_source import Function
from .walk_trace import Figures, Place
from .walk_words import (
    VISIBLE,
    figure,
    footer,
    legend,
    lesson,
    made_text,
    one_line,
    totals,
    unbroken,
)

GUTTER = 4  # the line number; our files have less than 300
GROUP = 37  # the figures of one phase
MADE = 14  # what of it is for a shape
WIDE = 135  # from here on code and figures stand side by side
BETWEEN = "| "
FIGURES = 2 * GROUP + len(BETWEEN)
HEAD = f"{{:<{MADE}}}hits     ms    MB MFLOP"

SHAPE = re.compile(r"#\s*\([^()]*\)[:;,]?\s*")  # a shape comment; what is said after it stays


class Style(NamedTuple):
    """What the terminal can do."""

    width: int = 80
    colour: bool = False
    bars: str = " ▁▂▃▄▅▆▇█"

    def paint(self, text: str, code: str) -> str:
        """The text in a colour, where there are colours."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text.strip() else text


ASCII_BARS = " .:-=+*%#"


def render(
    found: Walk, about: dict[str, Any], names: list[str] | None = None, style: Style | None = None
) -> list[str]:
    """All lines: the summary, the functions (some of them, none for []), the hottest lines."""
    style = style or Style()
    lines = [*summary(found, about, style)]
    shown = [f for f in found.functions if names is None or f.name in names]
    if shown:
        lines += ["", *wrapped(legend(found), style)]
    for function in shown:
        lines += ["", *listing(found, function, style)]
    met = {function.name for function in found.functions}
    for name in [name for name in names or [] if name not in met]:
        lines += ["", f"{name} did not run" + " in this layer" * (found.layer is not None)]
    for phase in found.phases.values():
        lines += ["", *hottest(found, phase, style)]
    return [line.rstrip() for line in [*lines, "", *wrapped(footer(found), style)]]


def summary(found: Walk, about: dict[str, Any], style: Style) -> list[str]:
    """What ran, and both phases side by side."""
    lines = [style.paint("One prefill pass and one decode step, in our own source", "1"), ""]
    lines += wrapped("\n".join(f"{name:<9}{value}" for name, value in about.items()), style, 9)
    lines += ["", f"{'':<26}{'prefill':>10}{'decode':>10}{'ratio':>10}"]
    for name, prefill, decode in totals(found):
        ratio = f"{figure(prefill / decode)}x" if decode and name != VISIBLE else ""
        lines.append(f"{name:<26}{figure(prefill):>10}{figure(decode):>10}{ratio:>10}")
    return [*lines, "", *wrapped(lesson(found), style)]


def hottest(found: Walk, phase: Phase, style: Style) -> list[str]:
    """The five statements that take most time."""
    title = f"Most time in {phase.name} (lines alone, without what they call)"
    lines = [style.paint(f"{title:<{style.width - 22}}{'ms':>7}{'share':>7}{'FLOP/B':>8}", "1")]
    functions, total = {f.name: f for f in found.functions}, phase.total.seconds
    for name, line in phase.hottest():
        function, own = functions[name], phase.figures[name, line].own
        where = f"{function.file.rsplit('/', 1)[-1]}:{line}"
        text = cut(f"{where:<16} {one_line(function, line)}", style.width - 23)
        share = own.seconds / total if total else 0
        lines.append(
            f"{text:<{style.width - 22}}{figure(1e3 * own.seconds):>7}{share:>7.1%}"
            f"{figure(own.intensity):>8}"
        )
    return lines


def cut(text: str, width: int) -> str:
    """At most so many characters."""
    return text if len(text) <= width else text[: width - 3] + "..."


def wrapped(text: str, style: Style, indent: int = 0) -> list[str]:
    """Lines no longer than the terminal is wide, or 100."""
    width = min(style.width, 100)
    return [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(line, width, subsequent_indent=" " * indent)
    ]


def listing(found: Walk, function: Function, style: Style) -> list[str]:
    """One function: its source, and the figures under each statement or beside it."""
    star = " *" if function.group else ""
    place = f"{function.file}:{function.first}"
    left = function.name + star
    lines = [style.paint(left, "1;36") + f"{place:>{max(1, style.width - len(left))}}"]
    heads = BETWEEN.join(HEAD.format(name) for name in found.phases)
    room = style.width - GUTTER
    if style.width >= WIDE:
        room -= FIGURES + 1
    lines.append(style.paint(" " * (style.width - len(heads)) + heads, "2"))
    for line, statement, text in function.blocks():
        code = []
        for number, part in enumerate(text, line):
            code += numbered(number, part, function, room)
        figures = [phase.figures.get((function.name, line)) for phase in found.phases.values()]
        ran = statement is not None and any(figures)
        painted = [part if ran else style.paint(part, "2") for part in code]
        rows = groups(found, function, (function.name, line), style) if ran else []
        if style.width < WIDE:
            lines += [*painted, *(" " * GUTTER + row for row in rows)]
            continue
        for n in range(max(len(code), len(rows))):
            blank = style.width - FIGURES - len(code[n] if n < len(code) else "")
            left = painted[n] if n < len(code) else ""
            lines.append((left + " " * blank + rows[n]) if n < len(rows) else left)
    return lines


def numbered(number: int, text: str, function: Function, room: int) -> list[str]:
    """A line of source with its number, without its shape comment, as wide as there is room."""
    code, comment = function.code_and_comment(number, text)
    rest = SHAPE.sub("# ", comment).removesuffix("# ").strip()
    if rest and not rest.startswith("# noqa"):
        code = f"{code}  {rest}"
    indent = " " * (len(code) - len(code.lstrip()) + 4)
    parts = textwrap.wrap(
        code, room, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True
    )
    return [f"{number:>{GUTTER - 1}} {parts[0] if parts else ''}"] + [
        " " * GUTTER + part for part in parts[1:]
    ]


def groups(found: Walk, function: Function, place: Place, style: Style) -> list[str]:
    """The figures of both phases, side by side; shapes that are too long stand below."""
    columns = []
    present = [phase.figures.get(place) for phase in found.phases.values()]
    made = ["" if figures is None else made_text(figures) for figures in present]
    short = [shortened(text) for text in made]
    inline = all(len(text) <= MADE for text in short)
    for phase, figures, text, brief in zip(
        found.phases.values(), present, made, short, strict=True
    ):
        column = [" " * GROUP]
        if figures is not None:
            column = [figures_row(figures, function, phase, brief * inline, style)]
        if not inline:
            column += [style.paint(f"{part:<{GROUP}}", "2") for part in below(text)]
        columns.append(column)
    rows = max(map(len, columns))
    filled = [column + [" " * GROUP] * (rows - len(column)) for column in columns]
    return [BETWEEN.join(row) for row in zip(*filled, strict=True)]


def figures_row(figures: Figures, function: Function, phase: Phase, made: str, style: Style) -> str:
    """Shape, hits, bar, ms, MB, MFLOP."""
    shown, total = figures.shown(function), phase.total.seconds
    share = shown.seconds / total if total else 0
    level = 0 if share < 0.01 else max(1, round(8 * share))
    took = f" {style.bars[min(level, 8)]}{figure(1e3 * shown.seconds):>5}"
    if share >= 0.1:
        took = style.paint(took, "1;33")
    moved = (shown.bytes / 1e6, shown.flops / 1e6) if shown.bytes else (None, None)
    return f"{made:<{MADE}}{figures.hits:>4}{took}" + "".join(f"{figure(v):>6}" for v in moved)


def shortened(text: str) -> str:
    """One shape that is too long, without its spaces."""
    return text.replace(", ", ",") if len(text) > MADE and text.count("(") == 1 else text


def below(text: str) -> list[str]:
    """The same in lines of a group's width."""
    lines = textwrap.wrap(unbroken(text), GROUP - 1, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]
