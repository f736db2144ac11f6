"""A run with all its results by name: what every op of a pass computed, on the host.

A name says where, which op, and which of its calls: `layers.3.attend.linear query` is the product
with that weight, `layers.3.attend.store key` what the KV cache holds of these tokens, and
`layers.3.attend` the result of a whole group.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..checks import check_ids, check_whole_number
from ..errors import ContextError
from ..op import Op, Watched
from .watching import watching

# How a person tells calls of one op in a layer apart, where no weight does.
ORDER = {
    "rope": ("query", "key"),
    "store": ("key", "value"),
    "residual": ("attended", "output"),
}
COS_SIN = ("cos", "sin")  # rotation gives two

Take = Callable[[str, np.ndarray], None]  # is handed a result's name and its next rows


class Run:
    """The results of one run by name, (T, width) each, in the order in which they came."""

    def __init__(self) -> None:
        self.parts: dict[str, list[np.ndarray]] = {}

    def take(self, name: str, array: np.ndarray) -> None:
        """The next rows of a result: chunks are put behind one another."""
        self.parts.setdefault(name, []).append(array)

    def array(self, name: str) -> np.ndarray:
        """All rows of a result."""
        parts = self.parts[name]
        if len(parts) > 1:
            end = sum(map(len, parts))
            whole = np.empty((end, parts[0].shape[1]), parts[0].dtype)
            while parts:  # each is freed once it is copied: concatenate would hold all of it twice
                part = parts.pop()
                whole[end - len(part) : end] = part
                end -= len(part)
            parts.append(whole)
        return parts[0]


class Capture:
    """Watches passes and hands each result, named, to `take(name, array)`. Opens every group."""

    per_op, opens_groups = True, True

    def __init__(self, take: Take) -> None:
        self.take = take
        self.opened: list[str] = []
        self._owner: Any = None  # the layer, or the model, whose weights are at work
        self._groups: list[str] = []
        self._used: Counter[str] = Counter()

    def run(self, watched: Watched, path: list[str], args: tuple, kwargs: dict) -> Any:
        """Run one op for the table and hand on what it computed."""
        spec = watched.spec
        if not spec.group:
            result = watched.call(*args, **kwargs)
            label, kept = self._label(spec, args, kwargs), result
            if spec.name == "store":  # it returns nothing: what counts is what is kept
                kept = spec.signature.argument("kept", args, kwargs).transpose(1, 0, 2)  # (T, K, E)
            self._hand_on(watched, [*path, *self._groups], label, kept)
            return result
        if watched.opened and spec.name not in self.opened:
            self.opened.append(spec.name)
        outer = self._owner, self._groups, self._used
        if spec.is_pass or spec.scope is not None:
            owner = "model" if spec.is_pass else "layer"
            self._owner = spec.signature.argument(owner, args, kwargs)
            self._used = Counter()
        else:
            self._groups = [*self._groups, spec.name]
        try:
            result = watched.call(*args, **kwargs)
        finally:
            self._owner, self._groups, self._used = outer
        if spec.is_pass:
            self._used = Counter()  # what lays out the next pass comes before it
        else:  # known on both sides, even where one of them had this group swapped
            self._hand_on(watched, [*path, *self._groups], spec.name, result)
        return result

    def _label(self, spec: Op, args: tuple, kwargs: dict) -> str:
        """The op, and which of its calls: by its weight, else by order."""
        weight = None
        if "weight" in spec.signature.parameters:
            weight = spec.signature.argument("weight", args, kwargs)
        label = spec.name
        for field in getattr(self._owner, "_fields", ("final_norm", "head")):
            if weight is not None and getattr(self._owner, field, None) is weight:
                label = f"{spec.name} {field}"
        place, names = self._used[label], ORDER.get(label, ())
        self._used[label] += 1
        if place < len(names):
            return f"{label} {names[place]}"
        return f"{label} {place + 1}" if place else label

    def _hand_on(self, watched: Watched, path: list[str], label: str, result: Any) -> None:
        parts = {label: result}
        if isinstance(result, tuple):
            parts = {f"{label} {name}": part for name, part in zip(COS_SIN, result, strict=False)}
        for name, value in parts.items():
            array = watched.backend.copy_to_host(value)
            self.take(".".join([*path, name]), array.reshape(len(array), -1))


def run_into(take: Take, model: Any, token_ids: Sequence[int], prefill_chunk: int = 512) -> Capture:
    """Run a prompt in chunks, all rows, and hand each result to `take`. Raises ContextError."""
    ids = check_ids(token_ids, model.config.vocab_size)
    check_whole_number("prefill_chunk", prefill_chunk, 1)
    context = model.config.max_position_embeddings
    if len(ids) > context:
        raise ContextError(
            f"the prompt has {len(ids)} tokens, the model's context holds {context}; shorten it"
        )
    cache = model.new_cache(len(ids))
    with watching(Capture(take)) as captured:
        for begin in range(0, len(ids), prefill_chunk):
            model.forward(ids[begin : begin + prefill_chunk], cache)
    return captured


def capture(model: Any, token_ids: Sequence[int], prefill_chunk: int = 512) -> Run:
    """Run a prompt and keep every result: kept_bytes(model.config, tokens) of them."""
    run = Run()
    run_into(run.take, model, token_ids, prefill_chunk)
    return run


def kept_bytes(config: Any, tokens: int) -> int:
    """Bytes of everything that a captured run keeps."""
    D, E, F = config.hidden_size, config.head_dim, config.intermediate_size
    query, key = config.num_attention_heads * E, config.num_key_value_heads * E
    layer = 9 * D + 4 * query + 5 * key + 3 * F
    return 4 * tokens * (config.num_hidden_layers * layer + E + 2 * D + config.vocab_size)


def needed_bytes(config: Any, tokens: int, chunk: int) -> int:
    """Bytes of a comparison: what the left run keeps, a KV cache, and a chunk at work."""
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * tokens
    scores = 5 * config.num_attention_heads * chunk * tokens  # as many alive at once
    return kept_bytes(config, tokens) + 4 * (cache + scores + 2 * chunk * config.vocab_size)
