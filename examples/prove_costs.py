"""Hold every cost function against what NumPy is really asked to do, on the default model.

    python examples/prove_costs.py [MODEL_FOLDER]

Each op of a prefill, a chunk and a decode step runs on counting arrays (observe/counting.py). A
row says how often the op ran, what was counted, and whether its cost function said the same.
"""

import sys
from collections import defaultdict

import minifer
from minifer.observe.counting import count
from minifer.observe.passes import pass_costs, stored_by, total
from minifer.op import Cost

HEAD = f"{'op':<11}{'calls':>6}{'NumPy':>7}{'MFLOP':>10}{'weight MB':>11}{'KV MB':>8}{'MB':>10}"


def show(model: minifer.Model, title: str, tokens: int, cache: minifer.KVCache) -> bool:
    """Count one pass and print a row per op -> whether everything agrees."""
    cached = cache.length
    with count() as counted:
        model.forward(list(range(100, 100 + tokens)), cache, last_only=True)
    print(f"\n{title}: {tokens} new tokens after {cached}\n{HEAD}  cost function")
    ops = defaultdict(list)
    for row in counted.rows:
        ops[row.op].append(row)
    for name, rows in ops.items():
        seen = sum((row.seen for row in rows), Cost())
        wrong = sorted({column for row in rows for column in row.differs})
        print(
            f"{name:<11}{len(rows):>6}{sum(row.calls for row in rows):>7}"
            f"{seen.executed_flops / 1e6:>10.3f}{seen.weight_bytes / 1e6:>11.3f}"
            f"{(seen.kv_bytes_read + seen.kv_bytes_written) / 1e6:>8.3f}"
            f"{seen.executed_bytes / 1e6:>10.3f}  "
            + ("the same" if not wrong else f"something else: {', '.join(wrong)}")
        )
    seen = sum((row.seen for row in counted.rows), Cost())
    closed = total(pass_costs(model.config, [(tokens, cached)], stored_by(model)))
    equal = closed[1:] == seen[1:]  # all but flops: an array cannot tell which pairs are hidden
    print(f"closed formulas of the pass: {'the same' if equal else f'{closed} against {seen}'}")
    print(f"between the ops: {counted.outside.calls} NumPy calls that move or compute anything")
    print(f"most alive at once: {counted.peak_bytes / 1e6:.3f} MB of arrays the pass made")
    return not counted.disagreements() and equal and not counted.outside.calls


def main() -> int:
    """Three passes; the exit code is 0 when everything agrees."""
    model = minifer.load(sys.argv[1] if sys.argv[1:] else "default", kernels="reference")
    cache = model.new_cache(64)
    print(
        f"{model.name}, weights in {model.dtype}; MFLOP and MB are executed: all pairs, all calls"
    )
    agree = True
    for title, tokens in (("prefill", 24), ("chunk", 8), ("decode", 1)):
        agree &= show(model, title, tokens, cache)
    print(f"\neverything agrees, to the integer: {agree}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
