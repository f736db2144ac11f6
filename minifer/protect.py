"""Keep an added token's text inside a message what it is: plain text.

Its first character is rendered as a private placeholder, one for one, so that a template may still
trim and slice; the tokenizer finds no added token there and reads the placeholder as the character.
"""

from collections.abc import Callable, Iterator
from typing import Any

from .errors import TemplateError


def protect(
    messages: Any, tokens: list[str], render: Callable[[Any], str]
) -> tuple[str, dict[str, str]]:
    """-> the text that `render` makes of the messages, with placeholders in it, and
    {placeholder: the character it stands for}. `tokens` are the texts of the added tokens.

    Where a template looks for such a text itself (`</think>`), a placeholder would change what it
    writes; there the text is left as the template wants it.
    """
    rendered = render(messages)
    protected: dict[str, str] = {}
    found = [
        (path, token)
        for path, content in _strings(messages)
        for token in sorted(tokens, key=len, reverse=True)
        if token in content and not token.isspace()
    ]

    def hide(marked: Any, path: tuple, token: str) -> Any:
        placeholder = _placeholder(protected, token[0], rendered)
        hidden = _at(marked, path).replace(token, placeholder + token[1:])
        return _replace(marked, path, hidden)

    def same(text: str) -> bool:
        return _restore(text, protected) == rendered

    marked = messages
    for path, token in found:
        marked = hide(marked, path, token)
    text = render(marked) if found else rendered
    if same(text):
        return text, protected
    marked, text = messages, rendered
    for path, token in found:  # some template looks for some of them: one at a time
        trial = hide(marked, path, token)
        shown = render(trial)
        if same(shown):
            marked, text = trial, shown
    return text, protected


def _strings(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, str]]:
    """Every text in the messages, with the way to it."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inside in items:
        if isinstance(inside, str):
            yield (*path, key), inside
        elif isinstance(inside, (dict, list, tuple)):
            yield from _strings(inside, (*path, key))


def _at(value: Any, path: tuple) -> Any:
    for key in path:
        value = value[key]
    return value


def _replace(value: Any, path: tuple, text: str) -> Any:
    """The same messages with one text changed; the caller's own stay as they are."""
    if not path:
        return text
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = _replace(value[path[0]], path[1:], text)
    return copied


def _placeholder(protected: dict[str, str], character: str, text: str) -> str:
    """A private-use character that stands for this one and does not occur in the text."""
    for placeholder, stands_for in protected.items():
        if stands_for == character:
            return placeholder
    taken = {*text, *protected}
    free = (chr(code) for code in (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE)))
    placeholder = next((mark for mark in free if mark not in taken), None)
    if placeholder is None:
        raise TemplateError("the messages hold every private-use character; leave some out")
    protected[placeholder] = character
    return placeholder


def _restore(text: str, protected: dict[str, str]) -> str:
    return text.translate({ord(mark): character for mark, character in protected.items()})
