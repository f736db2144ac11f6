"""The regular expressions of a tokenizer file, written for Oniguruma, read by the `regex` module.

The two engines agree on most of what tokenizers use and differ quietly on the rest: `\\h` is a
digit in one and a blank in the other, `{1,3}+` repeats in one and is possessive in the other. So a
pattern is first read item by item, and only items known to mean the same are let through.
"""

import regex

from .errors import TokenizerError
from .unicode_age import as_unicode_16, stand_ins

# Radford et al. 2019 (GPT-2): contractions, words, numbers, other signs, white space.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_CATEGORIES = (
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp"
    " Han Hiragana Katakana Hangul"
)
_ESCAPE = rf"\\[sSdDrntf]|\\[pP]\{{(?:{'|'.join(_CATEGORIES.split())})\}}|\\[!-/:-@\[-`\{{-~]"
_LETTER = "[A-HJ-Za-hj-z]"  # not i: `regex` folds its Turkish kin to it
_CASELESS = rf"'?(?:{_LETTER}*|\[{_LETTER}+\])"  # letters, or one set of them
_ITEMS = rf"""
      (?P<escape> {_ESCAPE} )
    | (?P<insensitive> \(\?i: {_CASELESS} (?: \| {_CASELESS} )* \) )
    | (?P<open> \( (?: \?: | \?= | \?! | \?<= | \?<! )? (?! \? ) )
    | (?P<set> \[ \^? (?: {_ESCAPE} | [^\[\]\\] )+ \] )
    | (?P<repeat> [?*+] [?+]? | \{{ \d+ (?: , \d* )? \}} )
    | (?P<plain> [^\\\[\](){{}}?*+^$] | \) )
"""
_SET_OPERATION = r"&&|\|\||~~|--"
_SET_RANGE = r"(?s)(.)-(.)"
# Oniguruma lets one character match two letters that fold to it (a ligature, ss for ß).
_FOLDS_TO_TWO = "(?i)ss|st|ff|fi|fl"


class NotOurs(Exception):
    """Something legal that the library knows and we do not read: its message names it."""


def compile_pattern(source: str, where: str) -> regex.Pattern:
    """A pattern of the file, compiled.

    Raises NotOurs for an item that may mean something else here, TokenizerError for a pattern
    that is not one.
    """
    items = regex.compile(_ITEMS, regex.VERBOSE)  # here, not above: many files have no pattern
    position, previous = 0, "open"
    while position < len(source):
        item = items.match(source, position)
        if item is None or not _same_in_both(item, previous):
            raise NotOurs(f"{where}: the pattern item at {source[position : position + 12]!r}")
        position, previous = item.end(), item.lastgroup
    try:
        return regex.compile(source)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise TokenizerError(f"{where}: {source[:60]!r} is not a pattern: {error}") from None


def _same_in_both(item: regex.Match, previous: str) -> bool:
    kind, text = item.lastgroup, item.group()
    if kind == "repeat":  # a repeat of a repeat is read differently
        return previous not in ("repeat", "open")
    if kind == "insensitive":
        return not regex.search(_FOLDS_TO_TWO, text)
    if kind == "set":
        inside = regex.sub(_ESCAPE, "", text[1:-1])
        return not regex.search(_SET_OPERATION, inside) and not any(
            _spans_a_young_character(*ends.groups()) for ends in regex.finditer(_SET_RANGE, inside)
        )
    return as_unicode_16(text) == text


def _spans_a_young_character(first: str, last: str) -> bool:
    # Such a range would have to match characters that the pattern is not shown.
    return last > "\u0294" and any(first <= young <= last for young in stand_ins())
