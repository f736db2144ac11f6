"""Added tokens that swallow white space in which other added tokens would begin."""

import itertools

import pytest
import tokenizers
from tokenizer_cases import both, byte_level, trained

TEXTS = [
    "user\n\n[X]", "\n\n\n\n", "user \n\n", "\n\nuser\n\n user", " \n\n user\n\n\n\n[X]",
    "user\n \n\n",
]  # fmt: skip
FLAGS = list(itertools.product([False, True], repeat=2))


@pytest.mark.parametrize("word", FLAGS)
@pytest.mark.parametrize("blank", FLAGS)
def test_swallowed_white_space_equals_the_library(word, blank):
    extra = [
        tokenizers.AddedToken("user", normalized=False, lstrip=word[0], rstrip=word[1]),
        tokenizers.AddedToken("\n\n", normalized=False, lstrip=blank[0], rstrip=blank[1]),
        tokenizers.AddedToken("[X]", normalized=False, special=True),
    ]
    ours, library = both(trained(byte_level(), extra=extra))
    compared = 0
    for text in TEXTS:
        ids = ours.encode(text)
        assert [piece.id for piece in ours.pieces(text)] == ids
        try:
            wanted = library.encode(text).ids
        except BaseException as panic:  # the library's, on some of these texts; ours answers
            assert "Panic" in type(panic).__name__
            continue
        assert ids == wanted, text
        compared += 1
    assert compared >= 4
