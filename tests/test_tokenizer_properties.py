"""Ours equals the library: encode, decode, pieces, streams, over all of Unicode."""

import functools

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_cases import (
    DEEPSEEK,
    LLAMA3,
    both,
    byte_level,
    library_encode,
    sequence,
    spaced,
    split,
    template,
    texts,
    trained,
)

from minifer.tokenizer import Tokenizer

DIGITS = {"type": "Digits", "individual_digits": True}
THEN_BYTES = byte_level(use_regex=False)
LLAMA3_STAGES = sequence("pretokenizers", split({"Regex": LLAMA3}), THEN_BYTES)

CASES = {
    "gpt2": lambda: trained(byte_level()),
    "prefix space, strings": lambda: spaced(trained(byte_level(add_prefix_space=True))),
    "no alphabet: letters are dropped": lambda: trained(byte_level(), alphabet=False),
    "unknown letters": lambda: trained(
        byte_level(), alphabet=False, extra=["<unk>"], model={"unk_token": "<unk>"}
    ),
    "unknown letters, fused": lambda: trained(
        byte_level(),
        alphabet=False,
        extra=["<unk>"],
        model={"unk_token": "<unk>", "fuse_unk": True},
    ),
    "smollm: digits, then gpt2": lambda: trained(
        sequence("pretokenizers", DIGITS, byte_level()), post_processor=byte_level()
    ),
    "digits in runs, prefix": lambda: trained(
        sequence(
            "pretokenizers",
            {"type": "Digits", "individual_digits": False},
            byte_level(add_prefix_space=True, use_regex=False),
        )
    ),
    "llama3: ignore_merges, bos": lambda: trained(
        LLAMA3_STAGES,
        model={"ignore_merges": True},
        post_processor=sequence("processors", byte_level(), template(3, None, 4)),
    ),
    "qwen: NFC": lambda: trained(LLAMA3_STAGES, normalizer={"type": "NFC"}),
    "NFD": lambda: trained(
        byte_level(), normalizer={"type": "NFD"}, post_processor=template(None, 2)
    ),
    "NFKD, then NFC": lambda: trained(
        byte_level(), normalizer=sequence("normalizers", {"type": "NFKD"}, {"type": "NFC"})
    ),
    "NFKC, no decoder": lambda: trained(byte_level(), normalizer={"type": "NFKC"}, decoder=None),
    "deepseek: three splits": lambda: trained(
        sequence(
            "pretokenizers",
            split({"Regex": r"\p{N}{1,3}"}),
            split({"Regex": "[一-龥぀-ゟ゠-ヿ]+"}),
            split({"Regex": DEEPSEEK}),
            THEN_BYTES,
        )
    ),
}


@functools.cache
def case(name):
    return both(CASES[name]())


def compare(ours, library, text):
    for special in (True, False):
        for parse in (True, False):
            theirs = library_encode(library, text, special, parse).ids
            assert ours.encode(text, special, parse) == theirs
            assert [piece.id for piece in ours.pieces(text, special, parse)] == theirs
    ids = ours.encode(text)
    for skip in (False, True):
        assert ours.decode(ids, skip) == library.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", CASES)
@given(text=texts)
@settings(deadline=None, max_examples=120)
def test_encode_and_decode_equal_the_library(name, text):
    compare(*case(name), text)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data(), skip=st.booleans())
@settings(deadline=None, max_examples=80)
def test_any_ids_decode_as_the_library_and_as_a_stream(name, data, skip):
    ours, library = case(name)
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size + 3), max_size=20))
    whole = ours.decode(ids, skip)
    assert whole == library.decode(ids, skip_special_tokens=skip)
    stream = ours.stream(skip)
    assert "".join(map(stream.push, ids)) + stream.flush() == whole


@pytest.mark.parametrize("name", [name for name in CASES if "dropped" not in name])
@given(text=texts)
@settings(deadline=None, max_examples=80)
def test_pieces_stand_where_the_library_says(name, text):
    ours, library = case(name)
    pieces = ours.pieces(text)
    encoding = library.encode(text)
    assert [piece.token for piece in pieces] == [library.id_to_token(p.id) for p in pieces]
    for piece, offsets, sequence_id in zip(
        pieces, encoding.offsets, encoding.sequence_ids, strict=True
    ):
        if sequence_id is None:
            assert (piece.start, piece.end) == (None, None)
        elif piece.start is not None:
            assert (piece.start, piece.end) == offsets
        else:
            assert library.normalizer is not None
            assert library.normalizer.normalize_str(text) != text


@given(text=texts, hidden=st.sets(st.sampled_from("<xt1 é"), max_size=3))
@settings(deadline=None, max_examples=200)
@pytest.mark.parametrize("name", ["gpt2", "qwen: NFC", "NFD"])
def test_protected_characters_are_only_hidden_from_added_tokens(name, text, hidden):
    ours, _ = case(name)
    protected = {chr(0xE000 + i): character for i, character in enumerate(sorted(hidden))}
    assert ours.encode_protected(text, protected) == ours.encode(text, add_special_tokens=False)
    bare = Tokenizer.from_dict({**CASES[name](), "added_tokens": []})
    everything = sorted(set(text) - set("\ue000\ue001"))[:6000]
    table = {character: chr(0xF0000 + i) for i, character in enumerate(everything)}
    masked = text.translate(str.maketrans(table))
    back = {placeholder: character for character, placeholder in table.items()}
    assert ours.encode_protected(masked, back) == bare.encode(text, add_special_tokens=False)


@pytest.fixture(scope="module")
def default_tokenizer():
    from minifer.fetch import default_folder

    path = default_folder() / "tokenizer.json"
    return Tokenizer.from_file(path), tokenizers.Tokenizer.from_file(str(path))


@pytest.mark.default_model
@given(text=texts)
@settings(deadline=None, max_examples=300)
def test_the_default_tokenizer_equals_the_library(default_tokenizer, text):
    compare(*default_tokenizer, text)
    chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    compare(*default_tokenizer, chat)
