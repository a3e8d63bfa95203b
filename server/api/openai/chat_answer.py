"""What is heard of an answer, in the words of `chat.completion` and `chat.completion.chunk`."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server.api.openai.chat_request import ChatRequest
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Ended, Heard
from server.engines.client import ParsedArguments, ParsedBegin
from server.generation.answers import Part, Said

# The engine's word for the end → OpenAI's, which knows fewer.
REASONS = {"stop": "stop", "length": "length", "deadline": "length", "tool_calls": "tool_calls"}


class ChatAnswer:
    """One call's answer: `chunks` of it as they come, or `whole`, after all was heard."""

    def __init__(self, answer: StatelessAnswer, request: ChatRequest, fingerprint: str) -> None:
        self._answer = answer
        self._tail = answer.id.removeprefix("resp_")
        self._head = {
            "id": f"chatcmpl-{self._tail}",
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": fingerprint,
        }
        self._with_usage = request.with_usage
        self._with_running_usage = request.with_running_usage
        self._begun: set[int] = set()  # choices that have said who speaks
        self._messages: dict[int, _Message] = {}

    def chunks(self, heard: Heard) -> Iterator[dict[str, Any]]:
        """What a stream says of it."""
        if heard.choice not in self._begun:
            self._begun.add(heard.choice)
            yield self._chunk(heard.choice, {"role": "assistant", "content": ""})
        if isinstance(heard, Ended):
            yield self._chunk(heard.choice, {}, reason=REASONS[heard.reason])
            return
        logprobs = logprobs_of(heard.logprobs)
        for part in heard.parts:
            delta = self._delta(heard.choice, part)
            if delta is not None:
                yield self._chunk(heard.choice, delta, logprobs=logprobs)
                logprobs = None
        if logprobs is not None:  # of tokens that say nothing yet
            yield self._chunk(heard.choice, {}, logprobs=logprobs)

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk, for who has asked for it."""
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self.usage}

    @property
    def usage(self) -> dict[str, Any]:
        return usage_of(self._answer)

    def take(self, heard: Heard) -> None:
        """Collect what `whole` says."""
        message = self._messages.setdefault(heard.choice, _Message())
        if isinstance(heard, Ended):
            message.reason = REASONS[heard.reason]
            return
        message.logprobs += heard.logprobs
        for part in heard.parts:
            message.take(part, self._call_id(heard.choice, part))

    def whole(self) -> dict[str, Any]:
        """The answer that is not streamed."""
        choices = [self._messages[number].choice(number) for number in sorted(self._messages)]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self.usage}

    def _chunk(
        self,
        choice: int,
        delta: Mapping[str, Any],
        reason: str | None = None,
        logprobs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        said = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        usage: dict[str, Any] = {}
        if self._with_usage:
            usage["usage"] = self.usage if self._with_running_usage else None
        return {**self._head, "object": "chat.completion.chunk", "choices": [said], **usage}

    def _delta(self, choice: int, part: Said) -> dict[str, Any] | None:
        match part:
            case Part(text, is_reasoning):
                return {"reasoning_content" if is_reasoning else "content": text}
            case ParsedBegin():
                call = {
                    "index": part.index,
                    "id": self._call_id(choice, part),
                    "type": "function",
                    "function": {"name": part.name, "arguments": ""},
                }
                return {"tool_calls": [call]}
            case ParsedArguments():
                function = {"arguments": part.delta}
                return {"tool_calls": [{"index": part.index, "function": function}]}
            case _:
                return None

    def _call_id(self, choice: int, part: Said) -> str:
        place = part.index if isinstance(part, ParsedBegin) else 0
        return f"call_{self._tail}_{choice}_{place}"


class _Message:
    """One choice of an answer that is not streamed."""

    def __init__(self) -> None:
        self.reason = "stop"
        self.logprobs: list[Mapping[str, Any]] = []
        self._text = ""
        self._reasoning = ""
        self._calls: dict[int, dict[str, Any]] = {}

    def take(self, part: Said, call_id: str) -> None:
        match part:
            case Part(text, is_reasoning):
                if is_reasoning:
                    self._reasoning += text
                else:
                    self._text += text
            case ParsedBegin():
                function = {"name": part.name, "arguments": ""}
                call = {"id": call_id, "type": "function", "function": function}
                self._calls[part.index] = call
            case ParsedArguments():
                self._calls[part.index]["function"]["arguments"] += part.delta

    def choice(self, number: int) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": self._text or (None if self._calls else ""),
            "refusal": None,
        }
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self._calls:
            message["tool_calls"] = [self._calls[place] for place in sorted(self._calls)]
        return {
            "index": number,
            "message": message,
            "logprobs": logprobs_of(self.logprobs),
            "finish_reason": self.reason,
        }


def usage_of(answer: StatelessAnswer) -> dict[str, Any]:
    """Tokens, of all choices together."""
    num_prompt, num_output = answer.num_prompt_tokens, answer.num_output_tokens
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": answer.num_cached_tokens},
    }


def logprobs_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """None where none were asked for."""
    if not entries:
        return None
    content = [{**_token(entry), "top_logprobs": _tops(entry)} for entry in entries]
    return {"content": content, "refusal": None}


def _tops(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_token(each) for each in entry["top"]]


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    token = entry["token"]
    return {"token": token, "logprob": entry["logprob"], "bytes": list(token.encode())}
