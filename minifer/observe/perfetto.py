"""The times of a recording as a trace, to open at ui.perfetto.dev or in chrome://tracing.

A track per request, and one for the passes outside of any. On a track slices hold one another:
request, step, pass, layer, group, op. A counter shows the KV bytes of each request.

The format is the JSON object of the Trace Event Format: M names a track, X is a slice, C a counter;
`ts` and `dur` are microseconds. A slice that crosses the end of another one would be dropped by the
trace processor, so nothing here may: times are whole nanoseconds, each rounded once.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import __version__
from ..errors import MiniferError
from ..json_file import refuse_unwritable, whole_file
from ..op import REGISTRY, Cost
from .passes import CONVENTION
from .recorder import Row, Span
from .report import EXECUTED

if TYPE_CHECKING:
    from .recorder import Receipt, Recording

# The kinds of slices, outermost first: which of two that fill the same time holds the other.
KINDS = {"request": 0, "step": 1, "pass": 2, "layer": 3, "group": 4, "op": 5}
# The process, and the track of the passes: request n is track n, and 0 would be taken for this one.
PROCESS = 10**9

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Figures(NamedTuple):
    """What a slice cost, and what is known of it."""

    cost: Cost = Cost()
    known: bool = True
    executed_known: bool = True

    def __add__(self, other: tuple) -> "Figures":
        cost, known, executed_known = other
        return Figures(
            self.cost + cost, self.known and known, self.executed_known and executed_known
        )


NOTHING = Figures()


@dataclass(slots=True, eq=False)
class Slice:
    """A stretch of one track, in nanoseconds of the recording's clock."""

    begin: int
    end: int
    kind: str
    name: str
    source: "Row | Span | Receipt | None" = None
    figures: Figures = NOTHING  # of what it holds, too
    holder: "Slice | None" = None


def write_trace(recording: "Recording", path: Path) -> None:
    """Write the recording's times to `path`, whole or not at all.

    MiniferError: a recording without times or without a pass, or a path that cannot be written.
    """
    if recording.time is None:
        raise MiniferError(
            "a trace needs times, and this recording only counted (time=None); "
            'record with minifer.record(time="op")'
        )
    tracks, dropped = lay_tracks(recording)
    if not tracks:
        raise MiniferError(
            "a trace of an empty recording: no pass ended in it; run one inside "
            f"`with minifer.record(time={recording.time!r}) as recording:`"
        )
    refuse_unwritable(path, str(path))
    clipped = 0
    for request in tracks:
        tracks[request], count = nest(tracks[request])
        clipped += count
    about = {**_about(recording), "clipped": clipped, "dropped": dropped}
    try:
        with whole_file(path) as file:
            file.write('{"displayTimeUnit":"ns","traceEvents":[')
            for place, event in enumerate(_events(recording, tracks)):
                file.write(f",\n{event}" if place else f"\n{event}")
            file.write(f'\n],"otherData":{_encode(about)}}}\n')
    except OSError as problem:
        raise MiniferError(
            f"{path}: the trace could not be written ({problem.strerror or problem})"
        ) from None


def lay_tracks(recording: "Recording") -> tuple[dict[int, list[Slice]], int]:
    """Slices by request, not yet nested, and how many ended before they began and are left out."""
    timed = [row for row in recording.rows if row.seconds is not None]
    swapped = {(row.request, row.op, row.begin) for row in timed if REGISTRY[row.op].group}
    receipts = iter(recording.steps)
    found = [
        (span.request, _of_span(span, receipts))
        for span in recording.spans
        if (span.request, span.name, span.begin) not in swapped  # it is a row as well
    ]
    found.reverse()  # of two that fill the same time the one that ended later is the outer one
    passes = {(request, one.source.begin): one for request, one in found if one.kind == "pass"}
    for row in recording.rows:
        figures = Figures(row.cost or Cost(), row.cost is not None, row.executed_known)
        if row.seconds is not None:
            one = Slice(*_bounds(row), *_called(row.op, row.scope), row, figures)
            found.append((row.request, one))
        elif held := passes.get((row.request, row.begin)):  # step mode: a share of its pass
            held.figures += figures
    tracks: dict[int, list[Slice]] = {}
    for request, one in found:
        if one.begin <= one.end:
            tracks.setdefault(request, []).append(one)
    dropped = len(found) - sum(map(len, tracks.values()))
    for request in tracks.keys() - {0}:
        begin = min(one.begin for one in tracks[request])
        end = max(one.end for one in tracks[request])
        tracks[request].insert(0, Slice(begin, end, "request", _label(request)))
    return dict(sorted(tracks.items())), dropped


def nest(slices: list[Slice]) -> tuple[list[Slice], int]:
    """Slices in order of time, each cut at the end of the one that holds it -> how many were cut.

    What a recording measures nests by itself; this holds for a clock that does not behave, too.
    """
    placed = sorted(slices, key=lambda one: (one.begin, -one.end, KINDS[one.kind]))
    around: list[Slice] = []
    cut = 0
    for one in placed:
        while around and around[-1].end <= one.begin:
            around.pop()
        if around:
            one.holder = around[-1]
            cut += one.end > one.holder.end
            one.end = min(one.end, one.holder.end)
        around.append(one)
    for one in reversed(placed):  # a holder stands before what it holds
        if one.holder is not None:
            one.holder.figures += one.figures
    return placed, cut


def _of_span(span: "Span", receipts: "Iterator[Receipt]") -> Slice:
    if span.name not in REGISTRY:  # a step: "position 38" in the scope of its phase
        name = f"{span.scope[0]}, {span.name.replace('position', 'token')}"
        return Slice(*_bounds(span), "step", name, next(receipts, None))
    return Slice(*_bounds(span), *_called(span.name, span.scope), span)


def _called(op: str, scope: tuple[str, ...]) -> tuple[str, str]:
    """An op or a group -> its kind of slice and the name of it."""
    spec = REGISTRY[op]
    if not spec.group:
        return "op", op
    if spec.is_pass:
        return "pass", "pass"
    if spec.scope is not None:
        return "layer", scope[-1].replace("layers.", "layer ")
    return "group", op


def _bounds(timed: "Row | Span") -> tuple[int, int]:
    return _nanoseconds(timed.begin), _nanoseconds(timed.begin + timed.seconds)


def _nanoseconds(clock: float) -> int:
    return round(clock * 1e9)


def _label(request: int) -> str:
    return f"request {request}" if request else "passes"


def _about(recording: "Recording") -> dict[str, Any]:
    return {
        "minifer": __version__,
        "time": recording.time,
        "convention": CONVENTION,
        "flops_per_byte": "required FLOPs per required byte: weights, KV and activations",
        "intensity": "of a step: required FLOPs per byte of weights and KV",
        "opened": sorted(recording.opened),
        "swapped": sorted(recording.swapped),
    }


def _events(recording: "Recording", tracks: dict[int, list[Slice]]) -> Iterator[str]:
    """Each event of the trace as JSON, times from the first of them on."""
    held: dict[int, list[tuple[int, int]]] = {request: [] for request in tracks}
    for request, clock, count in recording.kv_bytes:
        if request in held:
            held[request].append((_nanoseconds(clock), count))
    firsts = [placed[0].begin for placed in tracks.values()]
    start = min([*firsts, *(clock for samples in held.values() for clock, _ in samples)])
    named = {"name": f"minifer {__version__}"}
    yield _encode({"ph": "M", "name": "process_name", "pid": PROCESS, "args": named})
    for request, placed in tracks.items():
        label, where = _label(request), f'"pid":{PROCESS},"tid":{request or PROCESS}'
        yield f'{{"ph":"M","name":"thread_name",{where},"args":{{"name":"{label}"}}}}'
        yield f'{{"ph":"M","name":"thread_sort_index",{where},"args":{{"sort_index":{request}}}}}'
        for one in placed:
            yield (
                f'{{"ph":"X","name":{_encode(one.name)},"cat":"{one.kind}",{where},'
                f'"ts":{_microseconds(one.begin - start)},'
                f'"dur":{_microseconds(one.end - one.begin)},"args":{_encode(_args(one))}}}'
            )
        samples, end = held[request], max(one.end for one in placed)
        if samples and samples[-1][0] < end:  # viewers draw a counter up to its last sample
            samples.append((end, samples[-1][1]))
        for clock, count in samples:
            ts = _microseconds(clock - start)
            yield f'{{"ph":"C","name":"{label}",{where},"ts":{ts},"args":{{"KV bytes":{count}}}}}'


def _microseconds(nanoseconds: int) -> str:
    """The exact decimal number: a float would do for some days only."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _args(one: Slice) -> dict[str, Any]:
    """What a click on the slice shows; null is what nobody can know."""
    cost, known, executed_known = one.figures
    args = cost._asdict()
    moved = cost.required_bytes
    args["flops_per_byte"] = cost.flops / moved if moved else None
    if not known:
        args = dict.fromkeys(args)
    elif not executed_known:
        args |= dict.fromkeys(EXECUTED)
    source = one.source
    if one.kind == "step" and source is not None:
        args |= source._asdict()
    elif isinstance(source, Row):
        args["kernels"] = source.kind
    elif isinstance(source, Span):
        args["op"] = source.name
    return args
