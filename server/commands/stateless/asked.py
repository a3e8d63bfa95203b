"""`Asked`: what a client wants to have answered, and what it then hears."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from server.generation.answers import Said
from server.generation.chat_messages import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A conversation, or prompts as they are, and how they are to be answered."""

    model: str
    messages: Sequence[ChatMessage] = ()  # as a chat template takes them
    answer: str = ""  # what the answer to them says already, and goes on with
    prompts: Sequence[str | Sequence[int]] = ()  # in their place: texts, or token ids
    is_echoed: bool = False  # each answer begins with its prompt
    is_only_echoed: bool = False  # and ends with it
    settings: Mapping[str, Any] = field(default_factory=dict)  # as a `response.create` has them
    parameters: Mapping[str, Any] = field(default_factory=dict)  # what only the engine knows
    variables: Mapping[str, Any] = field(default_factory=dict)  # for the chat template
    num_answers: int = 1  # to each prompt
    conversation: str | None = None  # what the client calls that of which it is a part


class Delta(NamedTuple):
    """More of one of the answers."""

    choice: int
    parts: Sequence[Said]
    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[str, Any]]  # of these tokens, or of those of a prompt that is echoed


class Ended(NamedTuple):
    """One of the answers is over.

    `reason` is "stop", "length", "deadline", "tool_calls", or "error", or "refused": the engine
    does not take what was asked for.
    """

    choice: int
    reason: str
    stop: str | int | None = None  # what it has met, of what should stop it
    problem: str = ""  # of the last two: one line, for a person
    param: str = ""  # which parameter of the engine is refused, if it is one


Heard = Delta | Ended
