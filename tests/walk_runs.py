"""What the tests of walk share: models on the reference kernels, walked once, and ways to look."""

import functools
import tempfile
from collections import Counter

from tiny_model import CONFIG, write_tiny_model

import minifer
from minifer.observe.counting import count
from minifer.observe.walk import walk

IDS, LAYERS = [5, 17, 200, 42, 9], CONFIG["num_hidden_layers"]
BIASED = {"attention_bias": True, "mlp_bias": True}
MODELS = {
    "F32": {},
    "BF16": {"dtype": "BF16"},
    "biased": BIASED,
    "biased BF16": {"dtype": "BF16", **BIASED},
}
ORDER = """Model.step lay_out rotation transformer embedding widen block rms_norm attend linear rope
KVCache.append store attention join residual mlp gate select""".split()


def load(name="F32"):
    """A fresh model on the reference kernels."""
    folder = tempfile.mkdtemp(dir=_folder().name)
    return minifer.load(write_tiny_model(folder, **MODELS[name]), kernels="reference")


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory(prefix="minifer-walk-", ignore_cleanup_errors=True)


@functools.cache
def walked(name="F32"):
    """One walk per model and session."""
    return walk(load(name), IDS, repeats=1)


def counted(model):
    """(flops, bytes) per op and phase, from a count of its own; "" is what is between ops."""
    cache, found = model.new_cache(len(IDS) + 1), {}
    feed = IDS
    for phase in ("prefill", "decode"):
        with count() as counter:
            logits = model.forward(feed, cache, last_only=True)
        sums = found[phase] = Counter()
        for row in counter.rows:
            sums[row.op, "flops"] += row.seen.executed_flops
            sums[row.op, "bytes"] += row.seen.executed_bytes
        sums["", "flops"] = counter.outside.flops
        sums["", "bytes"] = counter.outside.executed_bytes
        feed = [int(logits[0].argmax())]
    return found


def of_function(found, phase, name):
    return [f for (where, _), f in found.phases[phase].figures.items() if where == name]


def statement(found, name, text):
    """The place of the one statement of a function that begins so."""
    function = next(f for f in found.functions if f.name == name)
    (line,) = [n for n, s, lines in function.blocks() if s and lines[0].strip().startswith(text)]
    return name, line
