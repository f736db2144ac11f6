"""Split stages: every behaviour, strings and patterns, empty matches, and what is not ours."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_cases import LLAMA3, texts

from minifer.errors import TokenizerError
from minifer.pattern import GPT2, NotOurs, compile_pattern
from minifer.pretokenize import BEHAVIORS, BYTES, LETTERS, PreTokenizer, Split, digits

THEIR_NAMES = dict(
    zip(
        BEHAVIORS,
        ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"],
        strict=True,
    )
)
# Those in the second row match nothing at all in some places: the engines differ on what is next.
PATTERNS = [
    *("a", "aa?", r"\s", r"\p{N}{1,3}", "[ab]+?c", r"(?<!a)b", "(a|b)(?=c)", r"a++", GPT2),
    *("a*", "b?", "(?=a)", "(?<=a)", r"(?=(\p{N}{3})+(?!\p{N}))", "a*|b", "(?=b)|b", ""),
]
small = st.one_of(st.text("abc 1\n", max_size=14), texts)


def library_spans(pattern, behavior, invert, text):
    stage = tokenizers.pre_tokenizers.Split(pattern, THEIR_NAMES[behavior], invert)
    return [offsets for _, offsets in stage.pre_tokenize_str(text)]


@pytest.mark.parametrize("behavior", BEHAVIORS)
@pytest.mark.parametrize("invert", [False, True])
@given(text=small, source=st.sampled_from(PATTERNS))
@settings(deadline=None, max_examples=200)
def test_every_behavior_equals_the_library(behavior, invert, text, source):
    ours = Split(compile_pattern(source, "test"), behavior, invert).spans(text)
    assert ours == library_spans(tokenizers.Regex(source), behavior, invert, text)


@pytest.mark.parametrize("individual", [False, True])
@given(text=small)
@settings(deadline=None)
def test_digits_equal_the_library(individual, text):
    stage = tokenizers.pre_tokenizers.Digits(individual_digits=individual)
    assert digits(individual).spans(text) == [o for _, o in stage.pre_tokenize_str(text)]


def test_the_pieces_of_a_sentence_by_hand():
    split = Split(compile_pattern(LLAMA3, "test"))
    text = "It'S 12345 aren't\n\n  x!"
    assert [text[start:end] for start, end in split.spans(text)] == [
        *("It", "'S", " ", "123", "45", " aren", "'t", "\n\n", " ", " x", "!")
    ]


def test_a_prefix_space_is_outside_of_the_span():
    stage = PreTokenizer((), Split(compile_pattern(GPT2, "test")), add_prefix_space=True)
    assert list(stage.pieces("ab c")) == [(" ab", 0, 2), (" c", 2, 4)]
    assert list(stage.pieces("\na")) == [(" ", 0, 0), ("\n", 0, 1), ("a", 1, 2)]
    assert list(stage.pieces("")) == []


def test_the_alphabet_of_bytes():
    assert len(BYTES) == 256 and all(len(letter) == 1 for letter in LETTERS)
    assert "".join(LETTERS[byte] for byte in b"a \n\x00\xad\xff") == "aĠĊĀŃÿ"
    assert set(LETTERS) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())


@pytest.mark.parametrize(
    "source",
    [
        *(r"\h+", r"\p{N}{1,3}+", r"\w+", r"\bfoo", "^a", "a$", "[[:alpha:]]", "[a&&b]", "(?i)a"),
        *("(?i:ss)", "(?i:i)", "(?i:é)", r"a{,2}", r"a{2}?", "[^(\\s|[.,])]", r"\x41", "a**"),
        *(r"\p{^L}", r"\p{Alphabetic}", r"(?>a)", r"(?<n>a)", r"\1", r"\R", "[a--b]", "\u0558"),
    ],
)
def test_what_may_mean_something_else_is_not_ours(source):
    with pytest.raises(NotOurs, match="test: the pattern item at"):
        compile_pattern(source, "test")


@pytest.mark.parametrize("source", ["(a", "a)", "[z-a]", "(?<=a)("])
def test_a_broken_pattern_is_named(source):
    with pytest.raises(TokenizerError, match=r"test: .* is not a pattern"):
        compile_pattern(source, "test")
