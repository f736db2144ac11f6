"""Added tokens: texts such as <|im_start|> that are one id, whatever the merges would make of them.

They are searched before anything is cut: those with normalized=false in the text as it is, the
others in what is left between, after the normaliser.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import regex

from .unicode_age import as_unicode_16

# White_Space of Unicode; str.strip() would take U+001C to U+001F as well.
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
WHITE_SPACE += "\u2028\u2029\u202f\u205f\u3000"

# \w of Unicode Technical Standard 18, annex C.
_WORD = r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d]"


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One added token: its flags say how it is found and whether it is shown."""

    id: int
    content: str
    special: bool = False  # control, not text: skip_special_tokens drops it
    lstrip: bool = False  # swallows the white space to its left
    rstrip: bool = False  # and to its right
    single_word: bool = False  # counts only where no word character touches it
    normalized: bool = False  # searched in the normalised text


class Segment(NamedTuple):
    """An added token, or text to be cut. No offsets where a normaliser changed it."""

    added: AddedToken | None
    text: str
    start: int | None
    end: int | None


Found = tuple[int, int, AddedToken | None]


class AddedTokens:
    """The two searches, in their order."""

    def __init__(
        self,
        tokens: Iterable[AddedToken],
        normalize: Callable[[str], str],
        normalize_twice: bool = True,
    ) -> None:
        """`normalize_twice` is False where normalising what is normalised would change it."""
        tokens = list(tokens)
        self.normalize = normalize
        self.normalize_twice = normalize_twice
        self.in_raw = Search({t.content: t for t in reversed(tokens) if not t.normalized})
        self.in_normal = Search({self.found_as(t): t for t in reversed(tokens) if t.normalized})

    def found_as(self, token: AddedToken) -> str:
        """The text that the token is searched by."""
        return self.normalize(token.content) if token.normalized else token.content

    def split(
        self, text: str, parse_special: bool = True, protected: Mapping[str, str] | None = None
    ) -> Iterator[Segment]:
        """The text as added tokens and normalised text between them.

        `protected` maps a placeholder character to the one it stands for: no token is found across
        a placeholder, and the text yielded has the characters back.
        """
        table = str.maketrans(dict(protected or {}))
        for start, end, added in self.in_raw.find(text, text.translate(table), parse_special):
            part = text[start:end]
            if added is not None:
                yield Segment(added, part.translate(table), start, end)
                continue
            normal = self.normalize(part)
            same = normal == part
            real = normal.translate(table)
            for first, last, inner in self.in_normal.find(normal, real, parse_special):
                piece = real[first:last]
                if inner is None and real != normal and self.normalize_twice:
                    piece = self.normalize(piece)  # now with the characters that were hidden
                offsets = (start + first, start + last) if same else (None, None)
                yield Segment(inner, piece, *offsets)


class Search:
    """Leftmost, then longest, without overlap, over the contents of some added tokens."""

    def __init__(self, tokens: Mapping[str, AddedToken]) -> None:
        self.tokens = tokens
        longest_first = sorted(tokens, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first))) if tokens else None

    def find(self, text: str, real: str, parse_special: bool) -> Iterator[Found]:
        """All of the text in order, as (start, end, token or None).

        Contents are matched in `text`; the neighbours that the flags ask about are those of `real`,
        which is as long and has no placeholders.
        """
        done = 0
        for match in self.pattern.finditer(text) if self.pattern else ():
            token = self.tokens[match.group()]
            start, end = match.span()
            if token.special and not parse_special:
                continue
            if token.single_word and _touches_a_word(real, start, end):
                continue
            while token.lstrip and start > done and real[start - 1] in WHITE_SPACE:
                start -= 1
            while token.rstrip and end < len(real) and real[end] in WHITE_SPACE:
                end += 1
            if token.lstrip:
                start = max(start, done)  # what the one before has swallowed is gone
            if start >= end:
                continue
            if done < start:
                yield done, start, None
            yield start, end, token
            done = end
        if done != len(text):
            yield done, len(text), None


def _touches_a_word(text: str, start: int, end: int) -> bool:
    neighbours = text[max(0, start - 1) : start] + text[end : end + 1]
    return regex.search(_WORD, as_unicode_16(neighbours)) is not None
