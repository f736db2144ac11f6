"""Tiny Llama models of every kind against transformers: whole, in chunks, cached, side by side."""

import json

import numpy as np
import pytest
from golden.llama_cases import CASES, FOLDER, KERNELS, deviation, in_chunks, open_case

import minifer
from minifer.backend import numpy_twins

SPLITS = {
    "one by one": [1],
    "prompt, then one by one": [9, 1],
    "one, then the rest": [1, 100],
    "halves": [10, 100],
    "uneven": [3, 1, 5, 2, 1, 7, 4],
    "fives": [5],
}

every_case = pytest.mark.parametrize("name", CASES)
both_kernels = pytest.mark.parametrize("kernels", KERNELS)


@every_case
@both_kernels
def test_whole_pass(name, kernels):
    model, reference = open_case(name, kernels)
    for place in range(3):
        logits = model.forward(reference[f"ids_{place}"])
        assert deviation(logits, reference[f"logits_{place}"]) <= 1


@every_case
@both_kernels
@pytest.mark.parametrize("split", SPLITS)
def test_chunks_and_cached_decode(name, kernels, split):
    model, reference = open_case(name, kernels)
    logits = in_chunks(model, reference["ids_0"].tolist(), SPLITS[split])
    assert deviation(logits, reference["logits_0"]) <= 1


@every_case
@pytest.mark.parametrize("elements", [1, 100, 257])
def test_the_blocked_twin_with_blocks_smaller_than_the_weights(name, elements, monkeypatch):
    monkeypatch.setattr(numpy_twins, "BLOCK_ELEMENTS", elements)
    model, reference = open_case(name, "numpy")
    assert deviation(model.forward(reference["ids_0"]), reference["logits_0"]) <= 1


@every_case
def test_only_the_last_row(name):
    model, reference = open_case(name)
    last = model.forward(reference["ids_0"], last_only=True)
    assert deviation(last, reference["logits_0"][-1:]) <= 1


@every_case
@both_kernels
def test_three_sequences_side_by_side(name, kernels):
    model, reference = open_case(name, kernels)
    sequences = [reference[f"ids_{place}"].tolist() for place in range(3)]
    caches = [model.new_cache(len(ids)) for ids in sequences]
    wanted = [reference[f"logits_{place}"] for place in range(3)]

    # Ragged from the first step on: 4, 3 and 1 tokens, then a prompt among single tokens.
    done = [0, 0, 0]
    for counts in ([4, 3, 1], [1, 1, 8], [10, 1, 1], [5, 1, 2], [1, 0, 1]):
        active = [place for place in range(3) if counts[place]]
        segments = [
            minifer.Segment(sequences[p][done[p] : done[p] + counts[p]], caches[p]) for p in active
        ]
        logits = model.step(segments, all_rows=True)
        begin = 0
        for place in active:
            stop = done[place] + counts[place]
            rows = logits[begin : begin + counts[place]]
            assert deviation(rows, wanted[place][done[place] : stop]) <= 1
            begin += counts[place]
            done[place] = stop
        assert begin == len(logits)
    assert done == [21, 6, 13]


@every_case
def test_last_rows_of_segments(name):
    model, reference = open_case(name)
    sequences = [reference[f"ids_{place}"].tolist() for place in (2, 0, 1)]
    logits = model.step([minifer.Segment(ids, model.new_cache(len(ids))) for ids in sequences])
    wanted = np.stack([reference[f"logits_{place}"][-1] for place in (2, 0, 1)])
    assert deviation(logits, wanted) <= 1


@every_case
@both_kernels
@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_tokens(name, kernels, use_cache):
    model, reference = open_case(name, kernels)
    prompt, wanted = reference["ids_0"].tolist(), reference["greedy"].tolist()
    steps = minifer.generate(
        model, prompt, max_tokens=len(wanted), ignore_eos=True, use_cache=use_cache
    )
    # The generator keeps every margin far above the tolerance: all tokens have to agree.
    assert reference["margins"].min() >= 0.01
    assert [step.token_id for step in steps] == wanted


@every_case
def test_a_cache_cut_back_equals_a_fresh_one(name):
    model, reference = open_case(name)
    ids, cache = reference["ids_0"].tolist(), model.new_cache(40)
    model.forward(ids[:12] + reference["ids_1"].tolist(), cache)
    cache.truncate(12)
    assert deviation(model.forward(ids[12:], cache), reference["logits_0"][12:]) <= 1


@every_case
@both_kernels
@pytest.mark.parametrize("chunk", [600, 64])
def test_far_from_the_start(name, kernels, chunk):
    model, reference = open_case(name, kernels)
    logits = in_chunks(model, reference["far_ids"].tolist(), [chunk])
    assert deviation(logits[-4:], reference["far_logits"]) <= 1


def test_the_cases_cover_what_they_should():
    written = [json.loads((FOLDER / name / "config.json").read_text("utf-8")) for name in CASES]
    assert {"rope_parameters", "rope_scaling"} <= set().union(*written)
    models = [open_case(name)[0] for name in CASES]
    configs = [model.config for model in models]
    heads = {(c.num_attention_heads, c.num_key_value_heads) for c in configs}
    assert {H // K for H, K in heads if K > 1} >= {1, 2, 3}
    assert {H // K for H, K in heads if K == 1} >= {2, 3, 4}
    assert {model.dtype for model in models} == {"float32", "float16", "bfloat16"}
    assert {c.rope.kind for c in configs} == {"default", "linear", "llama3"}
    assert {c.tie_word_embeddings for c in configs} == {True, False}
    biases = {(c.attention_bias, c.mlp_bias) for c in configs}
    assert biases == {(False, False), (False, True), (True, False), (True, True)}
    assert any(c.head_dim * c.num_attention_heads != c.hidden_size for c in configs)


@pytest.mark.parametrize("name", ["gqa_llama3_new", "mqa_llama3_old"])
def test_all_three_bands_of_llama3_occur(name):
    model, _ = open_case(name)
    rope, E = model.config.rope, model.config.head_dim
    share = model.inverse_frequencies / rope.theta ** (-np.arange(0, E, 2) / E)
    assert share.max() == pytest.approx(1)
    assert share.min() == pytest.approx(1 / rope.factor)
    assert any(1.01 / rope.factor < s < 0.99 for s in share)
