"""`Conversation`: what a prompt says, and `TextTokenizer`, which makes one of it and reads it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from server.engines.client import PromptTooLongError, ValidationError
from server.engines.textual.ids import CONVERSATION, decode, encode_prompt


class Conversation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chat template would be given."""

    messages: list[dict[str, Any]]
    answer: str = ""  # what the answer says already
    tools: list[dict[str, Any]] = []
    reasoning_effort: str | None = None

    def wire(self) -> list[dict[str, Any]]:
        """The messages in OpenAI's words: there the arguments of a call are a text."""
        return [_message(each) for each in self.messages]


class TextTokenizer:
    """Numbers in the place of token ids: see `ids.py`."""

    chat_stop: tuple[str, ...] = ()
    takes_tools = True

    async def encode_async(self, text: str, *, owner: str = "") -> list[int]:
        return encode_prompt(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return decode(token_ids)

    async def apply_chat_template_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer: str = "",
        *,
        owner: str | None = None,
        max_length: int | None = None,
        **variables: Any,
    ) -> list[int]:
        """The conversation itself. Whether its answer may have begun the engine says later."""
        try:
            found = Conversation(list(map(dict, messages)), answer, **variables)
        except TypeError as error:
            raise ValidationError(f"{error}", "messages", None) from error
        ids = [CONVERSATION, *encode_prompt(orjson.dumps(msgspec.to_builtins(found)).decode())]
        if max_length is not None and len(ids) > max_length:
            raise PromptTooLongError(len(ids), max_length)
        return ids


def read_prompt(token_ids: Sequence[int]) -> Conversation:
    """The conversation that a prompt is. Raises `ValidationError` for any other prompt."""
    if not token_ids or token_ids[0] != CONVERSATION:
        problem = "this engine takes conversations, and no prompts as they are"
        raise ValidationError(problem, "prompt")
    try:
        return msgspec.json.decode(decode(token_ids), type=Conversation)
    except msgspec.DecodeError as error:
        raise ValidationError("this prompt is no conversation", "prompt", None) from error


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":  # some servers refuse the name, which only templates need
        return {name: value for name, value in message.items() if name != "name"}
    if "tool_calls" not in message:
        return dict(message)
    return {**message, "tool_calls": [_call(call) for call in message["tool_calls"]]}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    return {**call, "function": {**function, "arguments": arguments}}
