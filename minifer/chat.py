"""From messages to a prompt: the model's own chat template, run as transformers runs it.

A template is a program in Jinja that somebody else wrote: it runs in Jinja's immutable sandbox.
"""

from datetime import datetime
from os.path import lexists
from pathlib import Path
from typing import Any

from .errors import TemplateError
from .json_file import read_bytes, read_json
from .protect import protect

Messages = list[dict[str, Any]]


class ChatTemplate:
    """One template and the special tokens it may name (bos_token, eos_token, ...)."""

    def __init__(self, source: str, special_tokens: dict[str, str], origin: str = "") -> None:
        self.source, self.special_tokens, self.origin = source, special_tokens, origin
        self._compiled: Any = None

    def render(self, messages: Messages, **variables: Any) -> str:
        """Messages -> the prompt's text. Raises TemplateError, also when the template refuses."""
        return self._run(messages, datetime.now(), variables)

    def _run(self, messages: Messages, now: datetime, variables: dict[str, Any]) -> str:
        import jinja2

        check_messages(messages)
        try:
            if self._compiled is None:
                from .template_environment import template_environment

                self._compiled = template_environment().from_string(self.source)
            given = {"tools": None, "documents": None, **self.special_tokens, **variables}
            given["strftime_now"] = now.strftime
            return self._compiled.render(messages=as_templates_expect(messages), **given)
        except jinja2.TemplateError as problem:
            raise TemplateError(f"{self.origin or 'chat template'}: {problem}") from None
        except Exception as problem:  # it is a program: whatever it raises is its own fault
            raise TemplateError(
                f"{self.origin or 'chat template'}: fails on these messages ({problem})"
            ) from None

    def encode(self, tokenizer: Any, messages: Messages, add_generation_prompt: bool) -> list[int]:
        """Messages -> token ids, without further specials: the template wrote them.

        An added token's text inside a message (`<|im_end|>` typed by a user) stays plain text.
        """
        now = datetime.now()  # one for all renderings: a template may write the time

        def render(given: Messages) -> str:
            return self._run(given, now, {"add_generation_prompt": add_generation_prompt})

        try:
            text, protected = protect(messages, list(tokenizer.added_tokens), render)
        except RecursionError:
            raise TemplateError("the messages are nested too deeply, or hold themselves") from None
        return tokenizer.encode_protected(text, protected)


def check_messages(messages: Any) -> None:
    """Raise TemplateError unless this is a list of {role, content} with texts."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise TemplateError(
            f"messages are {messages!r:.60}, expected a list of {{'role': ..., 'content': ...}}"
        )
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TemplateError(
                f"message {place} is {message!r:.60}, expected a dict with a text 'role'"
            )


def as_templates_expect(messages: Messages) -> Messages:
    """The messages without keys that are None, and with the reasoning under the names in use."""
    given = []
    for message in messages:
        present = {key: value for key, value in message.items() if value is not None}
        names = [name for name in ("reasoning_content", "thinking", "reasoning") if name in present]
        if names:
            reasoning = present[names[0]]
            present = {"thinking": reasoning, **present, "reasoning_content": reasoning}
        given.append(present)
    return given


def load_template(folder: Path) -> ChatTemplate | None:
    """chat_template.jinja, else the key in tokenizer_config.json; None where there is neither."""
    config_path, jinja_path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = read_json(config_path, TemplateError) if lexists(config_path) else {}
    source, origin = config.get("chat_template"), str(config_path)
    if lexists(jinja_path):  # a broken link is an error, not the absence of a template
        try:
            source, origin = read_bytes(jinja_path, TemplateError).decode("utf-8"), str(jinja_path)
        except UnicodeDecodeError as problem:
            raise TemplateError(f"{jinja_path}: not UTF-8 text (byte {problem.start})") from None
    if isinstance(source, list):
        source = _named(source, origin)
    if source is None:
        return None
    if not isinstance(source, str):
        raise TemplateError(
            f"{origin}: chat_template is a {type(source).__name__}, expected a text"
        )
    return ChatTemplate(source, _special_tokens(config), origin)


def _named(listed: list, origin: str) -> str:
    """A list of {name, template}: the one called default."""
    names = {}
    for entry in listed:
        if not isinstance(entry, dict) or not {"name", "template"} <= set(entry):
            raise TemplateError(
                f"{origin}: chat_template lists {entry!r:.60}, not name and template"
            )
        names[str(entry["name"])] = entry["template"]
    if "default" not in names:
        found = ", ".join(map(str, names)) or "none"
        raise TemplateError(f"{origin}: no template is called default; found: {found}")
    return names["default"]


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and the like: a text, or an object with its content."""
    found = {}
    for key, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            found[key] = content
    return found
