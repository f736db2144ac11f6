"""A walk as one HTML page: no script, no network, readable on a phone and in the dark."""

from html import escape
from typing import Any

from .walk import Phase, Walk
from .walk_page_style import STYLE
from .walk_source import Function
from .walk_trace import Figures
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

COLUMNS = ("ms", "hits", "MB", "MFLOP", "FLOP/B")  # a narrow screen shows the first alone


def page(found: Walk, about: dict[str, Any], names: list[str] | None = None) -> str:
    """The whole page; `names` are the functions to show, all unless given."""
    shown = [f for f in found.functions if names is None or f.name in names]
    title = "One prefill pass and one decode step"
    listed = "".join(f'<a href="#{anchor(f)}">{escape(f.name)}</a> ' for f in shown)
    hot = "".join(_hottest(found, phase, shown) for phase in found.phases.values())
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in about.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - minifer walk</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{title}, in our own source</h1>
<p class="lead">{escape(lesson(found))}</p>
{_cards(found)}
<dl>{facts}</dl>
</header>
<section>
<h2>Both passes</h2>
{_totals(found)}
</section>
<section>
<h2>Where the time goes</h2>
<div class="hot">{hot}</div>
</section>
<section>
<h2>The source, as a prompt meets it</h2>
<p class="note">{escape(legend(found))} Hover over a line, or tap it, for all its figures.</p>
<nav aria-label="Functions">{listed}</nav>
{"".join(_function(found, function) for function in shown)}
</section>
<footer><p class="note">{escape(footer(found))}</p></footer>
</main>
</body>
</html>
"""


def anchor(function: Function, line: int | None = None) -> str:
    """The id of a function, or of a line in it: one word."""
    name = "".join(c if c.isalnum() or c == "_" else "-" for c in function.name)
    return name if line is None else f"{name}-{line}"


def _cards(found: Walk) -> str:
    most = max(phase.total.intensity or 0 for phase in found.phases.values())
    cards = []
    for name, phase in found.phases.items():
        intensity = phase.total.intensity or 0
        tokens = f"{phase.tokens} token" + "s" * (phase.tokens != 1)
        share = intensity / most if most else 0
        cards.append(
            f'<div class="card {name}">{name}, {tokens}<b>{figure(intensity)}</b>'
            f'<i style="--s:{share:.1%}"></i>FLOP per executed byte</div>'
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def _totals(found: Walk) -> str:
    rows = ["<tr><td></td>" + _heads((*found.phases, "ratio")) + "</tr>"]
    for name, a, b in totals(found):
        ratio = f"{figure(a / b)}×" if b and name != VISIBLE else ""
        cells = _cells(figure(a), figure(b), ratio)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return f'<table class="totals">{"".join(rows)}</table>'


def _heads(names: tuple[str, ...]) -> str:
    return "".join(f'<th scope="col">{escape(name)}</th>' for name in names)


def _cells(*texts: str) -> str:
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def _hottest(found: Walk, phase: Phase, shown: list[Function]) -> str:
    functions, total, rows = {f.name: f for f in found.functions}, phase.total.seconds, []
    for name, line in phase.hottest():
        function, own = functions[name], phase.figures[name, line].own
        share = own.seconds / total if total else 0
        code = f"<code>{escape(one_line(function, line))}</code>"
        if function in shown:
            code = f'<a href="#{anchor(function, line)}">{code}</a>'
        said = f"{share:.1%}, {figure(1e3 * own.seconds)} ms, {function.file}:{line}"
        if own.intensity is not None:
            said += f", {figure(own.intensity)} FLOP per byte"
        rows.append(f'<li>{code}<span>{escape(said)}</span><i style="--s:{share:.1%}"></i></li>')
    return f'<div class="{phase.name}"><h3>{phase.name}</h3><ol>{"".join(rows)}</ol></div>'


def _function(found: Walk, function: Function) -> str:
    calls = " *" if function.group else ""
    place = f"{function.file}:{function.first}"
    groups = "".join(
        f'<th scope="colgroup" class="first {name}" colspan="{len(COLUMNS)}">{name}</th>'
        for name in found.phases
    )
    names = "".join(_figure_heads(name) for name in found.phases)
    rows = "".join(_row(found, function, *block) for block in function.blocks())
    return (
        f'<article><h3 id="{anchor(function)}">{escape(function.name)}{calls}'
        f"<span>{escape(place)}</span></h3>"
        f'<div class="scroll"><table class="code"><thead>'
        f'<tr class="phases"><th></th>{groups}<th class="first"></th></tr>'
        f'<tr><th scope="col">line</th>{names}'
        f'<th scope="col" class="source first">source <span class="made prefill">prefill</span> '
        f'<span class="made decode">decode</span></th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></article>\n"
    )


def _figure_heads(phase: str) -> str:
    return "".join(
        f'<th scope="col" class="{"more" if n else f"first {phase}"}">{name}</th>'
        for n, name in enumerate(COLUMNS)
    )


def _row(found: Walk, function: Function, line: int, statement: Any, text: tuple[str, ...]) -> str:
    numbers = "\n".join(str(line + n) for n in range(len(text)))
    source = "\n".join(_code(function, line + n, part) for n, part in enumerate(text))
    phases = {p.name: p.figures.get((function.name, line)) for p in found.phases.values()}
    ran = statement is not None and any(phases.values())
    cells = "".join(
        _figures(figures if ran else None, function, found.phases[name])
        for name, figures in phases.items()
    )
    head = f'<td class="no">{numbers}</td>{cells}<td class="source first">{source}'
    if not ran:
        return f'<tr class="still">{head}</td></tr>\n'
    return (
        f'<tr class="ran" tabindex="0" id="{anchor(function, line)}">{head}'
        f"{_made(phases, text[0])}{_facts(function, line, phases)}</td></tr>\n"
    )


def _figures(figures: Figures | None, function: Function, phase: Phase) -> str:
    """The cells of one phase."""
    if figures is None:
        return '<td class="first"></td>' + '<td class="more"></td>' * (len(COLUMNS) - 1)
    shown, total = figures.shown(function), phase.total.seconds
    share = min(1, shown.seconds / total) if total else 0
    moved = [shown.bytes / 1e6, shown.flops / 1e6, shown.intensity] if shown.bytes else [None] * 3
    texts = [str(figures.hits), *map(figure, moved)]
    return (
        f'<td class="first heat {phase.name}" style="--s:{share:.1%}">'
        f"{figure(1e3 * shown.seconds)}</td>"
        + "".join(f'<td class="more">{text}</td>' for text in texts)
    )


def _made(phases: dict[str, Figures | None], text: str) -> str:
    """The shapes of both phases: behind the code where they are short, else below it."""
    made = {name: made_text(figures) for name, figures in phases.items() if figures}
    made = {name: shapes for name, shapes in made.items() if shapes}
    long = sum(map(len, made.values())) > 40
    indent = len(text) - len(text.lstrip()) + 4
    before = "\n" + " " * indent if long else "  "
    return "".join(
        f'{before}<span class="made {name}">{escape(shapes)}</span>'
        for name, shapes in made.items()
    )


def _code(function: Function, number: int, text: str) -> str:
    code, comment = function.code_and_comment(number, text)
    if not comment:
        return escape(code)
    return f'{escape(code)}  <span class="comment">{escape(comment)}</span>'


def _facts(function: Function, line: int, phases: dict[str, Figures | None]) -> str:
    """All figures of one statement, for the panel that a look at it opens."""
    made = "given" if line == function.first else "made"
    rows = [(made, lambda f: unbroken(made_text(f)))]
    rows.append(("hits", lambda f: str(f.hits)))
    rows.append(("ms itself", lambda f: figure(1e3 * f.own.seconds)))
    rows.append(("ms with calls", lambda f: figure(1e3 * f.whole.seconds)))
    rows.append(("MB read", lambda f: figure(f.shown(function).bytes_read / 1e6)))
    rows.append(("MB written", lambda f: figure(f.shown(function).bytes_written / 1e6)))
    rows.append(("MFLOP", lambda f: figure(f.shown(function).flops / 1e6)))
    rows.append(("FLOP per byte", lambda f: figure(f.shown(function).intensity) or "-"))
    lines = "".join(
        f"<tr>{_cells(name, *(show(f) if f else '-' for f in phases.values()))}</tr>"
        for name, show in rows
    )
    heads = "<tr><td></td>" + _heads(tuple(phases)) + "</tr>"
    code = escape(one_line(function, line))
    return f'<div class="facts"><p>{line} {code}</p><table>{heads}{lines}</table></div>'
