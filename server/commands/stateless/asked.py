"""`Asked`: what a client wants to have answered, and what it then hears."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from server.generation.answers import Said
from server.generation.chat_messages import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A conversation, or a prompt as it is, and how it is to be answered."""

    model: str
    messages: Sequence[ChatMessage] = ()  # as a chat template takes them
    prompt: str | Sequence[int] | None = None  # in their place: a text, or token ids
    settings: Mapping[str, Any] = field(default_factory=dict)  # as a `response.create` has them
    parameters: Mapping[str, Any] = field(default_factory=dict)  # what only the engine knows
    variables: Mapping[str, Any] = field(default_factory=dict)  # for the chat template
    num_answers: int = 1


class Delta(NamedTuple):
    """More of one of the answers."""

    choice: int
    parts: Sequence[Said]
    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[str, Any]]  # of these tokens, where they were asked for


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
