"""One prefill pass and one decode step, statement by statement: `walk(model, token_ids)`.

A first run counts, on the arrays of counting.py, and looks at what each statement made. Further
runs only take the time, with the same tracer on plain arrays; passes without it, in turn, show what
tracing adds. walk_text.py and walk_html.py show the result.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ..checks import check_ids, check_whole_number
from ..errors import ContextError, MiniferError
from ..model import Model
from ..op import RECORDING
from .counting import count
from .walk_source import Function, watched_functions
from .walk_trace import Figures, Look, Place, Share, Tracer, tracing

PHASES = ("prefill", "decode")
LONGEST = 512  # tokens of a prefill pass: what generate runs at once


@dataclass
class Phase:
    """One pass: its statements, and how long it took without and with a tracer."""

    name: str
    tokens: int  # T
    visible: int  # S
    figures: dict[Place, Figures]
    plain_seconds: float
    traced_seconds: float

    @property
    def total(self) -> Share:
        """All statements together."""
        found = Share()
        for figures in self.figures.values():
            found += figures.own
        return found

    def hottest(self, count: int = 5) -> list[Place]:
        """The statements that take most time themselves."""
        return sorted(self.figures, key=lambda place: -self.figures[place].own.seconds)[:count]


class Walk(NamedTuple):
    """The functions in the order in which the prompt met them, and both phases."""

    functions: list[Function]
    phases: dict[str, Phase]
    prompt_token_ids: list[int]
    decoded_token_id: int  # what prefill gave and the decode step was fed
    layers: int
    layer: int | None  # the only one looked into
    repeats: int

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data, times in milliseconds."""
        phases = {name: _phase_json(phase) for name, phase in self.phases.items()}
        functions = [_function_json(function, self.phases) for function in self.functions]
        kept = ("prompt_token_ids", "decoded_token_id", "layers", "layer", "repeats")
        return {
            **{name: getattr(self, name) for name in kept},
            "phases": phases,
            "functions": functions,
        }


def walk(
    model: Model, token_ids: Sequence[int], layer: int | None = None, repeats: int = 3
) -> Walk:
    """Run a prompt of up to 512 tokens and one more token, and say what every statement did.

    The model has to be loaded with kernels="reference" and be free of hooks and swaps. `layer`
    looks into one layer alone, else all are added up. Seconds are medians of `repeats` runs.
    Raises ContextError, MiniferError.
    """
    ids = list(check_ids(token_ids, model.config.vocab_size))
    _refuse(model, ids, layer, repeats)
    functions, clock = watched_functions(), model.backend.clock
    looks: list[Look] = []

    def look(run: Callable[[], Any]) -> Any:
        looks.append(Look(functions, layer, clock))
        with count(looks[-1].work), tracing(looks[-1]):
            return run()

    plain, traced = [], []
    token = RECORDING.set(None)  # somebody else's recording is not about these passes
    try:
        decoded = _two_passes(model, ids, look)
        for _ in range(repeats):
            plain.append(_timed(model, ids, lambda: None))
            traced.append(_timed(model, ids, lambda: Tracer(functions, layer, clock)))
    finally:
        RECORDING.reset(token)
    phases = {}
    for place, name in enumerate(PHASES):
        new = len(ids) if name == "prefill" else 1
        figures = _merge(looks[place], [run[place][1] for run in traced])
        without, with_it = (median(run[place][0] for run in runs) for runs in (plain, traced))
        phases[name] = Phase(name, new, len(ids) + place, figures, without, with_it)
    by_name = {function.name: function for function in functions}
    met = [by_name[name] for name in dict.fromkeys(name for name, _ in looks[0].entered)]
    return Walk(met, phases, ids, decoded, len(model.layers), layer, repeats)


def refuse_no_room(model: Model) -> None:
    """Raise ContextError for a context that holds no prompt and a decode step, however short."""
    if model.config.max_position_embeddings < 2:
        raise ContextError(
            "the model's context is 1 token; walk shows a prompt and a decode step after it, which "
            "take 2: walk another model, as --model default"
        )


def _refuse(model: Model, ids: list[int], layer: int | None, repeats: int) -> None:
    check_whole_number("repeats", repeats, 1, MiniferError)
    if layer is not None:
        check_whole_number("layer", layer, 0, MiniferError)
        if layer >= len(model.layers):
            last = len(model.layers) - 1
            raise MiniferError(f"layer {layer}: the model has the layers 0 to {last}")
    if model.table.kernels != "reference":
        raise MiniferError(
            f"the model's kernels are {model.table.kernels!r}, and walk shows the readable ones; "
            'load it with kernels="reference"'
        )
    if model.table.changes:
        names = ", ".join(sorted({change.name for change in model.table.changes}))
        raise MiniferError(f"hooks or swaps are in force ({names}); undo them before a walk")
    refuse_no_room(model)
    if len(ids) > LONGEST:
        raise ContextError(
            f"the prompt has {len(ids)} tokens; walk shows one pass, of at most {LONGEST}; "
            "shorten it"
        )
    context = model.config.max_position_embeddings
    if len(ids) >= context:
        raise ContextError(
            f"the prompt has {len(ids)} tokens; the model's context of {context} has no room for "
            "a decode step after it; shorten it"
        )


def _two_passes(model: Model, ids: list[int], run: Callable[[Callable[[], Any]], Any]) -> int:
    """Prefill, then decode of the likeliest token -> that token. `run` is handed each pass."""
    cache = model.new_cache(len(ids) + 1)
    logits = run(lambda: model.forward(ids, cache, last_only=True))  # (1, V)
    token_id = int(np.argmax(model.backend.to_host(logits)[0]))
    run(lambda: model.forward([token_id], cache, last_only=True))
    return token_id


def _timed(
    model: Model, ids: list[int], make: Callable[[], Tracer | None]
) -> list[tuple[float, Tracer | None]]:
    """Both passes, each under a tracer of its own or none -> seconds and that tracer."""
    found, clock = [], model.backend.clock

    def run(forward: Callable[[], Any]) -> Any:
        tracer = make()
        begin = clock()
        with tracing(tracer) if tracer else nullcontext():
            logits = forward()
        found.append((clock() - begin, tracer))
        return logits

    _two_passes(model, ids, run)
    return found


def _merge(look: Look, timed: list[Tracer]) -> dict[Place, Figures]:
    """What was seen and counted, with the median of each statement's times."""
    for place, figures in look.figures.items():
        runs = [tracer.figures[place] for tracer in timed]
        figures.own.seconds = median(run.own.seconds for run in runs)
        figures.whole.seconds = median(run.whole.seconds for run in runs)
    return look.figures


def _share_json(share: Share) -> dict[str, Any]:
    found = {name: value for name, value in vars(share).items() if name != "seconds"}
    return {"ms": 1e3 * share.seconds, **found, "intensity": share.intensity}


def _phase_json(phase: Phase) -> dict[str, Any]:
    return {
        "tokens": phase.tokens,
        "visible": phase.visible,
        "plain_ms": 1e3 * phase.plain_seconds,
        "traced_ms": 1e3 * phase.traced_seconds,
        "total": _share_json(phase.total),
        "hottest": [{"function": name, "line": line} for name, line in phase.hottest()],
    }


def _function_json(function: Function, phases: dict[str, Phase]) -> dict[str, Any]:
    """A function with its statements; a phase in which a statement did not run is left out."""
    statements = []
    for line, statement, text in function.blocks():
        if statement is None:
            continue
        found = {"line": line, "last": statement.last, "source": "\n".join(text)}
        for name, phase in phases.items():
            figures = phase.figures.get((function.name, line))
            if figures is not None:
                own, whole = _share_json(figures.own), _share_json(figures.whole)
                made = {"hits": figures.hits, "made": figures.made, "own": own, "whole": whole}
                found[name] = made
        statements.append(found)
    kept = {"name": function.name, "file": function.file, "line": function.first}
    return {**kept, "calls_ops": function.group, "statements": statements}
