"""What may stand in a tokenizer.json: the stages that are known, and access to keys with checks."""

from collections.abc import Iterator
from typing import Any

from .errors import TokenizerError

MAX_ID = 2**32 - 1  # the format's ids are unsigned 32-bit

# Every stage type that the library knows, by the section it stands in.
KNOWN = {
    "normalizer": "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend "
    "Replace Sequence Strip StripAccents",
    "pre_tokenizer": "BertPreTokenizer ByteLevel CharDelimiterSplit Digits FixedLength Metaspace "
    "Punctuation Sequence Split UnicodeScripts Whitespace WhitespaceSplit",
    "model": "BPE Unigram WordLevel WordPiece",
    "post_processor": "BertProcessing ByteLevel RobertaProcessing Sequence TemplateProcessing",
    "decoder": "BPEDecoder ByteFallback ByteLevel CTC Fuse Metaspace Replace Sequence Strip "
    "WordPiece",
}
LISTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


def get(data: dict[str, Any], key: str, kind: type, where: str, default: Any = ...) -> Any:
    """data[key], which must be there (unless a default is given) and of the kind."""
    if key not in data and default is ...:
        raise TokenizerError(f"{where}: the key {key!r} is missing")
    value = data.get(key, default)
    if type(value) is not kind and value is not default:
        raise TokenizerError(
            f"{where}: {key!r} is {short(value)!r} ({type(value).__name__}), "
            f"expected {kind.__name__}"
        )
    return value


def stages_of(stage: Any, section: str, source: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The stages of a section, Sequences opened, each with a name for it in messages."""
    if stage is None:
        return
    if not isinstance(stage, dict):
        raise TokenizerError(f"{source}: {section} is {short(stage)!r}, expected null or {{...}}")
    kind = check_known(stage, section, source)
    name = f"{source}: {section} {kind}"
    if kind == "Sequence":
        for inner in get(stage, LISTS[section], list, name):
            yield from stages_of(inner, section, source)
    else:
        yield stage, name


def check_known(stage: dict[str, Any], section: str, where: str) -> str:
    """The stage's type. Raises TokenizerError for one that the library does not know either."""
    kind = stage.get("type", "BPE" if section == "model" and "merges" in stage else None)
    if not isinstance(kind, str) or kind not in KNOWN[section].split():
        known = ", ".join(KNOWN[section].split())
        raise TokenizerError(f"{where}: unknown {section} {kind!r}; known are {known}")
    return kind


def check_text(text: str, where: str) -> str:
    """The text, if it can be written as UTF-8. Raises TokenizerError at a lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"{where}: character {error.start} is a lone surrogate "
            f"(U+{ord(text[error.start]):04X}), which no text holds"
        ) from None
    return text


def short(value: Any) -> str:
    """A value for a message, cut to 60 characters."""
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
