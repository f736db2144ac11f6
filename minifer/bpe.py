"""Byte-pair encoding: the bytes of a piece -> tokens, by merging neighbours (Sennrich et al. 2016).

The merge learnt first is done first, the leftmost of equals. A heap keeps the candidates, so that
a piece of n letters costs O(n log n): a megabyte of one letter is one piece.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from .pretokenize import LETTERS

CACHED_PIECES = 65_536  # pieces come in Zipf's order: a bounded cache catches nearly all of them
CACHED_LENGTH = 64


class Part(NamedTuple):
    """One token of a piece and the letters (one a byte) that it stands for."""

    token: str
    start: int
    end: int


@dataclass(slots=True)
class BytePairEncoder:
    """A vocabulary and its merges: `ranks` maps "left right" to the place in the list of merges."""

    vocab: dict[str, int]
    ranks: dict[str, int]
    ignore_merges: bool = False
    unk_token: str | None = None
    fuse_unk: bool = False
    cache: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def ids(self, piece: str) -> tuple[int, ...]:
        """The ids of one pre-tokenized piece."""
        found = self.cache.get(piece)
        if found is None:
            found = tuple([self.vocab[part.token] for part in self.parts(piece)])
            if len(piece) <= CACHED_LENGTH:
                if len(self.cache) >= CACHED_PIECES:
                    self.cache.clear()
                self.cache[piece] = found
        return found

    def parts(self, piece: str) -> list[Part]:
        """The tokens of one piece, each with the bytes of the piece that it covers."""
        letters = [LETTERS[byte] for byte in piece.encode("utf-8")]
        if self.ignore_merges and (whole := "".join(letters)) in self.vocab:
            return [Part(whole, 0, len(letters))]
        return self.merge(self.symbols(letters))

    def symbols(self, letters: list[str]) -> list[Part]:
        """One symbol a letter; a letter that is no token becomes unk_token, or is dropped."""
        symbols: list[Part] = []
        after_unknown = False
        for at, letter in enumerate(letters):
            unknown = letter not in self.vocab
            if not unknown:
                symbols.append(Part(letter, at, at + 1))
            elif self.unk_token is not None:
                start = symbols.pop().start if self.fuse_unk and after_unknown else at
                symbols.append(Part(self.unk_token, start, at + 1))
            after_unknown = unknown
        return symbols

    def merge(self, symbols: list[Part]) -> list[Part]:
        """Merge neighbours until no pair of them is in the list of merges."""
        # Three columns and no objects: a symbol that grows stays in its left neighbour's slot.
        tokens: list[str | None] = [symbol.token for symbol in symbols]
        ends = [symbol.end for symbol in symbols]
        after = [*range(1, len(symbols)), -1]
        before = [*range(-1, len(symbols) - 1)]
        rank_of = self.ranks.get
        heap: list[tuple[int, int, str]] = []  # rank, left slot, merged token
        for left, (first, second) in enumerate(pairwise(tokens)):
            if (rank := rank_of(f"{first} {second}")) is not None:
                heap.append((rank, left, first + second))
        heapify(heap)

        while heap:
            _, left, token = heappop(heap)
            right = after[left]
            if tokens[left] is None or right < 0:
                continue  # swallowed by its left neighbour, or left without a right one
            first, second = tokens[left], tokens[right]
            if first + second != token or f"{first} {second}" not in self.ranks:
                continue  # the pair that promised this token has changed since
            tokens[left], tokens[right] = token, None
            ends[left] = ends[right]
            after[left] = further = after[right]
            if further >= 0:
                before[further] = left
                rank = rank_of(f"{token} {tokens[further]}")
                if rank is not None:
                    heappush(heap, (rank, left, token + tokens[further]))
            if (previous := before[left]) >= 0:
                rank = rank_of(f"{tokens[previous]} {token}")
                if rank is not None:
                    heappush(heap, (rank, previous, tokens[previous] + token))
        return [
            Part(token, symbols[slot].start, ends[slot])
            for slot, token in enumerate(tokens)
            if token is not None
        ]
