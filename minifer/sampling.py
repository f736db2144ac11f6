"""From logits to a token: one function per filter, on the host, in float64.

Filters apply in the order penalty, temperature, top-k, top-p, min-p, as in transformers. A filter
takes scores (V,) and gives scores (V,); what it drops becomes -inf.
"""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checks import check_whole_number, whole_number
from .errors import SamplingError


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. The default is greedy: the likeliest, lowest id first.

    temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off;
    seed None draws a fresh one per call. Raises SamplingError for an option out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        number, whole = is_number, lambda value: whole_number(value, 0) is not None
        for name, good, allowed in (
            ("temperature", number(self.temperature) and self.temperature >= 0, "a number from 0"),
            ("top_k", whole(self.top_k), "a whole number from 0 (0 is off)"),
            ("top_p", number(self.top_p) and 0 < self.top_p <= 1, "above 0, up to 1 (1 is off)"),
            ("min_p", number(self.min_p) and 0 <= self.min_p <= 1, "from 0 (off) to 1"),
            (
                "repetition_penalty",
                number(self.repetition_penalty) and self.repetition_penalty > 0,
                "a number above 0 (1 is off)",
            ),
            (
                "seed",
                self.seed is None or (whole(self.seed) and self.seed < 2**64),
                "None or a whole number from 0 to 2**64 - 1",
            ),
        ):
            if not good:
                raise SamplingError(f"{name} is {getattr(self, name)!r}; allowed is {allowed}")


def is_number(value: Any) -> bool:
    """A finite real number, Python's or NumPy's; True and False are none."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # 10**400
        return False


def fresh_seed() -> int:
    """A seed nobody chose, from the operating system."""
    import secrets

    return secrets.randbits(63)


def penalise(scores: np.ndarray, penalty: float, history: Sequence[int]) -> np.ndarray:
    """Make ids of the history less likely, once each (Keskar et al. 2019, section 4.1)."""
    seen = np.unique(np.asarray(history, dtype=np.int64))
    if seen.size and not 0 <= seen[0] <= seen[-1] < len(scores):
        raise SamplingError(f"the history holds ids outside 0 to {len(scores) - 1}")
    changed = scores.copy()
    # A negative score is multiplied: dividing it would make the token likelier.
    with np.errstate(over="ignore"):
        changed[seen] = np.where(scores[seen] < 0, scores[seen] * penalty, scores[seen] / penalty)
    return changed


def heat(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Divide by the temperature; the maximum is moved to 0 first, so nothing can overflow."""
    with np.errstate(over="ignore"):
        return (scores - scores.max()) / temperature


def keep_top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Keep the k best, and whatever ties with the k-th."""
    if k >= len(scores):
        return scores
    kth = np.partition(scores, -k)[-k]
    return np.where(scores < kth, -np.inf, scores)


def keep_top_p(scores: np.ndarray, p: float) -> np.ndarray:
    """Keep a token while the mass ranked above it is below p (Holtzman et al. 2020)."""
    order = np.argsort(-scores, kind="stable")  # among equals the lower id ranks first
    mass = np.cumsum(softmax(scores[order]))
    kept = np.full_like(scores, -np.inf)
    count = 1 + int(np.count_nonzero(mass[:-1] < p))
    kept[order[:count]] = scores[order[:count]]
    return kept


def keep_min_p(scores: np.ndarray, p: float) -> np.ndarray:
    """Keep what is at least p times as likely as the likeliest."""
    return np.where(np.exp(scores - scores.max()) < p, -np.inf, scores)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Scores (V,) -> probabilities (V,); -inf becomes an exact 0."""
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()


def probabilities(logits: Any, sampling: Sampling, history: Sequence[int] = ()) -> np.ndarray:
    """Logits (V,) -> float64 probabilities (V,) after every filter, adding up to 1.

    `history` holds the ids of prompt and output, for the repetition penalty. At temperature 0 all
    mass lies on the lowest-index maximum. Raises SamplingError for NaN, +inf or all -inf.
    """
    scores = np.asarray(logits, dtype=np.float64)
    if scores.ndim == 2 and len(scores) == 1:  # (1, V), as forward gives the last row
        scores = scores[0]
    if scores.ndim != 1:
        raise SamplingError(f"logits of shape {scores.shape}; expected one row, (V,)")
    if not scores.size or not np.isfinite(scores.max()):
        found = (
            "none" if not scores.size else "all -inf" if scores.max() == -np.inf else "NaN or inf"
        )
        raise SamplingError(f"nothing can be drawn from these logits: found {found}")
    if sampling.repetition_penalty != 1:
        scores = penalise(scores, sampling.repetition_penalty, history)
        if not np.isfinite(scores.max()):
            raise SamplingError(
                f"repetition_penalty {sampling.repetition_penalty:g} takes the scores out of range"
            )
    if sampling.temperature == 0:
        chosen = np.zeros_like(scores)
        chosen[scores.argmax()] = 1
        return chosen
    scores = heat(scores, sampling.temperature)
    if sampling.top_k:
        scores = keep_top_k(scores, sampling.top_k)
    if sampling.top_p < 1:
        scores = keep_top_p(scores, sampling.top_p)
    if sampling.min_p:
        scores = keep_min_p(scores, sampling.min_p)
    return softmax(scores)


def sample(logits: Any, sampling: Sampling, history: Sequence[int] = (), position: int = 0) -> int:
    """Draw one token id from logits (V,).

    The draw is a function of (seed, position) alone: the same alone, in a batch, or resumed.
    """
    chances = probabilities(logits, sampling, history)
    check_whole_number("position", position, 0, SamplingError, end=2**64)
    if sampling.temperature == 0:
        return int(chances.argmax())
    seed = fresh_seed() if sampling.seed is None else sampling.seed
    key = np.array([seed, position], dtype=np.uint64)
    return pick(chances, np.random.Generator(np.random.Philox(key=key)).random())


def pick(chances: np.ndarray, draw: float) -> int:
    """The id in whose share of [0, 1) the draw falls; one without a chance is never picked."""
    kept = np.flatnonzero(chances)
    edges = np.cumsum(chances[kept])
    scaled = draw * edges[-1]  # the last edge is 1 but for rounding
    place = np.searchsorted(edges, scaled, side="right")
    return int(kept[min(place, len(kept) - 1)])
