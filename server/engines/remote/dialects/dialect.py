"""`Dialect`: what one kind of engine calls what we ask of it, and how it says what it has done.

A dialect is made once for each engine, keeps what the last probe has found, and does no I/O but by
the `Ask` that it is given. It never sends what the engine would not do as asked: it refuses that,
by the name of the parameter.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import orjson

from engine.errors import ValidationError
from engine.ipc import AddRequest
from engine.sampling_params import SamplingParams
from server.engines.remote.wire.exchange import Call
from server.engines.remote.wire.problems import Broken

MAX_COUNT = 1 << 53  # of anything, which every reader of JSON knows exactly

# Makes a call and gives its JSON; raises `RemoteProblem`, and `BadStatus` for another than 200.
Ask = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """What an engine says of itself and its model, when it is joined."""

    max_model_len: int  # tokens of a prompt and its answer together
    max_num_seqs: int = 256  # answers at a time, before others wait
    num_kv_tokens: int | None = None  # that its cache holds; None: it does not say
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class RemoteLoad:
    """What it does at the moment; None: it does not say."""

    num_running: int | None = None
    num_waiting: int | None = None
    kv_usage: float | None = None  # the share of its cache that is in use


@dataclass(slots=True)
class Step:
    """What an event says of an answer. At most one of a reply has a reason, as the last."""

    token_ids: list[int] = field(default_factory=list)
    # stop, length, abort (it has given up the request), or gap (tokens have come that it has not
    # named: they are asked for again, in a reply that comes as a whole)
    finish_reason: str | None = None
    logprobs: list[list[tuple[int, float, int]]] | None = None  # for each token: id, logprob, rank
    num_prompt_tokens: int | None = None  # that it has read: it must be those that it was sent
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0  # of the prompt, while it is read
    error: str | None = None  # it says that this answer has failed


class Reader(Protocol):
    """Reads one reply, an event at a time."""

    def read(self, event: bytes) -> Step | None:
        """None for one that says nothing of use. Raises `Broken` for what is none."""


class Dialect(Protocol):
    """One kind's. `name` is that of the kind."""

    name: str

    async def probe(self, ask: Ask) -> RemoteFacts:
        """Join: find out what it is, and what it can do.

        Raises `Misfit` if it is no such engine, or serves another model, and `RemoteProblem`.
        """

    async def look(self, ask: Ask) -> RemoteLoad:
        """Whether it is well, once a second. Raises `RemoteProblem` if it is not."""

    async def tokenize(self, ask: Ask, text: str) -> list[int] | None:
        """The ids of a text as it has them, without any before or after; None: it does not say."""

    def call(self, request: AddRequest, name: str) -> Call:
        """How it is asked for an answer that is streamed, which it shall know by this name.

        It goes on after `resume_token_ids`. Raises `ValidationError` by name for what this kind
        does not do.
        """

    def piece(self, request: AddRequest, name: str, num_tokens: int) -> Call | None:
        """The same for at most so many tokens, in a reply that is whole; None: there is no gap."""

    def reader(self, request: AddRequest) -> Reader:
        """For the reply to such a call. That of a `piece` is one event."""

    def abort(self, name: str) -> Call | None:
        """How it is told to end an answer; None: by a connection that is closed.

        A status 200 means that it knows, and takes no further step for it.
        """


def read_json(event: bytes) -> dict[str, Any]:
    """Raises `Broken` for what is no object."""
    try:
        content = orjson.loads(event)
    except orjson.JSONDecodeError:
        raise Broken("an event that is no JSON") from None
    if not isinstance(content, dict):
        raise Broken("an event that is no object")
    return content


def ids_of(value: Any) -> list[int]:
    """Token ids of an event. Raises `Broken` for anything else."""
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise Broken("token ids that are none")
    return value


def integer_of(value: Any, default: int = 0) -> int:
    """A count; what is none counts for nothing."""
    return value if type(value) is int and 0 <= value <= MAX_COUNT else default


# ---- what is refused by name --------------------------------------------------------------------

# Parameters that our own half of the engine carries out, or that have no effect on the other one.
OURS = frozenset(
    (
        *("n", "seed", "stop", "stop_token_ids", "max_tokens", "temperature", "detokenize"),
        *("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"),
        *("output_kind", "stream_interval", "skip_clone", "flat_logprobs", "extra_args"),
        "skip_reading_prefix_cache",
    )
)
PARTS = {"bad_words_token_ids": "bad_words", "thought_tokens": "thinking_token_budget"}
_DEFAULTS = msgspec.structs.asdict(SamplingParams())


def check_supported(kind: str, request: AddRequest, supported: Iterable[str]) -> None:
    """Raise `ValidationError` for the first parameter of a request that is in neither list.

    Parameters that have no effect, because they have their defaults, are none.
    """
    if request.pooling is not None:
        raise ValidationError(f"engines of the kind {kind} make no embeddings here", "task")
    if request.lora is not None:
        problem = f"adapters are not available with engines of the kind {kind}"
        raise ValidationError(problem, "lora_request")
    params, known = request.params, OURS.union(supported)
    for name, default in _DEFAULTS.items():
        shown = PARTS.get(name, name)
        if name in known or shown in supported:
            continue
        value = getattr(params, name)
        if value != default and not (default is None and value == []):
            problem = f"{shown} is not available with engines of the kind {kind}"
            raise ValidationError(problem, shown, value if shown == name else None)


def remaining_tokens(request: AddRequest, max_model_len: int) -> int:
    """How many more tokens an answer may have."""
    room = max_model_len - len(request.prompt_token_ids)
    most = room if request.params.max_tokens is None else min(room, request.params.max_tokens)
    return most - len(request.resume_token_ids)
