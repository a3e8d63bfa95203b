"""What is heard of an answer, in the words of `text_completion`."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server.api.openai.chat_answer import REASONS, usage_of
from server.api.openai.completion_request import CompletionRequest
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Delta, Ended, Heard
from server.generation.answers import Part


class CompletionAnswer:
    """One call's answer: `chunks` of it as they come, or `whole`, after all was heard."""

    def __init__(
        self, answer: StatelessAnswer, request: CompletionRequest, fingerprint: str
    ) -> None:
        self._answer = answer
        self._head = {
            "id": f"cmpl-{answer.id.removeprefix('resp_')}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": fingerprint,
        }
        self._with_usage = request.with_usage
        self._with_running_usage = request.with_running_usage
        self._with_token_ids = bool(request.return_token_ids)
        self._lengths: dict[int, int] = {}  # of the text so far, of each choice
        self._choices: dict[int, dict[str, Any]] = {}

    def chunks(self, heard: Heard) -> Iterator[dict[str, Any]]:
        """What a stream says of it."""
        usage: dict[str, Any] = {}
        if self._with_usage:
            usage["usage"] = usage_of(self._answer) if self._with_running_usage else None
        yield {**self._head, "choices": [self._choice(heard)], **usage}

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk, for who has asked for it."""
        return {**self._head, "choices": [], "usage": usage_of(self._answer)}

    def take(self, heard: Heard) -> None:
        """Collect what `whole` says."""
        new = self._choice(heard)
        old = self._choices.setdefault(heard.choice, new)
        if old is new:
            return
        old["text"] += new["text"]
        old["finish_reason"] = new["finish_reason"]
        if self._with_token_ids:
            old["token_ids"] += new["token_ids"]
        if old["logprobs"] is None:
            old["logprobs"] = new["logprobs"]
        elif new["logprobs"] is not None:
            for name, values in new["logprobs"].items():
                old["logprobs"][name] += values

    def whole(self) -> dict[str, Any]:
        """The answer that is not streamed."""
        choices = [self._choices[number] for number in sorted(self._choices)]
        return {**self._head, "choices": choices, "usage": usage_of(self._answer)}

    def _choice(self, heard: Heard) -> dict[str, Any]:
        text, reason, logprobs = "", None, None
        start = self._lengths.get(heard.choice, 0)
        if isinstance(heard, Delta):
            text = "".join(part.text for part in heard.parts if isinstance(part, Part))
            logprobs = _logprobs(heard.logprobs, start)
            self._lengths[heard.choice] = start + len(text)
        elif isinstance(heard, Ended):
            reason = REASONS[heard.reason]
        ids: dict[str, Any] = {}
        if self._with_token_ids:
            ids["token_ids"] = [*heard.token_ids] if isinstance(heard, Delta) else []
            prompt = self._answer.prompt_of(heard.choice)
            ids["prompt_token_ids"] = None if start else [*prompt]
        return {
            "index": heard.choice,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
            **ids,
        }


def _logprobs(entries: Sequence[Mapping[str, Any]], start: int) -> dict[str, list[Any]] | None:
    """As this route has them; offsets are in characters of the answer."""
    if not entries:
        return None
    offsets, end = [], start
    for entry in entries:
        offsets.append(end)
        end += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [_top(entry["top"]) for entry in entries],
        "text_offset": offsets,
    }


def _top(entries: Sequence[Mapping[str, Any]] | None) -> dict[str, float] | None:
    """None for the first token of a prompt."""
    return None if entries is None else {each["token"]: each["logprob"] for each in entries}
