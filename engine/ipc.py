"""The messages between the two halves of the engine: all that they know of each other.

Many clients (web workers, or one script) share one core. Each client connects one ZeroMQ DEALER
socket, whose identity is its `client_id`, to the core's ROUTER socket on a unix path, or from
another machine to a second one by TCP (`engine/far/`). One frame is one msgpack message of the
unions below. A client's messages arrive in the order sent, so an `Abort` can never overtake its
`AddRequest`.

Ids here are *internal* request ids (`"{external}-{8 hex}"`, made by the client): a reused external
id can never meet the abort of its predecessor.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from engine.config import EngineConfig
from engine.lora import LoRARequest
from engine.pooling import PoolingParams
from engine.sampling_params import SamplingParams

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # to the core, which trusts nobody

if TYPE_CHECKING:
    Encoded = Any
else:
    Encoded = msgspec.Raw  # not decoded with the message that it is in


class Message(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """What every message has in common: a tagged msgpack array."""


# ---- client → core ------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag="hello"):
    """First message of a client, repeated until it is answered with `Ready`."""

    client_id: str
    pid: int  # watched with a pidfd: the requests of a dead client are ended
    protocol: int = PROTOCOL_VERSION
    replaces: str = ""  # from another machine: whom this one was before its connection broke


class AddRequest(Message, frozen=True, tag="add"):
    """One sequence to generate. With `resume_token_ids` it continues after tokens already shown."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams  # with a seed: the client draws one if the caller gave none
    arrival_time: float  # seconds since 1970
    resume_token_ids: list[int] = []  # count as output tokens: penalties, lengths, randomness
    priority: int = 0  # lower is earlier
    cache_salt: str = ""
    pooling: PoolingParams | None = None  # an embedding or classes are wanted, not an answer
    lora: LoRARequest | None = None  # with the hash of its files
    is_admitted: bool = False  # it was promised: a queue that is full by now takes it


class Abort(Message, frozen=True, tag="abort"):
    """End these requests at the next step boundary. Unknown or ended ids are ignored."""

    request_ids: list[str]
    reason: str = "abort"  # or "stop", when the client found a stop string


class Utility(Message, frozen=True, tag="utility"):
    """A named call into the core, answered by `UtilityReply` from inside the step loop."""

    call_id: int
    name: str
    args: list[Any] = []


class Ping(Message, frozen=True, tag="ping"):
    """Sign of life; answered with `Pong` by the core's IO thread."""

    number: int


ClientMessage = Hello | AddRequest | Abort | Utility | Ping

# ---- core → client ------------------------------------------------------------------------------


class Ready(Message, frozen=True, tag="ready"):
    """Answer to `Hello`: what the client must know of the core and its model."""

    epoch: int  # drawn at each start of a core; messages of another epoch are dropped
    pid: int
    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int
    eos_token_ids: list[int]
    max_num_seqs: int
    dtype: str
    attn_backend: str
    pace: float  # tokens/s per answer, 0 = as fast as possible
    config: EngineConfig  # with every size decided
    embedding_size: int = 0  # numbers of an embedding; 0: it makes none
    # What the model can be asked for, in vLLM's names. Empty: it generates, and embeds if it has an
    # embedding's size.
    tasks: list[str] = []
    computes: str = ""  # by what: two cores that say the same write the same, bit for bit


class SequenceOutput(Message, frozen=True, tag="output"):
    """What one step did for one request."""

    request_id: str
    new_token_ids: list[int] = []
    # stop, length, repetition, abort, error; set exactly once, in the last
    finish_reason: str | None = None
    stop_reason: int | str | None = None  # the stop token id that ended it, or the repetition
    error: tuple[str, str] | None = None  # (code, message), with finish_reason "error"
    logprobs: list[Encoded] | None = None  # per new token: list of (token id, logprob, rank)
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0  # prompt tokens with KV, to show the progress of a prefill
    num_preemptions: int = 0
    queue_position: int | None = None  # only while waiting: how many requests are ahead
    scheduled_ts: float = 0.0  # time.monotonic() of the core when first scheduled, 0 = not yet
    first_token_ts: float = 0.0
    num_tokens_ahead: int = 0  # of the requests ahead, while waiting
    # Of the prompt's tokens after those of earlier outputs, as `logprobs`; the first one has none.
    prompt_logprobs: list[Encoded] | None = None
    embedding: bytes | None = None  # float32, or of classes: with reason "stop" of a pooled prompt
    is_waking: bool = False  # it waits for the engine to wake up
    # Of `prompt_logprob_token_ids`, the next rows: float32, one row after another.
    prompt_token_id_logprobs: bytes | None = None
    warnings: list[str] = []  # what its grammar cannot hold the answer to


class SchedulerStats(Message, frozen=True, tag="stats"):
    """The core's load after a step."""

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_blocks_total: int
    num_blocks_free: int  # cached but evictable blocks count as free
    is_sleeping: bool = False

    # ---- in vLLM's names

    @property
    def num_running_reqs(self) -> int:
        return self.num_running

    @property
    def num_waiting_reqs(self) -> int:
        return self.num_waiting

    @property
    def kv_cache_usage(self) -> float:
        """The share of blocks that running requests hold."""
        return 1 - self.num_blocks_free / max(1, self.num_blocks_total)


class StepOutputs(Message, frozen=True, tag="step"):
    """One message per step and client, none if the client has nothing in it."""

    epoch: int
    step: int
    outputs: list[SequenceOutput]
    stats: SchedulerStats


class UtilityReply(Message, frozen=True, tag="reply"):
    """The result of a `Utility` call, or the error that it raised."""

    call_id: int
    value: Any = None
    error: str | None = None


class Pong(Message, frozen=True, tag="pong"):
    """Answer to `Ping`; `loop_age_seconds` is the time since the step loop last came round."""

    number: int
    epoch: int
    loop_age_seconds: float
    stats: SchedulerStats | None = None  # so that an idle client knows the load as well


STOPPED = "the engine core was stopped"  # a reason that no request can be to blame for


class Dead(Message, frozen=True, tag="dead"):
    """The core is about to exit: no request of this epoch will produce anything more."""

    reason: str


CoreMessage = Ready | StepOutputs | UtilityReply | Pong | Dead

encode = msgspec.msgpack.Encoder().encode
decode_client_message = msgspec.msgpack.Decoder(ClientMessage).decode
decode_core_message = msgspec.msgpack.Decoder(CoreMessage).decode
