"""What a walk says in words and figures, in a terminal and on a page alike."""

import math
import re

from .walk import Walk
from .walk_source import Function
from .walk_trace import Figures

VISIBLE = "keys visible S"


def figure(value: float | None) -> str:
    """At most five characters, three digits that say something; ~0 for less than 0.0005."""
    if value is None:
        return ""
    if isinstance(value, int) and value < 100_000:
        return str(value)
    if value == 0:
        return "0"
    if value < 0.0005:
        return "~0"
    for limit, unit in ((99_999.5, ""), (9_999_500, "k"), (math.inf, "M")):
        if value < limit:
            scaled = value / {"": 1, "k": 1e3, "M": 1e6}[unit]
            digits = 3 if scaled < 0.9995 else 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{digits}f}{unit}"
    return str(value)


def totals(found: Walk) -> list[tuple[str, float, float]]:
    """Name, prefill, decode."""
    prefill, decode = found.phases["prefill"], found.phases["decode"]
    a, b = prefill.total, decode.total
    rows = [
        ("new tokens T", prefill.tokens, decode.tokens),
        (VISIBLE, prefill.visible, decode.visible),
        ("ms, the whole pass", 1e3 * prefill.plain_seconds, 1e3 * decode.plain_seconds),
    ]
    if found.layer is not None:
        rows.append((f"ms, layer {found.layer} alone", 1e3 * a.seconds, 1e3 * b.seconds))
    else:
        rows.append(("ms per new token", rows[2][1] / prefill.tokens, rows[2][2]))
    return [
        *rows,
        ("MFLOP executed", a.flops / 1e6, b.flops / 1e6),
        ("MB read", a.bytes_read / 1e6, b.bytes_read / 1e6),
        ("MB written", a.bytes_written / 1e6, b.bytes_written / 1e6),
        ("FLOP per executed byte", a.intensity or 0, b.intensity or 0),
    ]


def lesson(found: Walk) -> str:
    """The one sentence to take away, in figures of this run."""
    a, b = (found.phases[name].total.intensity or 0 for name in ("prefill", "decode"))
    tokens = found.phases["prefill"].tokens
    if tokens == 1 or not b:
        return "A prompt of one token: prefill does the work of a decode step. Try a longer one."
    return (
        f"The same lines compute {figure(a / b)} times as much per byte they move in prefill as "
        f"in decode: there the weights of a layer are read once for {tokens} tokens, here for one."
    )


def legend(found: Walk) -> str:
    """How to read the listing."""
    which = f"layer {found.layer} alone" if found.layer is not None else "all layers added up"
    return (
        f"Of each statement, {which}: the shape of what it made (of a def: of what it was given; "
        "+2: and two others), how often it ran, ms with a bar for its share of all, MB read "
        "and written, MFLOP. Blank: nothing was moved. A function marked * calls ops: its lines "
        "hold what they call; all other lines what they do themselves. Bytes and FLOPs are "
        "executed ones: operands and result of every NumPy call, hidden pairs too."
    )


def footer(found: Walk) -> str:
    """How the times were taken, and what tracing did to them."""
    parts = []
    for phase in found.phases.values():
        change = phase.traced_seconds / phase.plain_seconds - 1
        sums = f"{figure(1e3 * phase.total.seconds)} ms"
        said = f"{change:+.0%}" if change > 0 else "less than these runs vary"  # it cannot help
        parts.append(f"{phase.name} by {said} (its lines add up to {sums})")
    runs = "of 1 traced run" if found.repeats == 1 else f"medians of {found.repeats} traced runs"
    return (
        f"Times of lines are {runs}. Tracing changed the time of {' and '.join(parts)}, measured "
        "against as many plain passes run in turn; the tracer's own work is left out of the lines, "
        "the passes above are plain ones."
    )


def one_line(function: Function, line: int) -> str:
    """A statement without comments and line breaks."""
    text = next(text for first, _, text in function.blocks() if first == line)
    bare = [function.code_and_comment(line + n, part)[0] for n, part in enumerate(text)]
    return " ".join(part.strip() for part in bare)


def made_by(figures: Figures) -> list[tuple[str, str]]:
    """(name, shape) of what a statement made; a number that changes says nothing."""
    found = []
    for name, times in figures.made.items():
        first, *others = times
        if name == "_" or (others and not first.startswith(("(", "["))):
            continue
        found.append((name, f"{first} +{len(others)}" if others else first))
    return found


def made_text(figures: Figures) -> str:
    """The shapes, with the names they were given where there are several, or for a number."""
    made = made_by(figures)
    named = len(made) > 1 or (made and made[0][1].isdigit())
    if not named:
        return made[0][1] if made else ""
    texts = [f"{name}={text}" if text.isdigit() else f"{name} {text}" for name, text in made]
    return (" " if all("=" in text for text in texts) else ", ").join(texts)


def unbroken(text: str) -> str:
    """Shapes with spaces at which no line is broken: each stays whole, with its name."""
    kept = re.sub(r"\([^()]*\)( [a-z]\w*)?( \+\d+)?", lambda m: m[0].replace(" ", "\xa0"), text)
    return re.sub(r"(\w) (?=[(\[])", "\\1\xa0", kept)
