"""stopping.py: what is shown, what is held back, and why an answer is over."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import EOS, tiny_model

import minifer
from minifer.errors import SamplingError
from minifer.stopping import Answer, StopStrings

# Few letters, so that stops overlap themselves, each other and the cuts.
texts = st.text("ab\n", max_size=14)
stop_sets = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def cut(text, stops):
    """The text before the stop that is complete first, of those the longest; None: no stop."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return None


@settings(max_examples=600, deadline=None)
@given(texts, stop_sets, st.data())
def test_pieces_make_no_difference(text, stops, data):
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    edges = [0, *places, len(text)]
    held = StopStrings(stops)
    shown, stopped, seen = "", False, ""
    for begin, end in pairwise(edges):
        more, stopped = held.push(text[begin:end])
        shown += more
        seen += text[begin:end]
        if stopped:
            break
        # Held is the longest end that begins a stop: nothing less, nothing more.
        could = [n for n in range(len(seen) + 1) if any(s.startswith(seen[n:]) for s in stops)]
        assert shown + held.held == seen
        assert len(shown) == min([*could, len(seen)])
    if not stopped:
        shown += held.flush()
    assert held.flush() == ""
    expected = cut(text, stops)
    assert stopped == (expected is not None)
    assert shown == (text if expected is None else expected)


def test_the_first_to_be_complete_wins_in_one_piece_or_many():
    for pieces in (["xabcd"], list("xabcd"), ["xab", "cd"]):
        held, shown = StopStrings(["abcd", "bc"]), ""
        for piece in pieces:
            more, stopped = held.push(piece)
            shown += more
            if stopped:
                break
        assert (shown, stopped) == ("xa", True)


def test_no_stops_hold_nothing():
    assert StopStrings(()).push("anything") == ("anything", False)


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], None, 3, [None], b"a", [b"a"], [["a"]]])
def test_what_is_no_stop(stop):
    with pytest.raises(
        SamplingError, match=r"stop is .*; allowed is a text or several, none of th"
    ):
        StopStrings(stop)
    with pytest.raises(SamplingError, match="stop is"):
        minifer.generate(tiny_model(), [5], stop=stop)


@pytest.mark.parametrize("stop", ["ab", ["ab"], ("ab",), {"ab"}, iter(["ab"])])
def test_a_text_or_several(stop):
    assert StopStrings(stop).push("xaby") == ("x", True)


# ---- Answer ------------------------------------------------------------------------------------


def answer(stop=(), eos=frozenset({EOS}), max_tokens=100):
    return Answer(tiny_model().tokenizer, stop, eos, max_tokens)


def ids_of(text):
    return tiny_model().tokenizer.encode(text)


def play(made, ids):
    """Pushes until there is a reason -> (text, reason, tokens taken)."""
    shown = ""
    for count, token_id in enumerate(ids, 1):
        text, reason = made.push(token_id)
        shown += text
        if reason:
            return shown, reason, count
    return shown, None, len(ids)


def test_an_eos_ends_with_no_text():
    assert answer().push(EOS) == ("", "stop")
    ids = ids_of("the user")
    assert play(answer(), [*ids, EOS, 5]) == ("the user", "stop", len(ids) + 1)


def test_an_eos_shows_what_was_held():
    assert play(answer("###"), [*ids_of("a##"), EOS])[:2] == ("a##", "stop")


def test_an_eos_at_the_limit_is_a_stop():
    assert play(answer(max_tokens=1), [EOS]) == ("", "stop", 1)


def test_an_ignored_eos_is_only_invisible():
    ids = [*ids_of("a"), EOS, *ids_of("b")]
    assert play(answer(eos=frozenset(), max_tokens=3), ids) == ("ab", "length", 3)


def test_an_eos_with_an_ordinary_text_is_not_shown():
    made = answer(eos=frozenset(ids_of("b")))
    assert play(made, ids_of("a") + ids_of("b")) == ("a", "stop", 2)


def test_the_limit_shows_what_was_held():
    assert play(answer("xyz", max_tokens=3), ids_of("axy")) == ("axy", "length", 3)


def test_a_stop_in_the_last_token_is_a_stop():
    assert play(answer("xy", max_tokens=3), ids_of("axy")) == ("a", "stop", 3)


@pytest.mark.parametrize("text", ["日", "👍", "é"])
def test_an_incomplete_character_is_held_then_shown_as_a_replacement(text):
    ids = tiny_model().tokenizer.encode("a" + text.replace("é", "ö"))[:-1]
    for ending, reason in (([EOS], "stop"), ([], "length")):
        made = answer(max_tokens=len(ids) + len(ending))
        assert play(made, ids + ending)[:2] == ("a\ufffd", reason)


def test_a_stop_that_the_flush_completes():
    ids = ids_of("日")[:1]
    assert play(answer("\ufffd", max_tokens=1), ids) == ("", "stop", 1)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 299), min_size=1, max_size=12),
    st.lists(st.sampled_from(["a", "the", "\ufffd", " ", "er", "é"]), max_size=2),
)
def test_the_texts_joined_are_the_decoded_text_cut_at_the_stop(ids, stops):
    shown, reason, count = play(answer(stops, max_tokens=len(ids)), ids)
    taken = ids[:count]
    whole = tiny_model().tokenizer.decode(
        taken[:-1] if taken[-1] == EOS else taken, skip_special_tokens=True
    )
    expected = cut(whole, stops)
    assert shown == (whole if expected is None else expected)
    assert reason == ("stop" if expected is not None or taken[-1] == EOS else "length")


def test_without_a_tokenizer_only_the_tokens_count():
    made = Answer(None, (), frozenset({EOS}), 3)
    assert [made.push(5), made.push(6), made.push(7)] == [("", None), ("", None), ("", "length")]
