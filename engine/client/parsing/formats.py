"""The formats of widely used models, and which one a checkpoint's files speak of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from engine.client.parsing.anchors import Anchor
from engine.client.parsing.calls import NamedCalls
from engine.client.parsing.grammar import Field, Format, Grammar
from engine.client.parsing.json_calls import JsonArguments, JsonCalls
from engine.client.parsing.marks import AddedToken
from engine.client.parsing.pair_calls import PairCalls
from engine.client.parsing.response_template import UnreadableTemplate, read_response_template

_THINK: Final = Field("reasoning", Anchor(("<think>",)), Anchor(("</think>",)))
_TOOL_CALL: Final = (Anchor(("<tool_call>",)), Anchor(("</tool_call>",)))

PLAIN: Final = Format("plain", ())

THINK: Final = Format("think", (_THINK,))  # thoughts, and calls that we cannot read

# Qwen 2.5 and 3, QwQ, Hermes, and many that were trained like them.
HERMES: Final = Format("hermes", (_THINK, Field("call", *_TOOL_CALL, JsonCalls())))

QWEN_XML: Final = Format(  # Qwen 3 Coder, Qwen 3.5
    "qwen_xml",
    (
        _THINK,
        Field(
            "call",
            *_TOOL_CALL,
            PairCalls(
                name_begins="<function=",
                name_ends=">",
                key_begins="<parameter=",
                key_ends=">",
                value_begins="",
                value_ends="</parameter>",
                strip="newline",
                after="</function>",
            ),
        ),
    ),
)

GLM: Final = Format(  # from 4.5 on
    "glm",
    (
        _THINK,
        Field(
            "call",
            *_TOOL_CALL,
            PairCalls(
                key_begins="<arg_key>",
                key_ends="</arg_key>",
                value_begins="<arg_value>",
                value_ends="</arg_value>",
                strip="nothing",
            ),
        ),
    ),
)

LLAMA: Final = Format(  # 3.1 and later: an object alone, or after a token
    "llama",
    (Field("call", Anchor(("<|python_tag|>",)), None, JsonCalls()),),
    bare=JsonCalls(arguments_keys=("parameters", "arguments"), is_bare=True),
    has_parallel=False,
)

_MISTRAL_THINK: Final = Field("reasoning", Anchor(("[THINK]",)), Anchor(("[/THINK]",)))

MISTRAL_LIST: Final = Format(  # [TOOL_CALLS][{"name": …, "arguments": …}, …]
    "mistral_list",
    (_MISTRAL_THINK, Field("call", Anchor(("[TOOL_CALLS]",)), None, JsonCalls(in_list=True))),
)

MISTRAL: Final = Format(  # [TOOL_CALLS]name[ARGS]{…}, once for each call
    "mistral",
    (
        _MISTRAL_THINK,
        Field(
            "call",
            Anchor(("[TOOL_CALLS]",)),
            None,
            NamedCalls(name_ends=("[ARGS]",), id_begins="[CALL_ID]"),
        ),
    ),
)

_DEEPSEEK_CALL: Final = (Anchor(("<｜tool▁call▁begin｜>",)), Anchor(("<｜tool▁call▁end｜>",)))
_DEEPSEEK_BETWEEN: Final = Field(
    "text", None, Anchor(("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"))
)
_DEEPSEEK_AROUND: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

DEEPSEEK: Final = Format(  # V3.1: the name, and arguments as they are
    "deepseek",
    (_THINK, Field("call", *_DEEPSEEK_CALL, NamedCalls(name_ends=("<｜tool▁sep｜>",)))),
    implicit=_DEEPSEEK_BETWEEN,
    around=_DEEPSEEK_AROUND,
)

DEEPSEEK_FENCED: Final = Format(  # V3, R1: a type, the name, and arguments in a fence
    "deepseek_fenced",
    (
        _THINK,
        Field(
            "call",
            *_DEEPSEEK_CALL,
            NamedCalls(
                name_ends=("\n",),
                after="<｜tool▁sep｜>",
                before="function",
                around=("```json\n", "\n```"),
            ),
        ),
    ),
    implicit=_DEEPSEEK_BETWEEN,
    around=_DEEPSEEK_AROUND,
)

_HARMONY_END: Final = Anchor(("<|end|>", "<|return|>", "<|call|>"))
_HEADER: Final = r"(?:<\|start\|>assistant)?"
_TO: Final = r"\s*to=(?:functions\.)?(?P<name>[\w.:/-]+)"
_CHANNEL: Final = r"<\|channel\|>(?:analysis|commentary|final)"
_TYPE: Final = r"(?:\s*(?:<\|constrain\|>)?\s*\w+)?\s*<\|message\|>"

HARMONY: Final = Format(  # gpt-oss
    "harmony",
    (
        Field(
            "call",
            Anchor(pattern=f"(?:{_HEADER}{_TO}\\s*{_CHANNEL}|{_HEADER}{_CHANNEL}{_TO}){_TYPE}"),
            _HARMONY_END,
            JsonArguments(),
            written=(
                "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
                "<|call|>",
            ),
        ),
        Field(
            "reasoning",
            Anchor(pattern=_HEADER + r"<\|channel\|>analysis\s*<\|message\|>"),
            _HARMONY_END,
            written=("<|channel|>analysis<|message|>", "<|end|>"),
        ),
        Field("text", Anchor(pattern=_HEADER + _CHANNEL + _TYPE), _HARMONY_END),
    ),
    implicit=Field("text", None, Anchor(pattern=r"<\|start\|>assistant|<\|(?:end|return|call)\|>")),
    between="<|start|>assistant",
    has_parallel=False,
)

FORMATS: Final[Mapping[str, Format]] = {
    each.name: each
    for each in (
        *(HERMES, QWEN_XML, GLM, LLAMA, MISTRAL_LIST, MISTRAL),
        *(DEEPSEEK, DEEPSEEK_FENCED, HARMONY, THINK, PLAIN),
    )
}


def choose_format(
    chat_template: str,
    tokens: Iterable[AddedToken] = (),
    response_template: object = None,
    name: str | None = None,
) -> Format:
    """The format of a checkpoint: what the operator names, else what its files say.

    Its own `response_template` counts first, then what its chat template writes, then its tokens;
    one that is unreadable, or speaks of none that we know, leaves everything text. Raises
    `KeyError` for a name that no format has.
    """
    if name is not None:
        return FORMATS[name]
    if response_template is not None:
        try:
            return read_response_template(response_template)
        except UnreadableTemplate:
            pass
    added = {each.text for each in tokens}
    return next(
        (
            each
            for each, markers in _SIGNS
            if all(marker in chat_template or marker in added for marker in markers)
        ),
        PLAIN,
    )


# What only the format's models have, the more special ones first.
_SIGNS: Final = (
    (HARMONY, ("<|channel|>", "<|message|>")),
    (DEEPSEEK_FENCED, ("<｜tool▁call▁begin｜>", "```json")),
    (DEEPSEEK, ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")),
    (GLM, ("<arg_key>", "<arg_value>")),
    (QWEN_XML, ("<tool_call>", "<function=", "<parameter=")),
    (HERMES, ("<tool_call>", "</tool_call>")),
    (MISTRAL, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL_LIST, ("[TOOL_CALLS]",)),
    (LLAMA, ("<|python_tag|>",)),
    (LLAMA, ('{"name": function name, "parameters": dictionary',)),
    (THINK, ("</think>",)),
)


def grammar_of(
    chat_template: str,
    tokens: Iterable[AddedToken] = (),
    response_template: object = None,
    name: str | None = None,
) -> Grammar:
    """The same, for the vocabulary that has these tokens."""
    tokens = list(tokens)
    return Grammar(choose_format(chat_template, tokens, response_template, name), tokens)
