"""What goes to the library: one line that says so, the same interface, the same results."""

import json
import warnings

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizer_cases import added, sequence, split, template, texts, tiny

from minifer.errors import MiniferWarning, TokenizerError
from minifer.tokenizer import Piece, Tokenizer
from minifer.tokenizer_library import LibraryTokenizer


def sentencepiece(tokens=()):
    """A small model as Llama 2 has it: byte fallback, and a mark for spaces put in front."""
    vocab = {"<unk>": 0, "<s>": 1, **{f"<0x{byte:02X}>": byte + 2 for byte in range(256)}}
    for token in ("▁", "a", "b", "<", "s", ">", "x", "ab", "▁ab"):
        vocab[token] = len(vocab)
    return tiny(
        normalizer=sequence(
            "normalizers",
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ),
        pre_tokenizer=None,
        post_processor=template(1, None),
        decoder=sequence(
            "decoders",
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ),
        added_tokens=[added(1, "<s>", special=True), *tokens],
        model={
            "vocab": vocab,
            "merges": ["a b", "▁ ab"],
            "byte_fallback": True,
            "unk_token": "<unk>",
            "fuse_unk": True,
        },
    )


def metaspace(scheme):
    stage = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    return {**sentencepiece(), "normalizer": None, "pre_tokenizer": stage, "decoder": stage}


def by_library(data):
    with pytest.warns(MiniferWarning) as seen:
        tokenizer = Tokenizer.from_dict(data)
    assert len(seen) == 1 and isinstance(tokenizer, LibraryTokenizer)
    return tokenizer, str(seen[0].message)


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "normalizer Lowercase"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer Whitespace"),
        ({"pre_tokenizer": None}, "a pre_tokenizer without ByteLevel at its end"),
        ({"pre_tokenizer": split({"Regex": r"\w+"})}, r"pre_tokenizer Split: the pattern item at"),
        ({"model": {"dropout": 0.1}}, "model BPE with dropout"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "model BPE with end_of_word_suffix"),
        ({"decoder": {"type": "Fuse"}}, "decoder Fuse"),
        (
            {"model": {"vocab": {"a a": 0, "a aa": 1, "a": 2}, "merges": [["a a", "a"]]}},
            "merges of tokens that hold a space",
        ),
    ],
)
def test_one_line_names_the_stage(changes, stage):
    _, message = by_library(tiny(**changes))
    assert message.startswith("tokenizer.json: ") and "\n" not in message
    assert stage in message and message.endswith("is read by the tokenizers library")


@pytest.mark.parametrize("data", [sentencepiece(), metaspace("first"), metaspace("always")])
@given(text=texts | st.text(" ab<s>x", max_size=12), ids=st.lists(st.integers(0, 290), max_size=12))
@example(text="", ids=[2, 130])  # a good byte, then a bad one that takes it back
@example(text="", ids=[2, 1, 130])  # the same with a token between them that may be skipped
@settings(deadline=None, max_examples=60)
def test_the_fallback_has_the_same_interface(data, text, ids):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MiniferWarning)
        tok = Tokenizer.from_dict(data)
    library = tokenizers.Tokenizer.from_str(json.dumps(data))
    assert tok.encode(text) == library.encode(text).ids
    assert [piece.id for piece in tok.pieces(text)] == tok.encode(text)
    assert tok.pieces(text)[0] == Piece(1, tok.pieces(text)[0].token, None, None)
    assert tok.encode_protected(text, {}) == tok.encode(text, add_special_tokens=False)
    assert tok.encode_protected(text, {}, add_special_tokens=True) == tok.encode(text)
    for skip in (False, True):
        whole = tok.decode(ids, skip)
        assert whole == library.decode([i for i in ids if i < 267], skip_special_tokens=skip)
        stream = tok.stream(skip)
        assert "".join(map(stream.push, ids)) + stream.flush() == whole


def test_the_fallback_protects_text_too():
    tok, _ = by_library(sentencepiece([added(0, "<x>", normalized=True)]))
    assert tok.encode_protected("a\ue000s>ab<s>", {"\ue000": "<"}) == [
        *map(tok.id_of, ["▁", "a", "<", "s", ">", "ab"]),
        tok.id_of("<s>"),
    ]
    assert tok.encode("<s>", parse_special=False, add_special_tokens=False) == [
        *map(tok.id_of, ["▁", "<", "s", ">"])
    ]
    assert tok.vocab_size == 268 and tok.special_ids == {1} and tok.token_of(1) == "<s>"
    with pytest.raises(TokenizerError, match="lone surrogate"):
        tok.encode("\ud800")
    with pytest.raises(TokenizerError, match="expected a token id"):
        tok.decode([-1])


def test_what_the_library_refuses_is_a_tokenizer_error():
    with pytest.raises(TokenizerError, match="the library refuses it"):
        Tokenizer.from_dict(tiny(normalizer={"type": "Prepend"}))
