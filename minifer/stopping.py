"""What of an answer may be shown, and when it is over: stop strings, eos, the token limit."""

from collections.abc import Iterable, Sequence
from typing import Any

from .errors import SamplingError, TokenizerError


class StopStrings:
    """Holds back only what may still become a stop string.

    The stop that is complete first wins, of those the longest: so the cut does not depend on how
    the text came in pieces.
    """

    def __init__(self, stop: str | Sequence[str]) -> None:
        one = isinstance(stop, str) or not isinstance(stop, Iterable)
        self.stops, self.held = (stop,) if one else tuple(stop), ""
        if not all(isinstance(text, str) and text for text in self.stops):
            raise SamplingError(
                f"stop is {stop!r:.60}; allowed is a text or several, none of them empty"
            )

    def push(self, text: str) -> tuple[str, bool]:
        """More text -> (what may be shown of it, whether a stop string is complete)."""
        self.held += text
        starts = ((self.held.find(stop), stop) for stop in self.stops)
        found = [(at + len(stop), at) for at, stop in starts if at >= 0]  # (end, start)
        if found:
            shown, self.held = self.held[: min(found)[1]], ""
            return shown, True
        keep = max((_overlap(self.held, stop) for stop in self.stops), default=0)
        cut = len(self.held) - keep
        shown, self.held = self.held[:cut], self.held[cut:]
        return shown, False

    def flush(self) -> str:
        """What was held back, when nothing can follow any more."""
        shown, self.held = self.held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of the text that is a proper prefix of the stop string."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-size:]):
            return size
    return 0


class Answer:
    """Counts the tokens of one answer and turns each into text and, at the end, a reason."""

    def __init__(
        self, tokenizer: Any, stop: str | Sequence[str], eos: frozenset[int], max_tokens: int
    ) -> None:
        self.stops, self.eos, self.left = StopStrings(stop), eos, max_tokens
        if tokenizer is None and self.stops.stops:
            raise TokenizerError("stop strings need a tokenizer, and this model has none")
        self.stream = None if tokenizer is None else tokenizer.stream(skip_special_tokens=True)

    def push(self, token_id: int) -> tuple[str, str | None]:
        """The next token -> (text that may be shown now, None or "stop" or "length")."""
        self.left -= 1
        if token_id in self.eos:  # an eos is never shown, whatever its text
            return self._end()[0], "stop"
        shown, matched = self.stops.push(self.stream.push(token_id) if self.stream else "")
        if matched:
            return shown, "stop"
        if self.left > 0:
            return shown, None
        tail, matched = self._end()
        return shown + tail, "stop" if matched else "length"

    def _end(self) -> tuple[str, bool]:
        """The rest: an incomplete character as U+FFFD, then what was held for a stop string."""
        shown, matched = self.stops.push(self.stream.flush() if self.stream else "")
        return shown + self.stops.flush(), matched
