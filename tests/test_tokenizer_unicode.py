"""Every code point: what the patterns, the flags and the normalisers see, against the library."""

import functools
import itertools
import json
import unicodedata

import pytest
import regex
import tokenizers
from tokenizer_cases import added, tiny

from minifer.added_tokens import WHITE_SPACE, AddedToken, Search
from minifer.normalize import FORMS, normalize_form
from minifer.pattern import NotOurs, compile_pattern
from minifer.pretokenize import Split, digits
from minifer.unicode_age import INERT, NEVER_ASSIGNED, as_unicode_16, characters, stand_ins

EVERY = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
CHUNKS = ["".join(EVERY[at : at + 4096]) for at in range(0, len(EVERY), 4096)]

CATEGORIES = (
    "Lu Ll Lt Lm Lo M Mn Mc Me Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp"
    " Han Hiragana Katakana Hangul"
)
SPLIT_BY_ALL = [r"\s", r"\p{L}", r"\p{N}"]
CLASSES = [
    *SPLIT_BY_ALL,
    *(r"\d", r"[^\s\p{L}\p{N}]", r"\P{M}", r"[\r\n]"),
    *(rf"\p{{{name}}}" for name in CATEGORIES.split()),
    *("(?i:s)", "(?i:k)", "(?i:'[sdmt])", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", "."),
]


def test_the_digits_stage_holds_the_same_characters():
    stage = tokenizers.pre_tokenizers.Digits(individual_digits=False)
    ours = digits(individual=False)
    for chunk in CHUNKS:
        theirs = [offsets for _, offsets in stage.pre_tokenize_str(chunk)]
        assert ours.spans(chunk) == theirs


@functools.cache
def boundaries():
    """Both sides of every place where a category, or our tables, change; and all our exceptions."""
    names = [unicodedata.category(character) for character in EVERY]
    young = stand_ins().keys()
    edges = {c for i, c in enumerate(EVERY) if names[i] != names[i - 1]}
    edges |= {EVERY[i - 1] for i in range(len(EVERY)) if names[i] != names[i - 1]}
    edges |= {c for a, c in itertools.pairwise(EVERY) if (a in young) != (c in young)}
    return sorted(edges | characters(INERT) | set(WHITE_SPACE) | set("\x1c\x1d\x1e\x1f\u180e"))


def compare_class(source, chunks):
    theirs = tokenizers.pre_tokenizers.Split(tokenizers.Regex(source), "removed")
    ours = Split(compile_pattern(source, "test"), "Removed")
    for chunk in chunks:
        kept = {c for start, end in ours.spans(chunk) for c in chunk[start:end]}
        assert kept == {c for piece, _ in theirs.pre_tokenize_str(chunk) for c in piece}


@pytest.mark.parametrize("source", SPLIT_BY_ALL)
def test_every_character_is_in_the_same_class(source):
    compare_class(source, CHUNKS)


@pytest.mark.parametrize("source", CLASSES)
def test_at_every_boundary_the_class_is_the_same(source):
    compare_class(source, ["".join(boundaries())])


@pytest.mark.slow
@pytest.mark.parametrize("source", CLASSES)
def test_every_class_holds_the_same_characters(source):
    compare_class(source, CHUNKS)


@pytest.mark.parametrize("flag", ["single_word", "rstrip", "lstrip"])
def test_the_flags_see_the_same_neighbours(flag):
    library = tokenizers.Tokenizer.from_str(
        json.dumps(tiny(added_tokens=[added(5, "<>", **{flag: True})]))
    )
    search = Search({"<>": AddedToken(5, "<>", **{flag: True})})
    for character in boundaries():
        for text in (character + "<>", "<>" + character):
            theirs = [o for i, o in _ids(library, text) if i == 5]
            ours = [(s, e) for s, e, token in search.find(text, text, True) if token]
            assert ours == theirs, ascii(text)


def _ids(library, text):
    encoding = library.encode(text)
    return zip(encoding.ids, encoding.offsets, strict=True)


@pytest.mark.parametrize("form", FORMS)
def test_every_character_normalises_the_same_alone(form):
    stage = getattr(tokenizers.normalizers, form)()
    for character in EVERY:
        assert normalize_form(form, character) == stage.normalize_str(character), ascii(character)


@pytest.mark.parametrize("form", FORMS)
def test_every_mark_is_ordered_and_composed_the_same(form):
    stage = getattr(tokenizers.normalizers, form)()
    moving = [c for c in EVERY if unicodedata.combining(c)]
    for mark in [*moving, *characters(INERT)]:
        for text in (f"a\u0345{mark}", f"a{mark}\u0334e\u0301", f"{mark}\u0307", f"\u05d0{mark}b"):
            assert normalize_form(form, text) == stage.normalize_str(text), ascii(text)
    # Every canonical pair, and every one that composes only since the library's version.
    for character in EVERY:
        parts = unicodedata.decomposition(character)
        if parts and not parts.startswith("<"):
            text = "".join(chr(int(part, 16)) for part in parts.split()) + "\u0323"
            assert normalize_form(form, text) == stage.normalize_str(text), ascii(text)


def test_contractions_fold_the_same():
    source = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    stage = tokenizers.pre_tokenizers.Split(tokenizers.Regex(source), "isolated")
    split = Split(compile_pattern(source, "test"))
    for character in [*boundaries(), *"sStTrRvVmMlLdD\u017f\u212a\ufb06\ufb05ß"]:
        for text in (f"x'{character}", f"'l{character}", f"'{character}e", f"'{character}l"):
            theirs = [offsets for _, offsets in stage.pre_tokenize_str(text)]
            assert split.spans(text) == theirs, ascii(text)


def test_the_stand_ins_say_nothing_but_unassigned():
    assert regex.fullmatch(r"\p{Cn}", NEVER_ASSIGNED)
    assert as_unicode_16("a\u0558b\u0295") == "a\ufdd0b\u0296"
    plain = "no young character, as é"
    assert as_unicode_16(plain) is plain


def test_a_range_over_young_characters_is_left_to_the_library():
    with pytest.raises(NotOurs):
        compile_pattern("[\U00020000-\U0003ffff]+", "test")
