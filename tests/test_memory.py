"""Weights are mapped, not copied: measured in processes of their own."""

import sys
from pathlib import Path

import numpy as np
import pytest

import minifer

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
import memory

needs_smaps = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc, which only Linux has"
)


@needs_smaps
@pytest.mark.default_model
@pytest.mark.parametrize("dtype", ["", "bfloat16"])
def test_no_process_holds_a_second_copy_of_the_weights(dtype):
    weights = memory.weight_mb(dtype)
    one, two = memory.measure(1, dtype), memory.measure(2, dtype)
    before = one["imported"][0]["Anonymous"]
    for moment in ("loaded", "one token", "eight tokens"):
        grown = one[moment][0]["Anonymous"] - before
        assert grown < 0.4 * weights, f"{moment}: {grown:.0f} MB of its own, weights {weights:.0f}"
    loaded, used = one["loaded"][0]["Rss"], one["one token"][0]["Rss"]
    assert loaded - one["imported"][0]["Rss"] < 0.4 * weights, "loading reads no weights"
    assert used - loaded > 0.8 * weights, "a token reads all of them: the measure works"
    both = sum(process["Pss"] for process in two["one token"])
    assert both < used + 0.6 * weights, "two processes share one copy of the pages"


@pytest.mark.default_model
def test_every_weight_is_a_view_of_the_mapped_file():
    import mmap

    model = minifer.load("default", offline=True)
    arrays = [model.embedding, model.final_norm, *(w for layer in model.layers for w in layer)]
    for array in arrays:
        if array is None:
            continue
        root = array
        while isinstance(root, np.ndarray):
            root = root.base
        assert isinstance(root.obj if isinstance(root, memoryview) else root, mmap.mmap)
        assert not array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned
    assert model.head is model.embedding, "a tied head is the same array"
