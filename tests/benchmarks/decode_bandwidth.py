"""Decode of the default model against the read bandwidth of this machine, in alternating rounds.

    python tests/benchmarks/decode_bandwidth.py [--rounds 7] [--tokens 12] [--json]

Each round probes the bandwidth (the best reader at hand: Numba on all threads when installed, else
NumPy's matrix-vector product) and decodes with each kind of kernels; the figure is the median over
rounds of bytes a token requires / seconds / probed bandwidth. Nothing is asserted: machines differ.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np

import minifer
from minifer.cli.report import hardware, threads

PROBE_BYTES = 1 << 29  # far beyond any last-level cache


def best_reader(rows: np.ndarray):
    """-> (name, a function that reads all of it once)."""
    vector = np.ones(rows.shape[1], np.float32)
    try:
        import numba
    except ImportError:
        return "numpy matrix-vector product", lambda: rows @ vector

    @numba.njit(parallel=True, fastmath=True)
    def read(rows, vector, out):
        for row in numba.prange(rows.shape[0]):
            total = np.float32(0)
            for column in range(rows.shape[1]):
                total += rows[row, column] * vector[column]
            out[row] = total

    out = np.empty(len(rows), np.float32)
    return "numba, all threads", lambda: read(rows, vector, out)


def probe(read) -> float:
    """Bytes per second, the best of three sweeps."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        read()
        times.append(time.perf_counter() - begin)
    return PROBE_BYTES / min(times)


def decode(model, tokens: int, context: int = 64) -> tuple[float, int]:
    """-> (median seconds per decoded token, bytes one token requires)."""
    prompt = list(range(100, 100 + context))
    steps = list(minifer.generate(model, prompt, max_tokens=tokens + 1, ignore_eos=True))
    with minifer.record() as recording:
        list(minifer.generate(model, prompt, max_tokens=2, ignore_eos=True))
    receipt = recording.steps[-1]
    required = receipt.weight_bytes + receipt.kv_bytes_read + receipt.kv_bytes_written
    return statistics.median(step.seconds for step in steps[1:]), required


def main() -> int:
    """Run the rounds and print ratios with their spread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    rows = np.ones((PROBE_BYTES // 4096, 1024), np.float32)
    name, read = best_reader(rows)
    read()  # compile, touch
    models = {
        (dtype, kernels): minifer.load("default", dtype=dtype, kernels=kernels)
        for dtype, kernels in (
            ("float32", "reference"),
            ("float32", "auto"),
            ("bfloat16", "reference"),
            ("bfloat16", "auto"),
        )
    }
    rates = []
    found = {key: [] for key in models}
    for number in range(args.rounds):
        rates.append(probe(read))
        for key, model in models.items():
            seconds, required = decode(model, args.tokens)
            found[key].append((1 / seconds, required / seconds / rates[-1]))
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    rate = statistics.median(rates) / 1e9
    setting = (
        f"SmolLM2-135M-Instruct, batch 1, context 64, {args.tokens} tokens per round, "
        f"{args.rounds} rounds, {threads()} threads, {hardware()}"
    )
    if args.json:
        rows_found = {" ".join(key): values for key, values in found.items()}
        print(json.dumps({"setting": setting, "probe": name, "rates": rates, "rows": rows_found}))
        return 0
    print(setting)
    print(f"probe: {name}: {rate:.1f} GB/s (from {min(rates) / 1e9:.1f} to {max(rates) / 1e9:.1f})")
    print(f"{'dtype':<10}{'kernels':<12}{'tok/s':>8}   share of the probed bandwidth (from, to)")
    for (dtype, kernels), values in found.items():
        speeds, shares = zip(*values, strict=True)
        print(
            f"{dtype:<10}{kernels:<12}{statistics.median(speeds):>8.1f}   "
            f"{statistics.median(shares):.2f} ({min(shares):.2f}, {max(shares):.2f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
