"""Weights, KV and the peak of the activations, against buffers followed from birth to death."""

import numpy as np
import pytest
from test_counting import PASSES
from test_passes import CONFIGS, DTYPES
from tiny_model import tiny_model

import minifer
from minifer.errors import MiniferError
from minifer.observe.counting import count
from minifer.observe.inference_ledger import activation_moments, inference_ledger, measure_peak

SHAPES = {**PASSES, "long": [(60, 0)], "two long": [(60, 0), (30, 2)]}
# Shapes in which each moment is the peak once, odd as some of them are.
EXTREMES = [
    {"intermediate_size": 8, "hidden_size": 64},
    {"head_dim": 64, "hidden_size": 8},
    {"hidden_size": 200, "intermediate_size": 4, "head_dim": 2},
    {"hidden_size": 8, "intermediate_size": 900, "mlp_bias": True},
    {"hidden_size": 300, "intermediate_size": 1500},
    {"hidden_size": 320, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 600,
     "intermediate_size": 4},
    {"hidden_size": 8, "num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 64,
     "attention_bias": True, "intermediate_size": 4},
    {"hidden_size": 8, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64,
     "attention_bias": True, "intermediate_size": 4},
]  # fmt: skip


def peak(model, shape, all_rows):
    segments = segments_of(model, shape)
    with count() as counter:
        model.step(segments, all_rows)
    return counter.peak_bytes


def segments_of(model, shape):
    found = []
    for new, cached in shape:
        cache = model.new_cache(96)
        if cached:
            model.forward([5] * cached, cache)
        found.append(minifer.Segment([6] * new, cache))
    return found


def test_the_peak_is_that_of_the_buffers_alive():
    """To the integer, in every dtype; and every moment is the peak somewhere, so each is tested."""
    winners = set()
    for config in CONFIGS[:2] + EXTREMES:
        for dtype, name in (("F32", "float32"), ("BF16", "bfloat16")):
            model = tiny_model(dtype=dtype, **config)
            before, model.table.kernels = model.table.kernels, "reference"
            for shape in SHAPES.values():
                for all_rows in (False, True):
                    moments = activation_moments(model.config, shape, name, all_rows)
                    found = peak(model, shape, all_rows)
                    assert max(moments.values()) == found, (config, dtype, shape, all_rows)
                    winners.add(max(moments, key=moments.get))
            model.table.kernels = before
    assert winners == set(moments)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_the_measured_peak_is_the_formula_and_pythons_own_objects(dtype):
    """Arrays below 256 KiB: nothing is computed in place, only a few KB of objects come on top."""
    model = tiny_model(dtype=dtype, max_position_embeddings=256)
    model.table.kernels = "reference"
    segments = [minifer.Segment(list(range(100)), model.new_cache(120))]
    measure_peak(model, [minifer.Segment([1], model.new_cache(4))])  # what is made once only
    measured = measure_peak(model, segments)
    predicted = max(activation_moments(model.config, [(100, 0)], DTYPES[dtype]).values())
    model.table.kernels = "auto"
    assert predicted <= measured < predicted + 60_000
    assert predicted > 500_000


def test_measuring_leaves_tracing_as_it_was():
    import tracemalloc

    model = tiny_model()
    measure_peak(model, segments_of(model, [(3, 0)]))
    assert not tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        measure_peak(model, segments_of(model, [(3, 0)]))
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_the_ledger_adds_up_and_equals_what_is_held():
    model = tiny_model(dtype="BF16")
    ledger = inference_ledger(model.config, 20, 64, "bfloat16")
    arrays = [model.embedding, model.head, model.final_norm]
    arrays += [w for layer in model.layers for w in layer if w is not None]
    assert ledger.weights == sum(array.nbytes for array in arrays)
    assert ledger.kv_cache == model.new_cache(64).nbytes
    assert ledger.total == ledger.weights + ledger.kv_cache + ledger.peak_activations
    moments = activation_moments(model.config, [(20, 0)], "bfloat16")
    assert ledger.peak_activations == moments[ledger.peak_moment] == max(moments.values())
    table = ledger.lines()
    assert max(map(len, table)) <= 80
    assert "100.0 %" in table[4]
    with pytest.raises(MiniferError, match="dtype is 'int4'"):
        inference_ledger(model.config, 20, 64, "int4")


@pytest.mark.default_model
def test_the_default_models_prefill_takes_no_more_than_predicted():
    """Big arrays: NumPy computes into temporaries nobody names, so less is taken, not much less."""
    model = minifer.load("default", kernels="reference")
    ids = np.arange(100, 356).tolist()
    measure_peak(model, [minifer.Segment([1], model.new_cache(4))])
    measured = measure_peak(model, [minifer.Segment(ids, model.new_cache(256))])
    predicted = max(activation_moments(model.config, [(256, 0)]).values())
    assert 0.6 * predicted < measured < predicted + 300_000


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((-5, -3), "tokens is -5; allowed is a whole number from 1"),
        ((5, -3), "context is -3; allowed is a whole number from 1"),
        ((5.5, 10), "tokens is 5.5; allowed is a whole number from 1"),
        ((5, 30, "float32", -20), "cached is -20; allowed is a whole number from 0"),
        ((100, 10), "100 tokens after 0 cached need 100 places; the cache of `context` tokens has"),
        ((5, 10, "float32", 6), "5 tokens after 6 cached need 11 places"),
        ((5, 129), "context is 129; allowed are 1 to 128, the model's own"),
        ((5, 10, ["x"]), r"dtype is \['x'\]; allowed"),
    ],
)
def test_what_no_cache_holds_is_refused(asked, said):
    with pytest.raises(MiniferError, match=said):
        inference_ledger(tiny_model().config, *asked)


def test_numpys_whole_numbers_are_taken():
    config = tiny_model().config
    numpys = inference_ledger(config, np.int8(100), np.int8(127), cached=np.int8(27))
    assert numpys == inference_ledger(config, 100, 127, cached=27)
