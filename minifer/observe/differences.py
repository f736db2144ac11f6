"""Where two runs part: each result of one run held against the other's, in the order computed.

`capture` runs a prompt and names all results; `compare` says by how much two runs differ:

    left = capture(model, ids)
    with model.swap(rope=mine):
        found = compare(left, capture(model, ids))
    print(found.first_beyond.name)                          # layers.0.attend.rope query

The tolerance. Logits: 2e-5 * max(5, largest |logit|), as design.md has it. Any other result: a row
(one token) is held to 5e-5 * the largest of its own |values|, or of all its array's if that is
more, but then of at most 8 times the (lower) median row's. All of them are the left run's.
Why not one rule: a floor of 5 hides small faults where values are about 1 (an epsilon of 1e-6 for
1e-5 gives 7 of its units instead of 26), and the first token of the default model reaches 25,000,
where the maximum of the array would excuse a residual stream that is wrong by 0.5 at all others.
Measured on that model (chunks of 1, 3, 7 and all, bfloat16, transformers): runs that should be
equal reach 0.4 of the tolerance on texts of 1 to 800 tokens and 0.6 on one token repeated; that
epsilon is 10 times beyond it, rope's theta off by 1 % 211 times, a key weight off by 10 % 7 times
(none where its input is small: there only the first bit tells). Ids drawn at random are no text:
on them the model magnifies rounding, in the logits too, beyond any such rule.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from ..errors import MiniferError
from .capture import Run

LOGITS = "linear head"
RULE = (
    "logits 2e-5 * max(5, largest |logit|); others, token by token, 5e-5 * largest |value| of its "
    "row, or of all rows where that is more, but at most of 8 times the median row's; by left's"
)
ROWS_AT_ONCE = 64  # a difference of all logits would be as large as the logits


class OpDifference(NamedTuple):
    """One result of both runs: whether its bits are equal, and where it differs most."""

    name: str
    equal_bits: bool
    tolerances: float  # the largest difference in units of what is allowed in its row
    difference: float  # that |left - right|
    token: int  # its row
    element: int
    left: float
    right: float
    problem: str | None  # shapes that differ, values that are not finite

    @property
    def equal(self) -> bool:
        """Within the tolerance."""
        return self.tolerances <= 1

    @property
    def layer(self) -> int | None:
        """None for what stands before and after the layers."""
        parts = self.name.split(".")
        return int(parts[1]) if parts[0] == "layers" else None


class Difference(NamedTuple):
    """Two runs, result by result in the order of the left one."""

    ops: list[OpDifference]
    only_left: list[str]  # results that one run alone shows are not compared
    only_right: list[str]
    greedy: list[tuple[int, int, int]]  # (position, left, right) where the likeliest token differs

    @property
    def equal(self) -> bool:
        """Every result within the tolerance."""
        return all(op.equal for op in self.ops)

    @property
    def equal_bits(self) -> bool:
        """Every result the same bit for bit."""
        return all(op.equal_bits for op in self.ops)

    @property
    def first_bit(self) -> OpDifference | None:
        """The first result with a bit that differs."""
        return next((op for op in self.ops if not op.equal_bits), None)

    @property
    def first_beyond(self) -> OpDifference | None:
        """The first result that differs by more than the tolerance."""
        return next((op for op in self.ops if not op.equal), None)

    def by_layer(self) -> list[tuple[str, OpDifference]]:
        """What differs most in each layer, before and after them, and in the logits."""
        found: dict[str, OpDifference] = {}
        for place, op in self.places():
            if place not in found or op.tolerances > found[place].tolerances:
                found[place] = op
        return list(found.items())

    def places(self) -> list[tuple[str, OpDifference]]:
        """Each result and where it stands: "before", a layer's number, "after" or "logits"."""
        outside, found = "before", []
        for op in self.ops:
            if op.layer is not None:
                outside = "after"
            place = outside if op.layer is None else str(op.layer)
            found.append(("logits" if op.name == LOGITS else place, op))
        return found


class Comparison:
    """Takes the results of the right run one by one: they need not be kept."""

    def __init__(self, left: Run) -> None:
        self.left = left
        self.worst: dict[str, OpDifference] = {}
        self.rows: Counter[str] = Counter()
        self.widths: dict[str, set[int]] = {}
        self.not_finite: dict[str, Counter[str]] = {}
        self.greedy: list[tuple[int, int, int]] = []
        self._allowed: dict[str, np.ndarray] = {}

    def take(self, name: str, array: np.ndarray) -> None:
        """The next rows of a result of the right run."""
        begin = self.rows[name]
        self.rows[name] += len(array)
        self.widths.setdefault(name, set()).add(array.shape[1])
        if name not in self.left.parts:
            return
        left = self.left.array(name)
        if array.shape[1] != left.shape[1] or begin + len(array) > len(left):
            return  # named at the end, when its whole shape is known
        if name not in self._allowed:
            self._allowed[name] = allowed(name, left)
        for row in range(begin, begin + len(array), ROWS_AT_ONCE):
            part = array[row - begin : row - begin + ROWS_AT_ONCE]
            self._compare(name, row, left[row : row + len(part)], part)

    def _compare(self, name: str, begin: int, left: np.ndarray, right: np.ndarray) -> None:
        finite = np.isfinite(left), np.isfinite(right)
        counts = self.not_finite.setdefault(name, Counter())
        counts.update(left=int((~finite[0]).sum()), right=int((~finite[1]).sum()))
        with np.errstate(over="ignore", invalid="ignore"):
            apart = np.where(finite[0] & finite[1], np.abs(left - right), np.inf)  # (rows, width)
        limit = self._allowed[name][begin : begin + len(left), None]
        units = np.where(apart == 0, 0.0, apart / np.maximum(limit, 1e-300))
        row, element = np.unravel_index(units.argmax(), units.shape)
        same = left.dtype == right.dtype and left.tobytes() == right.tobytes()
        values = float(left[row, element]), float(right[row, element])
        found = OpDifference(
            name, same, float(units[row, element]), float(apart[row, element]),
            begin + int(row), int(element), *values, None,
        )  # fmt: skip
        before = self.worst.get(name)
        if before is not None:
            same = same and before.equal_bits
            found = found if found.tolerances > before.tolerances else before
        self.worst[name] = found._replace(equal_bits=same)
        if name == LOGITS:
            likeliest = zip(left.argmax(axis=1), right.argmax(axis=1), strict=True)
            for place, (one, other) in enumerate(likeliest):
                if one != other:
                    self.greedy.append((begin + place, int(one), int(other)))

    def result(self) -> Difference:
        """What was found. Raises MiniferError when the runs have no result in common."""
        common = [name for name in self.left.parts if name in self.rows]
        if not common:
            raise MiniferError("the two runs have no result in common: nothing was compared")
        return Difference(
            [self._whole(name) for name in common],
            [name for name in self.left.parts if name not in self.rows],
            [name for name in self.rows if name not in self.left.parts],
            self.greedy,
        )

    def _whole(self, name: str) -> OpDifference:
        shape, widths = self.left.array(name).shape, sorted(self.widths[name])
        if (self.rows[name], *widths) != shape:
            right = f"({self.rows[name]}, {' or '.join(map(str, widths))})"
            problem, nan = f"shape {shape} against {right}", float("nan")
            return OpDifference(name, False, np.inf, np.inf, 0, 0, nan, nan, problem)
        bad = self.not_finite[name]
        problem = f"values that are not finite: left {bad['left']}, right {bad['right']}"
        return self.worst[name]._replace(problem=problem if any(bad.values()) else None)


def allowed(name: str, left: np.ndarray) -> np.ndarray:
    """The tolerance of each row (T,) of a result, from the left run's values (T, width)."""
    blocks = (left[row : row + ROWS_AT_ONCE] for row in range(0, len(left), ROWS_AT_ONCE))
    rows = np.concatenate(
        [np.where(np.isfinite(block), np.abs(block), 0).max(axis=1) for block in blocks]
    ).astype(np.float64)
    if name == LOGITS:
        return np.full_like(rows, 2e-5 * max(5, rows.max()))
    usual = np.sort(rows)[(len(rows) - 1) // 2]
    return 5e-5 * np.maximum(rows, min(rows.max(), 8 * usual))


def compare(left: Run, right: Run) -> Difference:
    """Hold a run against another, result by result. Raises MiniferError if they share none."""
    comparison = Comparison(left)
    for name in right.parts:
        comparison.take(name, right.array(name))
    return comparison.result()
