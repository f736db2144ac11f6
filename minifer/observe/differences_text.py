"""A comparison of two runs as lines of at most 80 columns, and as plain data."""

import math
import re
import textwrap
from typing import Any

from .differences import RULE, Difference, OpDifference

WIDTH = 80


def lines(
    found: Difference, about: dict[str, dict], opened: list[str], tokens: int, every: bool
) -> list[str]:
    """What ran, where it first differs, a row per layer or op, and what that means."""
    control = about["left"] == about["right"]
    shown = [line for name in about for line in wrapped(name, describe(about[name]))]
    if control:
        shown += wrapped("", "the same run twice, a control: every bit must be equal")
    shown += wrapped("compared", f"{counted(tokens, 'token')}, {counted(len(found.ops), 'result')}")
    for name, missing in (("left", found.only_left), ("right", found.only_right)):
        if missing:
            kinds = dict.fromkeys(re.sub(r"^layers\.\d+\.", "", op) for op in missing)
            shown += wrapped("", f"not compared, as only {name} shows it: {', '.join(kinds)}")
    if opened:
        shown += wrapped("opened", f"{', '.join(opened)}: run op by op, no twin of the whole")
    shown += [*wrapped("allowed", RULE), ""]
    shown += first("first bit that differs", found.first_bit)
    shown += first("first beyond tolerance", found.first_beyond)
    if found.equal_bits and not every:
        return [*shown, "", *wrapped("greedy", greedy(found, tokens)), *verdict(found, control)]
    header = "op or group" if every else "what differs most"
    shown += ["", f"{'layer':<8} {header:<32} {'|difference|':>13} {'of allowed':>11}"]
    shown += [
        row(place, op, every) for place, op in (found.places() if every else found.by_layer())
    ]
    return [*shown, "", *wrapped("greedy", greedy(found, tokens)), *verdict(found, control)]


def wrapped(name: str, text: str) -> list[str]:
    """A line `name  text`, and as many more as it takes."""
    start = f"{name:<10}"
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * 10)


def counted(count: int, what: str) -> str:
    """1 token, 2 tokens."""
    return f"{count:,} {what}" + "s" * (count != 1)


def describe(settings: dict[str, Any]) -> str:
    """The settings of a side in words."""
    model = settings["model"]
    shown = model if len(model) <= 60 else "..." + model[-57:]
    if "reference" in settings:
        return f"{shown}, {settings['reference']}, float32, eager, the prompt at once"
    return (
        f"{shown}, {settings['dtype']} weights, {settings['kernels']} kernels, "
        f"{settings['device']}, prefill_chunk {settings['prefill_chunk']}"
    )


def first(what: str, op: OpDifference | None) -> list[str]:
    """Where something first differs, with the two values where it differs most."""
    if op is None:
        return [f"{what:<24} none"]
    found = [f"{what:<24} {op.name}"]
    if op.problem:
        found += textwrap.wrap(op.problem, WIDTH, initial_indent="  ", subsequent_indent="  ")
    if not math.isnan(op.left) or not math.isnan(op.right):
        found += [
            f"  most at token {op.token}, element {op.element}: "
            f"left {op.left:.9g}, right {op.right:.9g}",
            f"  {op.difference:.3g} apart, {op.tolerances:.3g} of its tolerance",
        ]
    return found


def row(place: str, op: OpDifference, every: bool) -> str:
    """A row of the table; of a layer in which nothing differs no op is named."""
    name = op.name.removeprefix(f"layers.{op.layer}.") if every or op.tolerances else "nothing"
    beyond = "" if op.equal else "  beyond"
    return f"{place:<8} {name:<32} {op.difference:>13.3g} {op.tolerances:>11.3g}{beyond}"


def greedy(found: Difference, tokens: int) -> str:
    """Whether the likeliest next token is the same everywhere."""
    if not found.greedy:
        return f"the same likeliest token at {counted(tokens, 'position')} of {tokens:,}"
    position, left, right = found.greedy[0]
    return (
        f"another likeliest token at {len(found.greedy)} of {counted(tokens, 'position')}, first "
        f"at {position}: left {left}, right {right}"
    )


def verdict(found: Difference, control: bool) -> list[str]:
    """The last line: equal or different."""
    if found.equal_bits and found.equal:
        return wrapped("result", "equal, bit for bit")
    if found.first_beyond is not None:
        return wrapped("result", f"different: {found.first_beyond.name} is beyond the tolerance")
    if control and found.first_bit is not None:
        return wrapped("result", f"different: {found.first_bit.name}, which a control must not be")
    return wrapped("result", "equal within the tolerance")


def as_object(
    found: Difference, about: dict[str, dict], opened: list[str], every: bool
) -> dict[str, Any]:
    """The comparison as plain data; a number that is not finite is a text."""
    shown = {
        "equal": found.equal,
        "equal_bits": found.equal_bits,
        "control": about["left"] == about["right"],
        **about,
        "opened": opened,
        "tolerance": RULE,
        "first_bit": plain(found.first_bit),
        "first_beyond": plain(found.first_beyond),
        "layers": [{"place": place, **plain(op)} for place, op in found.by_layer()],
        "greedy_differs": found.greedy,
        "only_left": found.only_left,
        "only_right": found.only_right,
    }
    if every:
        shown["ops"] = [{"place": place, **plain(op)} for place, op in found.places()]
    return shown


def plain(op: OpDifference | None) -> dict[str, Any] | None:
    """One result as plain data."""
    if op is None:
        return None
    shown = {**op._asdict(), "equal": op.equal}
    for key, value in shown.items():
        if isinstance(value, float) and not math.isfinite(value):
            shown[key] = str(value)
    return shown
