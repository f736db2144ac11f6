"""The same interface around the `tokenizers` library, for what tokenizer.py does not read."""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from .added_tokens import AddedToken, AddedTokens
from .errors import TokenizerError
from .tokenizer import Piece, Tokenizer, check_id, check_input

BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


class LibraryTokenizer(Tokenizer):
    """A tokenizer.json read by the library: text, ids, offsets and errors as with Tokenizer."""

    def __init__(self, text: str, source: str) -> None:
        self._data, self._source = json.loads(text), source
        self._library = self._open({})
        self._plain = self._open({})  # its own copy: the switch below is shared by all callers
        self._plain.encode_special_tokens = True
        self.added_tokens = {
            token.content: AddedToken(
                token_id,
                token.content,
                token.special,
                token.lstrip,
                token.rstrip,
                token.single_word,
                token.normalized,
            )
            for token_id, token in self._library.get_added_tokens_decoder().items()
        }
        self.special_ids = frozenset(t.id for t in self.added_tokens.values() if t.special)
        self.vocab_size = max(self._library.get_vocab().values(), default=-1) + 1

    def _open(self, changes: dict[str, Any]) -> Any:
        try:
            from tokenizers import Tokenizer as Library

            library = Library.from_str(json.dumps({**self._data, **changes}))
        except ImportError:
            raise TokenizerError(
                f"{self._source} needs the tokenizers library: pip install tokenizers"
            ) from None
        except BaseException as error:  # a panic of the library is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise TokenizerError(f"{self._source}: the library refuses it: {error}") from None
        library.no_truncation()
        library.no_padding()
        return library

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest vocabulary string."""
        return max(map(len, self._library.get_vocab()), default=1)

    def id_of(self, token: str) -> int | None:
        """The id of a vocabulary string or an added token, None if there is none."""
        return self._library.token_to_id(token)

    def token_of(self, token_id: int) -> str | None:
        """The vocabulary string of an id, None if there is none."""
        return self._library.id_to_token(token_id) if token_id < self.vocab_size else None

    def encode(
        self, text: str, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The ids of a text; see Tokenizer.encode."""
        return self._encoding(text, add_special_tokens, parse_special).ids

    def _encoding(self, text: str, add_special_tokens: bool, parse_special: bool) -> Any:
        library = self._library if parse_special else self._plain
        return library.encode(check_input(text), add_special_tokens=add_special_tokens)

    def pieces(
        self, text: str, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[Piece]:
        """Every id with its token and its place in the text, as the library gives them."""
        encoding = self._encoding(text, add_special_tokens, parse_special)
        rows = zip(
            encoding.ids, encoding.tokens, encoding.offsets, encoding.sequence_ids, strict=True
        )
        return [
            Piece(token_id, token, *(offsets if sequence is not None else (None, None)))
            for token_id, token, offsets, sequence in rows
        ]

    # ---- protected text: added tokens are found here, the rest is encoded without any --------

    @cached_property
    def _finder(self) -> AddedTokens:
        normalizer = self._library.normalizer
        normalize = normalizer.normalize_str if normalizer else str
        return AddedTokens(self.added_tokens.values(), normalize, normalize_twice=False)

    @cached_property
    def _between(self) -> tuple[Any, Any]:
        """Two libraries for normalised text: at the start of the whole, and further on."""
        bare: dict[str, Any] = {"added_tokens": [], "normalizer": None, "post_processor": None}
        later = json.loads(json.dumps(self._data.get("pre_tokenizer")))
        for stage in [later, *((later or {}).get("pretokenizers") or [])]:
            if stage and stage.get("prepend_scheme") == "first":
                stage["prepend_scheme"] = "never"  # nothing that comes later is first
        return self._open(bare), self._open({**bare, "pre_tokenizer": later})

    def encode_protected(
        self, text: str, protected: Mapping[str, str], add_special_tokens: bool = False
    ) -> list[int]:
        """The ids of a text in which some characters are never part of an added token."""
        first, later = self._between
        ids: list[int] = []
        for place, segment in enumerate(self._finder.split(check_input(text), True, protected)):
            if segment.added is not None:
                ids.append(segment.added.id)
            else:
                between = later if place else first
                ids.extend(between.encode(segment.text, add_special_tokens=False).ids)
        if add_special_tokens:
            before, after = self._around
            ids = [*before, *ids, *after]
        return ids

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """What the post-processor puts before and after a text: that around a probe."""
        encoding = self._library.encode("a")
        inside = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence is not None]
        return encoding.ids[: inside[0]], encoding.ids[inside[-1] + 1 :]

    # ---- ids -> text -------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of the ids; see Tokenizer.decode."""
        # The library's ids are 32-bit; a larger one is no token, and adds nothing here either.
        known = [token_id for token_id in map(check_id, ids) if token_id < self.vocab_size]
        return self._library.decode(known, skip_special_tokens=skip_special_tokens)

    def stream(self, skip_special_tokens: bool = False) -> "LibraryStream":
        """A decoder that takes one id at a time: what it gives, joined, equals decode."""
        return LibraryStream(self, skip_special_tokens)


class LibraryStream:
    """Decodes all ids so far again and again: a decoder of unknown kind may look back."""

    def __init__(self, tokenizer: LibraryTokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self._ids: list[int] = []
        self._given = ""

    def push(self, token_id: int) -> str:
        """The text that this id completes, perhaps none."""
        self._ids.append(check_id(token_id))
        token = self._tokenizer.token_of(token_id)
        if token is None or (self._skip and token_id in self._tokenizer.special_ids):
            return ""  # nothing to see, and it ends no run of bytes
        if BYTE_TOKEN.fullmatch(token):
            return ""  # one wrong byte after it, and ByteFallback takes back its whole run
        whole = self._whole()
        if whole.endswith("\ufffd") or not whole.startswith(self._given):
            return ""
        return self._give(whole)

    def flush(self) -> str:
        """The rest."""
        return self._give(self._whole())

    def _whole(self) -> str:
        return self._tokenizer.decode(self._ids, self._skip)

    def _give(self, whole: str) -> str:
        given, self._given = self._given, whole
        return whole[len(given) :]
