"""tokenizer.json -> its stages, checked: the format of Hugging Face's `tokenizers` library.

A stage that only the library knows raises NotOurs; one that nobody knows, or a malformed one,
raises TokenizerError with the file, what was found and what is allowed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from operator import add
from typing import Any

import regex

from .added_tokens import AddedToken
from .bpe import BytePairEncoder
from .errors import TokenizerError
from .normalize import FORMS
from .pattern import GPT2, NotOurs, compile_pattern
from .pretokenize import BEHAVIORS, PreTokenizer, Split, digits
from .tokenizer_schema import LISTS, MAX_ID, check_known, check_text, get, short, stages_of

# What a post-processor makes of the ids: the ids it adds, and None where the text's own go.
Template = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """The stages of a byte-level BPE tokenizer, in the order in which a text meets them."""

    forms: tuple[str, ...]
    added_tokens: tuple[AddedToken, ...]
    pre_tokenizer: PreTokenizer
    bpe: BytePairEncoder
    templates: tuple[Template, ...]
    byte_level_decoder: bool


def read_tokenizer(data: dict[str, Any], source: str) -> TokenizerFile:
    """The parsed JSON, checked. Raises NotOurs or TokenizerError (see the module)."""
    if data.get("version", "1.0") != "1.0":
        raise TokenizerError(f"{source}: version {data['version']!r}; only '1.0' is known")
    stages = {section: list(stages_of(data.get(section), section, source)) for section in LISTS}
    check_known(get(data, "model", dict, source), "model", source)

    forms = []
    for stage, where in stages["normalizer"]:
        if stage["type"] not in FORMS:
            raise NotOurs(where)
        forms.append(stage["type"])
    bpe = read_bpe(data["model"], f"{source}: model")
    return TokenizerFile(
        forms=tuple(forms),
        pre_tokenizer=read_pre_tokenizer(stages["pre_tokenizer"]),
        bpe=bpe,
        added_tokens=read_added_tokens(data, bpe.vocab, source),
        templates=tuple(read_templates(stages["post_processor"])),
        byte_level_decoder=read_decoder(data.get("decoder"), stages["decoder"]),
    )


# ---- pre-tokenizer ---------------------------------------------------------------------------


def read_pre_tokenizer(stages: list[tuple[dict[str, Any], str]]) -> PreTokenizer:
    """Any number of Split and Digits, then ByteLevel."""
    splits: list[Split] = []
    for place, (stage, where) in enumerate(stages, 1):
        kind = stage["type"]
        if kind == "ByteLevel" and place == len(stages):
            word_split = None
            if get(stage, "use_regex", bool, where, True):
                word_split = Split(regex.compile(GPT2))
            return PreTokenizer(
                tuple(splits), word_split, get(stage, "add_prefix_space", bool, where)
            )
        if kind == "Digits":
            splits.append(digits(get(stage, "individual_digits", bool, where)))
        elif kind == "Split":
            splits.append(read_split(stage, where))
        else:
            raise NotOurs(f"{where}{' before another stage' if kind == 'ByteLevel' else ''}")
    raise NotOurs("a pre_tokenizer without ByteLevel at its end")


def read_split(stage: dict[str, Any], where: str) -> Split:
    """One Split stage: its pattern, a string or a regular expression, and its behaviour."""
    pattern = get(stage, "pattern", dict, where)
    behavior = get(stage, "behavior", str, where)
    if behavior not in BEHAVIORS:
        raise TokenizerError(f"{where}: behavior {behavior!r}; known are {', '.join(BEHAVIORS)}")
    if set(pattern) == {"String"}:
        compiled = regex.compile(regex.escape(get(pattern, "String", str, where)))
    elif set(pattern) == {"Regex"}:
        compiled = compile_pattern(get(pattern, "Regex", str, where), where)
    else:
        raise TokenizerError(f"{where}: pattern has {sorted(pattern)}, expected String or Regex")
    return Split(compiled, behavior, get(stage, "invert", bool, where))


# ---- model -----------------------------------------------------------------------------------


def read_bpe(model: dict[str, Any], where: str) -> BytePairEncoder:
    """Vocabulary and merges. Whole-set operations: a loop over 50,000 entries would be felt."""
    if (kind := model.get("type", "BPE")) != "BPE":
        raise NotOurs(f"{where} {kind}")
    for option in ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise NotOurs(f"{where} BPE with {option}")
    vocab = read_vocab(model, where)
    unk_token = get(model, "unk_token", str, where, None)
    if unk_token is not None and unk_token not in vocab:
        raise TokenizerError(f"{where}: unk_token {unk_token!r} is not in the vocabulary")
    return BytePairEncoder(
        vocab=vocab,
        ranks=read_merges(model, vocab, where),
        ignore_merges=get(model, "ignore_merges", bool, where, False),
        unk_token=unk_token,
        fuse_unk=get(model, "fuse_unk", bool, where, False),
    )


def read_vocab(model: dict[str, Any], where: str) -> dict[str, int]:
    """Token -> id, the ids distinct."""
    vocab = get(model, "vocab", dict, where)
    ids = set(vocab.values()) if {*map(type, vocab.values())} == {int} else {-1}
    if min(ids) < 0 or max(ids) > MAX_ID:
        bad = {t: i for t, i in vocab.items() if type(i) is not int or not 0 <= i <= MAX_ID}
        raise TokenizerError(f"{where}: vocab has {short(bad)}, expected ids of 0 to {MAX_ID}")
    if len(ids) != len(vocab):
        seen: dict[int, str] = {}
        twice = next([seen[i], t] for t, i in vocab.items() if seen.setdefault(i, t) != t)
        raise TokenizerError(f"{where}: the tokens {twice} have the same id {vocab[twice[0]]}")
    check_text("".join(vocab), f"{where}: vocab")
    return vocab


def read_merges(model: dict[str, Any], vocab: dict[str, int], where: str) -> dict[str, int]:
    """ "left right" -> rank. A file has the merges as such strings, or as pairs."""
    merges = get(model, "merges", list, where)
    if (kinds := {*map(type, merges)}) == {str}:
        if {*map(str.count, merges, repeat(" "))} != {1}:
            bad = next(merge for merge in merges if merge.count(" ") != 1)
            raise TokenizerError(f"{where}: the merge {short(bad)}, expected 'left right'")
        keys, tokens = merges, " ".join(merges).split(" ")
    elif kinds == {list}:
        tokens = list(chain.from_iterable(merges))
        if {*map(len, merges)} != {2} or {*map(type, tokens)} != {str}:
            bad = next(m for m in merges if len(m) != 2 or {*map(type, m)} != {str})
            raise TokenizerError(f"{where}: the merge {short(bad)}, expected two strings")
        keys = list(map(" ".join, merges))
        if {*map(str.count, keys, repeat(" "))} != {1}:
            raise NotOurs(f"{where} BPE with merges of tokens that hold a space")
    elif merges:
        raise TokenizerError(f"{where}: merges of {short(kinds)}, expected all strings or pairs")
    else:
        return {}
    made = [*map(add, tokens[0::2], tokens[1::2])]
    if not all(map(vocab.__contains__, chain(tokens, made))):
        missing = min({*tokens, *made} - vocab.keys())
        raise TokenizerError(f"{where}: merges name {missing!r}, which is not in the vocabulary")
    return dict(zip(keys, range(len(keys)), strict=True))


# ---- added tokens, post-processor, decoder ---------------------------------------------------


def read_added_tokens(
    data: dict[str, Any], vocab: dict[str, int], source: str
) -> tuple[AddedToken, ...]:
    """The added tokens. Their ids are given out, not read: that is what the library does."""
    found: dict[str, AddedToken] = {}
    highest = -1
    for place, entry in enumerate(get(data, "added_tokens", list, source, []) or []):
        where = f"{source}: added_tokens[{place}]"
        if not isinstance(entry, dict):
            raise TokenizerError(f"{where}: {short(entry)!r}, expected {{...}}")
        content = check_text(get(entry, "content", str, where), where)
        if not 0 <= get(entry, "id", int, where) <= MAX_ID:
            raise TokenizerError(f"{where}: id {entry['id']}, expected 0 to {MAX_ID}")
        flags = {
            name: get(entry, name, bool, where)
            for name in ("special", "lstrip", "rstrip", "single_word", "normalized")
        }
        if not content:
            continue
        if content in found:
            new_id = found[content].id
            flags["special"] |= found[content].special
        elif content in vocab:
            new_id = vocab[content]
        else:
            new_id = max(len(vocab), highest + 1)
        highest = max(highest, new_id)
        found[content] = AddedToken(new_id, content, **flags)
    return tuple(found.values())


def read_templates(stages: list[tuple[dict[str, Any], str]]) -> Iterator[Template]:
    """What each post-processor adds around one text; ByteLevel only moves offsets."""
    for stage, where in stages:
        if stage["type"] == "ByteLevel":
            continue
        if stage["type"] != "TemplateProcessing":
            raise NotOurs(where)
        special = get(stage, "special_tokens", dict, where)
        template: list[int | None] = []
        for item in get(stage, "single", list, where):
            match item:
                case {"Sequence": {"id": "A"}}:
                    template.append(None)
                case {"SpecialToken": {"id": str(name)}} if name in special:
                    ids = get(get(special, name, dict, where), "ids", list, where)
                    if not all(type(i) is int and 0 <= i <= MAX_ID for i in ids):
                        raise TokenizerError(f"{where}: ids of {name!r} are {ids}")
                    template.extend(ids)
                case _:
                    raise TokenizerError(
                        f"{where}: {short(item)}, expected Sequence A or one of {list(special)}"
                    )
        yield tuple(template)


def read_decoder(decoder: Any, stages: list[tuple[dict[str, Any], str]]) -> bool:
    """True for ByteLevel, False for none at all: then the library puts spaces between tokens."""
    if decoder is None:
        return False
    if len(stages) != 1 or stages[0][0]["type"] != "ByteLevel":
        odd = next((where for stage, where in stages if stage["type"] != "ByteLevel"), "decoder")
        raise NotOurs(odd)
    return True
