"""What watching costs: decode steps of the default model, watched and not, in alternation.

    python tests/benchmarks/perturbation.py [--rounds 60] [--context 64] [--dtype float32] [--json]

Each round runs the same decode step once per mode, in a new order; the figure is the median over
the rounds of (watched - off) / off, with the quartiles. `off, again` is the control: the noise.
"""

import argparse
import json
import random
import statistics
import sys
import time
from contextlib import nullcontext

import minifer
from minifer.cli.report import hardware, threads
from minifer.observe.recorder import Recording
from minifer.observe.watching import watching

MODES = {"off, again": "off", "count": None, "step": "step", "op": "op"}


def one_step(model: minifer.Model, cache: minifer.KVCache, watcher: Recording | None) -> float:
    """Seconds of one decode step."""
    length = cache.length
    with watching(watcher) if watcher else nullcontext():
        begin = time.perf_counter()
        model.forward([100], cache, last_only=True)
        seconds = time.perf_counter() - begin
    cache.truncate(length)
    return seconds


def measure(model: minifer.Model, rounds: int, context: int) -> dict[str, tuple[float, ...]]:
    """mode -> quartiles of the share it adds."""
    cache = model.new_cache(context + 1)
    model.forward(list(range(100, 100 + context)), cache)
    # One recording for all steps, as a generation has it; emptied, so that no list grows long.
    watchers = {name: None if mode == "off" else Recording(mode) for name, mode in MODES.items()}
    gaps: dict[str, list[float]] = {name: [] for name in MODES}
    for _ in range(rounds + 3):
        times = {}
        order = ["off", *MODES]
        random.shuffle(order)
        for name in order:
            times[name] = one_step(model, cache, watchers.get(name))
        for watcher in filter(None, watchers.values()):
            watcher.rows.clear()
        for name in MODES:
            gaps[name].append(times[name] / times["off"] - 1)
    return {name: tuple(statistics.quantiles(found[3:])) for name, found in gaps.items()}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = minifer.load("default", dtype=args.dtype)
    found = measure(model, args.rounds, args.context)
    about = {
        "model": "SmolLM2-135M-Instruct", "dtype": args.dtype, "kernels": model.table.in_use(),
        "hardware": hardware(), "threads": threads(), "context": args.context,
        "rounds": args.rounds,
    }  # fmt: skip
    if args.json:
        print(json.dumps({**about, "added": found}))
        return 0
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    for name, (low, median, high) in found.items():
        print(f"{name:<12}{median:>+8.2%} of a decode step (quartiles {low:+.2%} to {high:+.2%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
