"""The tokenizer's interface by hand, and its mistakes by message."""

import json
import threading
import time
import warnings

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_cases import added, both, byte_level, sequence, split, template, tiny

from minifer.errors import MiniferWarning, TokenizerError
from minifer.tokenizer import Piece, Tokenizer

BYTES = {
    letter: place for place, letter in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())
}


def test_a_text_by_hand(tmp_path):
    path = tmp_path / "tokenizer.json"
    special = added(9, "<s>", special=True)
    data = tiny(added_tokens=[special], post_processor=template(5, None), padding={"no": "sense"})
    path.write_text(json.dumps(data), encoding="utf-8")
    tok = Tokenizer.from_file(path)
    assert tok.encode("ab ab") == [5, 3, 4]
    assert tok.encode("<s>ab", add_special_tokens=False) == [5, 3]
    assert tok.encode("<s>ab", add_special_tokens=False, parse_special=False) == [3]
    assert tok.decode([5, 3, 4]) == "<s>ab ab"
    assert tok.decode([5, 3, 4], skip_special_tokens=True) == "ab ab"
    assert tok.pieces("b ab") == [
        Piece(5, "<s>", None, None),
        Piece(1, "b", 0, 1),
        Piece(4, "Ġab", 1, 4),
    ]
    assert tok.vocab_size == 6 and tok.special_ids == {5}
    assert (tok.id_of("<s>"), tok.id_of("Ġab"), tok.id_of("nothing")) == (5, 4, None)
    assert (tok.token_of(5), tok.token_of(4), tok.token_of(99)) == ("<s>", "Ġab", None)
    token = tok.added_tokens["<s>"]
    assert (token.id, token.special, token.normalized) == (5, True, False)
    assert tok.encode("") == [5] and tok.encode("", add_special_tokens=False) == []


@pytest.mark.parametrize("merge", ["a b", ["a", "b"]])
def test_merges_are_strings_or_pairs(merge):
    assert Tokenizer.from_dict(tiny(model={"merges": [merge]})).encode("ab") == [3]


def test_ids_of_added_tokens_are_given_out_as_the_library_does():
    tokens = [added(50, "<x>"), added(40, "a", special=True), added(9, "<y>"), added(8, "<x>")]
    ours, library = both(tiny(added_tokens=[*tokens, added(7, "")]))
    for token_id, token in library.get_added_tokens_decoder().items():
        assert ours.added_tokens[token.content].id == token_id
    assert ours.encode("<x>a<y>") == library.encode("<x>a<y>").ids == [5, 0, 6]


def test_an_unfinished_character_is_held_and_flushed():
    tok = Tokenizer.from_dict(tiny(model={"vocab": BYTES, "merges": []}))
    ids = tok.encode("a👍")
    assert len(ids) == 5
    stream = tok.stream()
    assert [stream.push(token_id) for token_id in ids] == ["a", "", "", "", "👍"]
    stream = tok.stream()
    assert [stream.push(token_id) for token_id in ids[:4]] == ["a", "", "", ""]
    assert stream.flush() == "\ufffd" and stream.flush() == ""
    assert tok.decode(ids[1:4]) == "\ufffd"


def test_protected_text_forms_no_added_token():
    vocab = {**BYTES, "<|": 300, "|>": 301}
    tokens = [added(0, "<|end|>", special=True), added(0, "<|", normalized=True)]
    tok = Tokenizer.from_dict(
        tiny(added_tokens=tokens, model={"vocab": vocab, "merges": [["<", "|"], ["|", ">"]]})
    )
    end = tok.id_of("<|end|>")
    assert tok.encode("x<|end|>") == [BYTES["x"], end]
    guarded = tok.encode_protected("\ue000|end|><|end|>", {"\ue000": "<"})
    assert guarded == [300, *(BYTES[c] for c in "end"), 301, end]
    assert tok.decode(guarded) == "<|end|><|end|>"


def test_one_long_piece_takes_no_quadratic_time():
    tok = Tokenizer.from_dict(
        tiny(model={"vocab": {"a": 0, "aa": 1, "aaaa": 2}, "merges": ["a a", "aa aa"]})
    )
    start = time.perf_counter()
    assert tok.encode("a" * 100_001) == [2] * 25_000 + [0]
    assert time.perf_counter() - start < 10


def test_threads_share_a_tokenizer(monkeypatch):
    monkeypatch.setattr("minifer.bpe.CACHED_PIECES", 8)
    tok = Tokenizer.from_dict(tiny(model={"vocab": BYTES, "merges": []}))
    text = " ".join(map(str, range(400)))
    expected, answers = tok.encode(text), []
    threads = [threading.Thread(target=lambda: answers.append(tok.encode(text))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 8 and len(tok._bpe.cache) <= 16


# ---- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\ud800", r"text: character 1 is a lone surrogate \(U\+D800\)"),
        (b"a", "cannot encode bytes, expected str"),
        (None, "cannot encode NoneType"),
    ],
)
def test_what_is_no_text_is_refused(text, message):
    tok = Tokenizer.from_dict(tiny())
    for call in (tok.encode, tok.pieces, lambda text: tok.encode_protected(text, {})):
        with pytest.raises(TokenizerError, match=message):
            call(text)


@pytest.mark.parametrize("wrong", [-1, 1.0, "1", None])
def test_what_is_no_id_is_refused(wrong):
    tok = Tokenizer.from_dict(tiny())
    with pytest.raises(TokenizerError, match="expected a token id of 0 or more"):
        tok.decode([0, wrong])
    with pytest.raises(TokenizerError, match="expected a token id of 0 or more"):
        tok.stream().push(wrong)
    assert tok.decode([0, 10**30]) == "a"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff{}", "not UTF-8"),
        (b"[]", "expected an object"),
        (b"[" * 100_000, "not valid JSON"),
        (b"{}", "the key 'model' is missing"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content, message):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_file(path)
    assert "tokenizer.json" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TokenizerError, match="nowhere"):
        Tokenizer.from_file(tmp_path / "nowhere.json")


def nested(depth):
    stage = byte_level()
    for _ in range(depth):
        stage = sequence("pretokenizers", stage)
    return stage


def without(key, **changes):
    return {k: v for k, v in {**added(5, "<x>"), **changes}.items() if k != key}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2.0"}, "version '2.0'; only '1.0' is known"),
        ({"model": {"type": "Magic"}}, "unknown model 'Magic'; known are BPE, Unigram"),
        ({"normalizer": {"type": "Magic"}}, "unknown normalizer 'Magic'; known are Bert"),
        ({"pre_tokenizer": {"type": "Magic"}}, "unknown pre_tokenizer 'Magic'"),
        ({"post_processor": {"type": ["x"]}}, r"unknown post_processor \['x'\]"),
        ({"decoder": {}}, "unknown decoder None; known are BPEDecoder"),
        ({"decoder": 3}, r"decoder is '3', expected null"),
        ({"normalizer": {"type": "Sequence"}}, "normalizer Sequence: the key 'normalizers'"),
        ({"pre_tokenizer": nested(5000)}, "nested too deeply"),
        ({"pre_tokenizer": {"type": "ByteLevel"}}, "the key 'add_prefix_space' is missing"),
        (
            {"pre_tokenizer": byte_level(add_prefix_space=1)},
            r"'add_prefix_space' is '1' \(int\), expected bool",
        ),
        ({"pre_tokenizer": split({"Regex": "a"}, "Sideways")}, "behavior 'Sideways'; known are"),
        ({"pre_tokenizer": split({"Regex": "(a"})}, "pre_tokenizer Split: '\\(a' is not a pattern"),
        ({"pre_tokenizer": split({"Glob": "a"})}, r"pattern has \['Glob'\], expected String"),
        ({"pre_tokenizer": split("a")}, "'pattern' is 'a'"),
        ({"model": {"vocab": []}}, "'vocab' is"),
        ({"model": {"vocab": {}}}, "expected ids of 0 to"),
        ({"model": {"vocab": {"a": -1}}}, r"vocab has \{'a': -1\}"),
        ({"model": {"vocab": {"a": 2**32}}}, "4294967296"),
        ({"model": {"vocab": {"a": True}}}, "True"),
        ({"model": {"vocab": {"a": 1, "b": "2"}}}, r"\{'b': '2'\}"),
        ({"model": {"vocab": {"a": 1, "b": 2, "c": 1}}}, r"\['a', 'c'\] have the same id 1"),
        ({"model": {"vocab": {"a\ud800": 1}}}, "vocab: character 1 is a lone surrogate"),
        ({"model": {"merges": ["a z"]}}, "merges name 'az'"),
        ({"model": {"merges": ["b a"]}}, "merges name 'ba', which is not in the vocabulary"),
        ({"model": {"merges": ["ab"]}}, "the merge ab, expected 'left right'"),
        ({"model": {"merges": ["a b", "a b c"]}}, "the merge a b c"),
        ({"model": {"merges": [["a"]]}}, r"the merge \['a'\], expected two strings"),
        ({"model": {"merges": [["a", 1]]}}, r"the merge \['a', 1\]"),
        ({"model": {"merges": ["a b", ["a", "b"]]}}, "expected all strings or pairs"),
        ({"model": {"merges": [7]}}, "expected all strings or pairs"),
        ({"model": {"merges": None}}, "'merges' is 'None'"),
        ({"model": {"unk_token": "?"}}, r"unk_token '\?' is not in the vocabulary"),
        ({"model": {"unk_token": 5}}, "'unk_token' is '5'"),
        ({"model": {"ignore_merges": "yes"}}, "'ignore_merges' is 'yes'"),
        ({"added_tokens": {}}, "'added_tokens' is"),
        ({"added_tokens": ["<x>"]}, r"added_tokens\[0\]: '<x>', expected"),
        ({"added_tokens": [without("lstrip")]}, r"added_tokens\[0\]: the key 'lstrip' is missing"),
        ({"added_tokens": [added(5, 7)]}, "'content' is '7'"),
        ({"added_tokens": [added(-5, "<x>")]}, "id -5, expected 0 to"),
        ({"added_tokens": [added(5, "\udc00")]}, "lone surrogate"),
        ({"post_processor": {"type": "TemplateProcessing"}}, "'special_tokens' is missing"),
        (
            {"post_processor": {**template(None), "single": [{"SpecialToken": {"id": "no"}}]}},
            "expected Sequence A or one of",
        ),
        ({"post_processor": template(-3)}, r"ids of 't-3' are \[-3\]"),
    ],
)
def test_a_malformed_section_is_named(changes, message):
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_dict(tiny(**changes), source="some/tokenizer.json")
    assert str(caught.value).startswith("some/tokenizer.json: ")


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just("ByteLevel")
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "vocab", "merges", "id", "a"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(section=st.sampled_from([*tiny(), *tiny()["model"]]), value=JSON)
@settings(deadline=None, max_examples=300)
def test_nothing_but_a_tokenizer_error_comes_out(section, value):
    data = tiny()
    (data if section in data else data["model"])[section] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MiniferWarning)
        try:
            Tokenizer.from_dict(data).encode("ab a")
        except TokenizerError as error:
            assert str(error).startswith("tokenizer.json: ")
