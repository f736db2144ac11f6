"""The golden Llama cases (make_llama.py makes them): how tests open and compare them."""

from pathlib import Path

import numpy as np

import minifer
from minifer.backend.on_numpy import open_backend
from minifer.checkpoint import open_checkpoint
from minifer.load import read_model_config, take_weights
from minifer.model import Model

FOLDER = Path(__file__).parent / "llama"
CASES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
KERNELS = ("reference", "auto")


def open_case(name, kernels="auto"):
    """-> (model, reference: a dict of arrays)."""
    with np.load(FOLDER / name / "reference.npz") as stored:
        reference = dict(stored)
    return minifer.load(FOLDER / name, kernels=kernels), reference


def parts_of(name):
    """-> (config, canonical weights), to build a model that differs in one thing."""
    config, family = read_model_config(FOLDER / name)
    weights = take_weights(open_checkpoint(FOLDER / name), config, family, FOLDER / name)
    return config, {key: weight.words for key, weight in weights.items()}


def build(config, weights):
    return Model(config, weights, open_backend("cpu"), kernels="reference")


def deviation(logits, reference):
    """The largest difference, in units of the tolerance: at most 1 passes (design: Numerics)."""
    assert logits.shape == reference.shape
    assert logits.dtype == np.float32
    tolerance = 2e-5 * max(5.0, float(np.abs(reference).max()))
    return float(np.abs(logits - reference).max()) / tolerance


def in_chunks(model, ids, sizes):
    """Run a sequence through one cache; the last size repeats -> logits of all rows (T, V)."""
    cache, rows, begin = model.new_cache(len(ids)), [], 0
    sizes = list(sizes)
    while begin < len(ids):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        rows.append(model.forward(ids[begin : begin + size], cache))
        begin += size
    assert cache.token_ids == list(ids)
    return np.concatenate(rows)
