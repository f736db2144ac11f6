"""Memory of one and of two processes with the default model, at four moments (Linux).

    python tests/benchmarks/memory.py

Rss counts every resident page, shared or not; Pss divides a shared page among those who map it;
anonymous pages are a process's own: a second copy of the weights would have to be there.
"""

import json
import subprocess
import sys
from pathlib import Path

MOMENTS = ("imported", "loaded", "one token", "eight tokens")
CHILD = """
import sys
import numpy, minifer, minifer.decoding, minifer.tokenizer
def moment(name):
    print(name, flush=True)
    sys.stdin.readline()
moment("imported")
model = minifer.load("default", dtype=sys.argv[1] or None, offline=True)
moment("loaded")
steps = minifer.generate(model, "The capital of France is", max_tokens=8, ignore_eos=True)
next(steps)
moment("one token")
list(steps)
moment("eight tokens")
"""


def read_memory(pid: int) -> dict[str, float]:
    """Rss, Pss and Anonymous of a process in 10^6 bytes."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
    read = lambda key: int(fields[key].split()[0]) * 1024 / 1e6  # noqa: E731
    return {key: read(key) for key in ("Rss", "Pss", "Anonymous")}


def start(dtype: str) -> subprocess.Popen:
    """A process that stops at each moment until it is told to go on."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, dtype],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def measure(processes: int, dtype: str = "") -> dict[str, list[dict[str, float]]]:
    """Moment -> the memory of each process, all of them standing at that moment."""
    running = [start(dtype) for _ in range(processes)]
    found = {}
    try:
        for moment in MOMENTS:
            for process in running:
                if process.stdout.readline().strip() != moment:
                    raise RuntimeError(f"a process ended before the moment {moment!r}")
            found[moment] = [read_memory(process.pid) for process in running]
            for process in running:
                process.stdin.write("\n")
                process.stdin.flush()
    finally:
        for process in running:
            process.kill()
            process.communicate()
    return found


def weight_mb(dtype: str = "") -> float:
    """The weight file's size in 10^6 bytes."""
    from minifer.fetch import default_folder

    folder = default_folder(dtype or None, offline=True)
    return (folder / "model.safetensors").stat().st_size / 1e6


def main() -> int:
    """Print the table, or the figures as JSON with --json."""
    if not Path("/proc/self/smaps_rollup").exists():
        print("this needs Linux: /proc/self/smaps_rollup is not here", file=sys.stderr)
        return 1
    one, two = measure(1), measure(2)
    if "--json" in sys.argv:
        print(json.dumps({"weight_mb": weight_mb(), "one": one, "two": two}))
        return 0
    print(f"weights {weight_mb():.0f} MB (float32, mapped); all figures in 10^6 bytes")
    print(
        f"{'moment':<14}{'Rss':>8}{'Pss':>8}{'anonymous':>12}   two processes: sum of Pss, of Rss"
    )
    for moment in MOMENTS:
        (alone,), both = one[moment], two[moment]
        pss, rss = (sum(process[key] for process in both) for key in ("Pss", "Rss"))
        print(
            f"{moment:<14}{alone['Rss']:>8.0f}{alone['Pss']:>8.0f}{alone['Anonymous']:>12.0f}"
            f"{pss:>31.0f}{rss:>8.0f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
