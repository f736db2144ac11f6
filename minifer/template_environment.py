"""The Jinja that a chat template runs in: what transformers gives it, no more.

Imported when the first prompt is rendered: Jinja takes its time to import.
"""

import json
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError as Refusal
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """{% generation %} marks the assistant's words for training; here it only shows them."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own spelling)

    def parse(self, parser: Parser) -> nodes.Node:
        """The marked words as they are."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def raise_exception(message: str) -> None:
    """What a template calls to refuse its messages."""
    raise Refusal(message)


def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, **more: Any) -> str:
    """Jinja's own tojson escapes <, > and & for HTML; a prompt is not HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def template_environment() -> ImmutableSandboxedEnvironment:
    """A sandbox that lets a template neither reach out nor change the messages."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    return environment
