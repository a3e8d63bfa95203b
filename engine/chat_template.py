"""Rendering a conversation into the text a model was trained on: the checkpoint's jinja template.

The template is code from the checkpoint. It runs in jinja's immutable sandbox with the names that
transformers gives it: the `tojson` filter, `raise_exception`, `strftime_now`, `{% generation %}`,
`break` and `continue`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

from engine.errors import ValidationError

Message = Mapping[str, Any]  # role, content, and whatever else the template reads

# For checkpoints without a template (base models): one line per turn, role and text.
FALLBACK_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message.role | capitalize }}: {{ message.content | trim }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
FALLBACK_STOP = ("\nUser:", "\nSystem:")  # where an answer to the fallback's prompt ends

# What a template can raise: its own refusal, or an operation that these messages do not allow.
_TEMPLATE_FAULTS = (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError)


class ChatTemplate:
    """One compiled template. Thread-safe."""

    def __init__(self, source: str) -> None:
        self.source = source
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            problem = f"the chat template is broken: {error}"
            raise ValidationError(problem, "chat_template") from None

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """The text of a conversation; `ValidationError` if the template refuses it."""
        if not messages:
            raise ValidationError("a conversation needs at least one message", "messages", [])
        plain = [{k: v for k, v in message.items() if v is not None} for message in messages]
        try:
            return self._template.render(messages=plain, **variables)
        except _TEMPLATE_FAULTS as error:
            problem = f"the chat template refuses these messages: {error}"
            raise ValidationError(problem, "messages") from None


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant says, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
