"""Unicode normalisation of a text before it is cut: NFC, NFD, NFKC, NFKD (Unicode Annex 15)."""

import unicodedata
from collections.abc import Callable
from functools import cache

import regex

from .unicode_age import INERT, as_class, characters

FORMS = ("NFC", "NFD", "NFKC", "NFKD")

Normalizer = Callable[[str], str]


def normalizer(forms: tuple[str, ...]) -> Normalizer:
    """One function that applies the forms in their order; none of them leaves the text alone."""

    def normalize(text: str) -> str:
        for form in forms:
            text = normalize_form(form, text)
        return text

    return normalize


def normalize_form(form: str, text: str) -> str:
    """The text in one form, with characters that the reference does not know left as they are."""
    if text.isascii():  # ASCII is its own normal form in all four
        return text
    if _inert().isdisjoint(text):
        return unicodedata.normalize(form, text)
    # An inert character takes part in nothing, so what stands on its two sides never meets.
    parts = _inert_pattern().split(text)
    return "".join(
        part if index % 2 else unicodedata.normalize(form, part) for index, part in enumerate(parts)
    )


@cache
def _inert() -> frozenset[str]:
    return characters(INERT)


@cache
def _inert_pattern() -> regex.Pattern:
    return regex.compile(f"([{as_class(INERT)}]+)")
