"""Text -> pieces that no merge may cross: the split stages of a tokenizer file.

A stage marks spans of the text as matches of a pattern and folds matches and the rest into pieces.
The last stage of a byte-level tokenizer is always ByteLevel: GPT-2's own split, if the file wants
it, and the alphabet of 256 letters in which the merges spell bytes (Radford et al. 2019).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import regex

from .unicode_age import NUMERIC_17, NUMERIC_18, as_class, as_unicode_16

Span = tuple[int, int]

BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")

# \p{N} as of Unicode 17, whatever the version of `regex` (see unicode_age).
NUMERIC = rf"[\p{{N}}{as_class(NUMERIC_17)}](?<![{as_class(NUMERIC_18)}])"


def byte_letters() -> list[str]:
    """The letter that stands for each byte: itself where it prints, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


LETTERS = byte_letters()
BYTES = {letter: byte for byte, letter in enumerate(LETTERS)}


@dataclass(frozen=True, slots=True)
class Split:
    """One split: what the pattern matches, and what becomes of it. `seen_as` makes
    of a text what the pattern may see of it, character by character."""

    pattern: regex.Pattern
    behavior: str = "Isolated"
    invert: bool = False
    seen_as: Callable[[str], str] = as_unicode_16

    def spans(self, text: str) -> list[Span]:
        """The non-empty pieces of the text, as (start, end), in order."""
        marked = []
        previous = 0
        for start, end in _matches(self.pattern, self.seen_as(text)):
            if previous != start:
                marked.append((previous, start, self.invert))
            marked.append((start, end, not self.invert))
            previous = end
        if previous != len(text):
            marked.append((previous, len(text), self.invert))
        return [(start, end) for start, end in _FOLDS[self.behavior](marked) if start != end]


def _matches(pattern: regex.Pattern, text: str) -> Iterator[Span]:
    """The matches as Oniguruma yields them, the regex engine of the tokenizers library."""
    position, last_end = 0, -1
    for match in pattern.finditer(text):
        start, end = match.span()
        if start == end:
            break  # the two engines go on from an empty match in different ways
        yield start, end
        position = last_end = end
    else:
        return
    while position <= len(text) and (match := pattern.search(text, position)):
        start, end = match.span()
        if start == end == last_end:  # never an empty match right behind the last one
            position += 1
            continue
        yield start, end
        position = last_end = end


# ---- five ways to fold matches and the text between them -------------------------------------

Marked = list[tuple[int, int, bool]]  # start, end, is it a match


def _removed(marked: Marked) -> list[Span]:
    return [(start, end) for start, end, is_match in marked if not is_match]


def _isolated(marked: Marked) -> list[Span]:
    return [(start, end) for start, end, _ in marked]


def _merged_with_previous(marked: Marked) -> list[Span]:
    spans: list[Span] = []
    after_match = False
    for start, end, is_match in marked:
        if is_match and not after_match and spans:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
        after_match = is_match
    return spans


def _merged_with_next(marked: Marked) -> list[Span]:
    spans: list[Span] = []
    before_match = False
    for start, end, is_match in reversed(marked):
        if is_match and not before_match and spans:
            spans[-1] = (start, spans[-1][1])
        else:
            spans.append((start, end))
        before_match = is_match
    return spans[::-1]


def _contiguous(marked: Marked) -> list[Span]:
    spans: list[Span] = []
    last = None
    for start, end, is_match in marked:
        if is_match is last:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
        last = is_match
    return spans


_FOLDS = dict(
    zip(
        BEHAVIORS,
        (_removed, _isolated, _merged_with_previous, _merged_with_next, _contiguous),
        strict=True,
    )
)


def digits(individual: bool) -> Split:
    """The Digits stage: every number character alone, or runs of them."""
    behavior = "Isolated" if individual else "Contiguous"
    return Split(regex.compile(NUMERIC), behavior, seen_as=str)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """All the stages. `splits` stand before ByteLevel, `word_split` is ByteLevel's own."""

    splits: tuple[Split, ...]
    word_split: Split | None
    add_prefix_space: bool

    def pieces(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Each piece, with the span of the text that it covers.

        A piece may begin with a space that the text has not: then it is one longer than its span.
        """
        spans = [(0, len(text))] if text else []
        for split in self.splits:
            spans = [
                (start + first, start + last)
                for start, end in spans
                for first, last in split.spans(text[start:end])
            ]
        for start, end in spans:
            part, shift = text[start:end], 0
            if self.add_prefix_space and not part.startswith(" "):
                part, shift = " " + part, 1
            for first, last in self.word_split.spans(part) if self.word_split else [(0, len(part))]:
                yield part[first:last], start + max(0, first - shift), start + last - shift
