"""Closed formulas equal the sum of the ops, and both the counting array, to the integer."""

import ast
import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_counting import PASSES, run
from tiny_model import tiny_model, write_tiny_model

import minifer
from minifer.errors import MiniferError
from minifer.families import llama
from minifer.observe import passes
from minifer.observe.passes import Line, pass_costs, total
from minifer.op import REGISTRY, Cost

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
CONFIGS = [
    {},
    {"tie_word_embeddings": True},
    {"attention_bias": True, "mlp_bias": True},
    {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 6, "hidden_size": 20},
    {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 6, "mlp_bias": True},
]


def by_op(counter):
    """op -> (calls, sum of what the cost functions say) of a counted pass."""
    found = {}
    for row in counter.rows:
        calls, cost = found.get(row.op, (0, Cost()))
        found[row.op] = Line(calls + 1, cost + row.cost)
    return found


@pytest.mark.parametrize("all_rows", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_pass_is_the_sum_of_its_ops(config, dtype, all_rows):
    model = tiny_model(dtype=dtype, **config)
    for shape in PASSES.values():
        _, _, counter = run(model, shape, all_rows)
        closed = pass_costs(model.config, shape, DTYPES[dtype], all_rows)
        assert closed == by_op(counter), shape
        assert not counter.disagreements()
        seen = sum((row.seen for row in counter.rows), Cost())
        assert total(closed)[1:] == seen[1:], "what NumPy was asked to do, all columns but flops"


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4),
    config=st.sampled_from(CONFIGS),
    dtype=st.sampled_from(list(DTYPES)),
    all_rows=st.booleans(),
)
def test_any_pass(shape, config, dtype, all_rows):
    model = tiny_model(dtype=dtype, **config)
    _, _, counter = run(model, shape, all_rows)
    assert pass_costs(model.config, shape, DTYPES[dtype], all_rows) == by_op(counter)


def test_a_model_of_mixed_dtypes(tmp_path):
    """Norms in float32 beside bfloat16 matrices, as many checkpoints have them."""
    from tiny_model import bfloat16_words, tiny_tensors

    from minifer.safetensors_writer import write_safetensors

    folder = write_tiny_model(tmp_path / "mixed")
    entries = []
    for name, values in tiny_tensors().items():
        norm = "norm" in name
        words = values if norm else bfloat16_words(values)
        entries.append((name, "F32" if norm else "BF16", values.shape, lambda words=words: words))
    write_safetensors(folder / "model.safetensors", entries)
    model = minifer.load(folder)
    _, _, counter = run(model, [(3, 2)])
    assert not counter.disagreements()
    stored = passes.stored_by(model)
    assert pass_costs(model.config, [(3, 2)], stored) == by_op(counter)
    assert stored.norms == 4 * passes.norm_parameters(model.config)
    assert stored.matrices == passes.stored_as(model.config, "bfloat16").matrices


@pytest.mark.parametrize("dtype", DTYPES)
def test_stored_weights_are_those_of_the_model(dtype):
    for config in CONFIGS:
        model = tiny_model(dtype=dtype, **config)
        assert passes.stored_by(model) == passes.stored_as(model.config, DTYPES[dtype])
        tensors = llama.tensors(model.config).values()
        sizes = [shape[0] * (shape[1] if len(shape) > 1 else 1) for _, shape in tensors]
        assert passes.parameters(model.config) == sum(sizes)


def test_matrix_products_are_what_is_left_without_elementwise():
    """2 FLOPs per multiply-add of linear layers and visible pairs, from the very definitions."""
    c = tiny_model().config
    for shape in PASSES.values():
        T = sum(new for new, _ in shape)
        pairs = sum(1 for new, cached in shape for q in range(new) for k in range(cached + q + 1))
        assert passes.visible_pairs(shape) == pairs
        linear = 2 * T * c.num_hidden_layers * passes.layer_matrices(c)
        head = 2 * len(shape) * c.vocab_size * c.hidden_size
        heads, width = c.num_attention_heads, c.head_dim
        products = 4 * heads * width * c.num_hidden_layers * pairs
        assert passes.matmul_flops(c, shape) == linear + head + products


def test_an_unknown_dtype_is_refused():
    with pytest.raises(MiniferError, match="dtype is 'int8'; allowed: float32, float16, bfloat16"):
        pass_costs(tiny_model().config, [(1, 0)], "int8")
    with pytest.raises(MiniferError, match=r"dtype is \['x'\]; allowed"):
        pass_costs(tiny_model().config, [(1, 0)], ["x"])


NO_PASS = [[], [(-1, 0)], [(0, 3)], [(1, -1)], [(5.5, 0)], [(1, 0), (True, 0)], [3], [(1,)], None]


@pytest.mark.parametrize("segments", [*NO_PASS, ["ab"]])
def test_segments_no_pass_has_are_refused(segments):
    for function in (pass_costs, passes.matmul_flops):
        with pytest.raises(MiniferError, match=r"^segments are .*; allowed is a list of one or mo"):
            function(tiny_model().config, segments)


def test_numpys_whole_numbers_are_taken_and_do_not_overflow():
    c, (new, cached) = tiny_model().config, (2**20, 2**30)
    found = pass_costs(c, [(np.int32(new), np.int32(cached))])
    assert found == pass_costs(c, [(new, cached)])


# Power: a formula that is a little wrong is noticed.

SHAPES = [[(11, 0)], [(1, 9)], [(2, 1), (3, 2), (1, 6)]]
# E is even, so (E + 1) // 2 is E // 2: no input can tell.
EQUIVALENT = {"pass_costs": ["E"]}
POWER = [
    ("F32", {"attention_bias": True, "mlp_bias": True, "intermediate_size": 44}),
    ("BF16", {"num_attention_heads": 6, "num_key_value_heads": 3, "mlp_bias": True,
              "attention_bias": True, "hidden_size": 20}),
    ("F16", {"num_attention_heads": 5, "num_key_value_heads": 5}),
    ("F32", {"num_attention_heads": 3, "num_key_value_heads": 1}),
]  # fmt: skip


SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult}
LETTERS = "TDHKEFVLNRSO"


class Mutant(ast.NodeTransformer):
    """Changes the n-th number, operator or size of a function."""

    def __init__(self, place):
        self.place, self.seen, self.what = place, -1, None

    def hit(self, node):
        self.seen += 1
        if self.seen == self.place:
            self.what = ast.unparse(node)
            return True
        return False

    def visit_Constant(self, node):
        if type(node.value) is int and self.hit(node):
            return ast.Constant(node.value + 1)
        return node

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if type(node.op) in SWAPS and self.hit(node):
            return ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        return node

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load) and node.id in LETTERS and self.hit(node):
            return ast.BinOp(node, ast.Add(), ast.Constant(1))
        return node

    def visit_FunctionDef(self, node):
        node.decorator_list, node.returns = [], None
        for argument in node.args.args:
            argument.annotation = None
        node.body = [self.visit(part) for part in node.body]
        return node


def mutants(function):
    """Every function that differs from this one in one place, and what was changed."""
    source = inspect.getsource(function)
    for place in range(1000):
        mutant = Mutant(place)
        tree = ast.fix_missing_locations(mutant.visit(ast.parse(source)))
        if mutant.what is None:
            return
        names = dict(vars(inspect.getmodule(function)))
        exec(compile(tree, "mutant", "exec"), names)
        yield mutant.what, names[function.__name__]
    raise AssertionError("more than 1000 places")


def counted_rows():
    """(model, shape, all_rows) of every power case."""
    for dtype, config in POWER:
        model = tiny_model(dtype=dtype, **config)
        for shape in SHAPES:
            for all_rows in (False, True):
                yield model, shape, all_rows


def hidden_flops(name, args):
    """FLOPs of pairs that are computed and then hidden, from the positions themselves."""
    if name != "attention":
        return 0
    query, _, _, query_positions, key_positions = args
    hidden = int((key_positions > query_positions[:, None]).sum())
    return query.shape[1] * hidden * (4 * query.shape[2] + 5)


COSTED = sorted(name for name, spec in REGISTRY.items() if spec.cost)


@pytest.mark.parametrize("name", COSTED)
def test_a_wrong_cost_function_is_noticed(name):
    calls = []

    def spy(*args, **kwargs):
        calls.append((args, kwargs))
        return original(*args, **kwargs)

    spec = REGISTRY[name]
    original = spec.cost
    REGISTRY[name] = spec._replace(cost=spy)
    try:
        expected = []
        for model, shape, all_rows in counted_rows():
            before, model.table.kernels = model.table.kernels, "reference"
            _, _, counter = run(model, shape, all_rows)
            model.table.kernels = before
            assert not counter.disagreements()
            expected += [row.seen for row in counter.rows if row.op == name]
    finally:
        REGISTRY[name] = spec
    assert len(calls) == len(expected) > 0
    survived = []
    for what, mutant in mutants(original):
        for (args, kwargs), seen in zip(calls, expected, strict=True):
            try:
                cost = mutant(*args, **kwargs)
            except Exception:
                break
            if cost[1:] != seen[1:] or cost.flops != seen.flops - hidden_flops(name, args):
                break
        else:
            survived.append(what)
    assert not survived


FORMULAS = [
    passes.pass_costs, passes._norms, passes._linear, passes._rope, passes._attention,
    passes._elementwise, passes._moved, passes.layer_matrices, passes.layer_biases,
    passes.matmul_parameters, passes.norm_parameters, passes.stored_as, passes.visible_pairs,
]  # fmt: skip


@pytest.fixture(scope="module")
def sums():
    """What the ops say in every power case: computed once."""
    return [
        (model.config, shape, all_rows, str(model.dtype), by_op(run(model, shape, all_rows)[2]))
        for model, shape, all_rows in counted_rows()
    ]


@pytest.mark.parametrize("function", FORMULAS, ids=lambda f: f.__name__)
def test_a_wrong_closed_formula_is_noticed(function, sums, monkeypatch):
    survived = []
    for what, mutant in mutants(function):
        monkeypatch.setattr(passes, function.__name__, mutant)
        try:
            same = all(
                passes.pass_costs(c, shape, dtype, all_rows) == ops
                for c, shape, all_rows, dtype, ops in sums
            )
        except Exception:
            same = False
        if same:
            survived.append(what)
    assert survived == EQUIVALENT.get(function.__name__, [])
