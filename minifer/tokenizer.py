"""Text -> ids -> text, for byte-level BPE as a tokenizer.json describes it.

    encode  text -> added tokens and normalised text between -> pieces -> bytes -> merges -> ids
    decode  ids -> tokens -> bytes -> text

The result equals that of Hugging Face's `tokenizers` library, which defines the format. What this
module does not read (SentencePiece-style models, WordPiece, ...) goes to the library, with a
warning that names the stage. `truncation` and `padding` in a file are ignored: they are for
batches of training, and a prompt must never be cut in silence.
"""

import codecs
import json
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from .added_tokens import AddedToken, AddedTokens
from .errors import MiniferWarning, TokenizerError
from .json_file import read_json
from .normalize import normalizer
from .pattern import NotOurs
from .pretokenize import BYTES
from .tokenizer_file import TokenizerFile, read_tokenizer
from .tokenizer_schema import check_text


class Piece(NamedTuple):
    """One id, the vocabulary's string for it, and the characters of the text that it covers.

    start and end are None for an id that the post-processor added, and where a normaliser changed
    the text. A token that is a part of a character covers all of it.
    """

    id: int
    token: str
    start: int | None
    end: int | None


class Tokenizer:
    """A byte-level BPE tokenizer. Safe to share between threads."""

    @classmethod
    def from_file(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json. Raises TokenizerError for one that is missing or malformed."""
        return cls.from_dict(read_json(Path(path), TokenizerError), source=str(path))

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: str = "tokenizer.json") -> "Tokenizer":
        """The same, from the parsed file. `source` is its name in messages."""
        if not isinstance(data, dict):
            raise TokenizerError(f"{source}: found {type(data).__name__}, expected a dict")
        try:
            return cls(read_tokenizer(data, source))
        except NotOurs as stage:
            from .tokenizer_library import LibraryTokenizer

            tokenizer = LibraryTokenizer(json.dumps(data), source)
            name = str(stage).removeprefix(f"{source}: ")
            message = f"{source}: {name} is read by the tokenizers library"
            warnings.warn(message, MiniferWarning, stacklevel=2)
            return tokenizer
        except RecursionError:
            raise TokenizerError(f"{source}: Sequences nested too deeply") from None

    def __init__(self, stages: TokenizerFile) -> None:
        self._pre_tokenizer, self._bpe = stages.pre_tokenizer, stages.bpe
        self._templates, self._byte_level = stages.templates, stages.byte_level_decoder
        self._added = AddedTokens(stages.added_tokens, normalizer(stages.forms))
        self.added_tokens: dict[str, AddedToken] = {t.content: t for t in stages.added_tokens}
        self.special_ids = frozenset(t.id for t in stages.added_tokens if t.special)
        self._ids = {**stages.bpe.vocab, **{t.content: t.id for t in stages.added_tokens}}
        self._tokens = dict(zip(self._ids.values(), self._ids.keys(), strict=True))
        # An added token that is searched in normalised text is shown in its normalised form.
        self._tokens.update((t.id, self._added.found_as(t)) for t in stages.added_tokens)
        special = {t.content for t in stages.added_tokens if t.special}
        self._hidden = frozenset(
            t.id for t in stages.added_tokens if self._tokens[t.id] in special
        )  # by text, like the reference: one that is shown in another form is not hidden
        self.vocab_size = max(self._tokens) + 1  # ids run from 0 to this, holes included

    @cached_property
    def longest_token(self) -> int:
        """Letters of the longest vocabulary string: no token stands for more characters."""
        return max(map(len, self._ids))

    def id_of(self, token: str) -> int | None:
        """The id of a vocabulary string or an added token, None if there is none."""
        return self._ids.get(token)

    def token_of(self, token_id: int) -> str | None:
        """The vocabulary string of an id, None if there is none."""
        return self._tokens.get(token_id)

    # ---- text -> ids -------------------------------------------------------------------------

    def encode(
        self, text: str, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The ids of a text.

        add_special_tokens: let the post-processor add its own (a BOS, usually).
        parse_special: False leaves the text of special tokens what it is, plain text.
        """
        ids = self._encode(text, parse_special, None)
        return self._post_process(ids) if add_special_tokens else ids

    def encode_protected(
        self, text: str, protected: Mapping[str, str], add_special_tokens: bool = False
    ) -> list[int]:
        """The ids of a text in which some characters can never be part of an added token.

        `protected` maps a placeholder character to the one it stands for. Added tokens are searched
        with the placeholders in place; everything after that sees the characters themselves.
        """
        ids = self._encode(text, True, protected)
        return self._post_process(ids) if add_special_tokens else ids

    def _encode(
        self, text: str, parse_special: bool, protected: Mapping[str, str] | None
    ) -> list[int]:
        ids: list[int] = []
        for segment in self._added.split(check_input(text), parse_special, protected):
            if segment.added is not None:
                ids.append(segment.added.id)
                continue
            for piece, _, _ in self._pre_tokenizer.pieces(segment.text):
                ids.extend(self._bpe.ids(piece))
        return ids

    def _post_process(self, ids: list[Any], made: Callable[[int], Any] = int) -> list[Any]:
        for template in self._templates:
            whole: list[Any] = []
            for item in template:
                if item is None:
                    whole.extend(ids)
                else:
                    whole.append(made(item))
            ids = whole
        return ids

    def pieces(
        self, text: str, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[Piece]:
        """What encode does, to look at: every id with its token and its place in the text."""
        found = list(self._pieces(text, parse_special))
        return self._post_process(found, self._added_piece) if add_special_tokens else found

    def _added_piece(self, token_id: int) -> Piece:
        return Piece(token_id, self._tokens.get(token_id, ""), None, None)

    def _pieces(self, text: str, parse_special: bool) -> Iterator[Piece]:
        for segment in self._added.split(check_input(text), parse_special):
            if segment.added is not None:
                added = segment.added
                yield Piece(added.id, self._tokens[added.id], segment.start, segment.end)
                continue
            for piece, start, end in self._pre_tokenizer.pieces(segment.text):
                prefix = len(piece) - (end - start)  # 1 for a space that the text has not
                owner = [
                    max(start, start + index - prefix)  # the character that each byte belongs to
                    for index, character in enumerate(piece)
                    for _ in character.encode("utf-8")
                ]
                for token, first, last in self._bpe.parts(piece):
                    where: tuple[int | None, int | None] = (None, None)
                    if segment.start is not None:
                        where = (segment.start + owner[first], segment.start + owner[last - 1] + 1)
                    yield Piece(self._bpe.vocab[token], token, *where)

    # ---- ids -> text -------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of the ids. An id that is no token adds nothing; broken UTF-8 becomes U+FFFD."""
        stream = self.stream(skip_special_tokens)
        return stream.push_all(ids) + stream.flush()

    def stream(self, skip_special_tokens: bool = False) -> "Stream":
        """A decoder that takes one id at a time: what it gives, joined, equals decode."""
        return Stream(self, skip_special_tokens)


class Stream:
    """Decodes as ids come. Up to three bytes of an unfinished character are held back."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokens = tokenizer._tokens
        self._byte_level = tokenizer._byte_level
        self._skipped = tokenizer._hidden if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._first = True

    def push(self, token_id: int) -> str:
        """The text that this id completes, perhaps none."""
        return self.push_all((token_id,))

    def push_all(self, ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        return self._utf8.decode(b"".join(map(self._bytes, ids)))

    def flush(self) -> str:
        """The end: an unfinished character becomes U+FFFD."""
        return self._utf8.decode(b"", final=True)

    def _bytes(self, token_id: int) -> bytes:
        token = self._tokens.get(check_id(token_id))
        if token is None or token_id in self._skipped:
            return b""
        if not self._byte_level:  # without a decoder, the format puts spaces between tokens
            space, self._first = "" if self._first else " ", False
            return (space + token).encode("utf-8")
        try:
            return bytes([BYTES[letter] for letter in token])
        except KeyError:  # an added token, written as it is
            return token.encode("utf-8")


def check_input(text: Any) -> str:
    """The text to encode. Raises TokenizerError if it is no text, or none that UTF-8 can write."""
    if not isinstance(text, str):
        raise TokenizerError(f"cannot encode {type(text).__name__}, expected str")
    return check_text(text, "text")


def check_id(token_id: Any) -> int:
    """A token id as an int. Raises TokenizerError for anything but a whole number from 0 on."""
    try:
        number = operator.index(token_id)
    except TypeError:
        number = -1
    if number < 0:
        raise TokenizerError(f"cannot decode {token_id!r}, expected a token id of 0 or more")
    return number
