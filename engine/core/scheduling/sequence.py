"""`Sequence`: one request as the scheduler tracks it, from its arrival to its last output.

Tokens are numbered from the start of the prompt. Three counts split them:

    |------ num_cached ------|-- computed now --|-- to compute --|
    |---------- num_computed_tokens ------------|                |
    |------------------------- num_tokens ----------------------|
    |------ num_prompt_tokens ------|------ num_output_tokens ---|

Keys and values exist for the first `num_computed_tokens`. A sequence decodes when exactly its last
token is missing them, and prefills while more are: after a preemption also output tokens are.

Where the next step is scheduled while one runs, the tokens of that one count as computed, and what
it will choose stands at the end as an unknown token.
"""

import enum
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.lora import LoRARequest
from engine.pooling import PoolingParams
from engine.sampling_params import SamplingParams

RequestKey = tuple[str, str]  # (client id, internal request id)
Problem = tuple[str, str]  # (code, message) of an answer that ends with "error"
TokenLogprobs = list[tuple[int, float, int]]  # (token id, logprob, rank); the real token first
Order = tuple[int, int, float, int]  # priority, turn among users, arrival, number

CacheParent = int | str | tuple[str, str]  # a cache id, or a root: salt, or salt and adapter

NO_PLACES = range(0)
UNKNOWN = 0  # in place of a token that a step in flight will choose


class SequenceStatus(enum.Enum):
    """Where a sequence is; only `Scheduler` changes it."""

    WAITING = "waiting"  # also after a preemption
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Token ids, blocks and progress of one request."""

    __slots__ = (
        "adapter",
        "arrival_time",
        "block_table",
        "cache_parent",
        "cache_root",
        "cache_salt",
        "client_id",
        "copied_from",
        "due_tick",
        "first_token_ts",
        "is_scored",
        "kept_adapter",
        "last_served",
        "logits_processors",
        "lora",
        "matcher",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_scored_tokens",
        "num_tokens_ahead",
        "num_units_cached",
        "num_unknown",
        "order",
        "params",
        "pooled",
        "pooling",
        "prompt_logprobs",
        "prompt_token_id_logprobs",
        "queue_position",
        "queued_ts",
        "reads_prefix_cache",
        "request_id",
        "sampler_state",
        "scheduled_ts",
        "status",
        "stop_ids",
        "token_ids",
        "unknown_row",
        "waits_for_grammar",
        "waits_for_tokens",
    )

    def __init__(
        self,
        client_id: str,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        resume_token_ids: list[int] | None = None,
        arrival_time: float = 0.0,
        cache_salt: str = "",
        pooling: PoolingParams | None = None,
        lora: LoRARequest | None = None,
    ) -> None:
        self.client_id = client_id
        self.request_id = request_id
        self.params = params
        self.pooling = pooling  # wanted in the place of an answer
        self.token_ids = prompt_token_ids + (resume_token_ids or [])
        self.num_prompt_tokens = len(prompt_token_ids)
        self.arrival_time = arrival_time
        self.cache_salt = cache_salt
        self.lora = lora
        # The parent of its first unit in the prefix cache: an adapter's keys and values are others.
        self.cache_root: CacheParent = cache_salt
        if lora is not None:
            self.cache_root = (cache_salt, lora.content_hash)

        # Whether its next step can be prepared only when the token of its last one is known here.
        self.waits_for_tokens = (
            pooling is not None
            or params.needs_answer
            or params.logprobs is not None
            or params.structured_outputs is not None
        )
        self.is_scored = params.scores_prompt
        # What is read there gives neither logprobs of the prompt nor hidden states.
        is_pooled = pooling is not None and pooling.skips_prefix_cache
        self.reads_prefix_cache = not (
            params.skip_reading_prefix_cache or self.is_scored or is_pooled
        )

        # these fields are set by the scheduler
        self.num_unknown = 0  # of the last tokens
        self.unknown_row = 0  # of the sampled rows of the step that chooses the last of them
        self.status = SequenceStatus.WAITING
        self.adapter: Any = None  # as the model computes it, while it runs
        self.kept_adapter: Any = None  # with which it ran before it was preempted
        self.order: Order = (0, 0, arrival_time, 0)  # smaller is served earlier
        self.max_num_tokens = 0  # num_tokens at which the answer ends by length
        self.stop_ids: frozenset[int] = frozenset()  # end the answer: end-of-text and stop ids
        self.due_tick = 0  # of the pace's clock, before which no further token is wanted
        self.last_served = 0  # when a step last had a part of it, by a count of such parts
        self.num_preemptions = 0
        self.num_cached_tokens = 0  # found in the prefix cache when first scheduled
        self.queue_position: int | None = None  # as last sent to the client
        self.num_tokens_ahead = 0  # of those that wait before it
        self.queued_ts = 0.0  # monotonic, as are the next two; 0 = never
        self.scheduled_ts = 0.0
        self.first_token_ts = 0.0
        # Of the prompt, after which logprobs are known, or are not wanted.
        self.num_scored_tokens = params.first_scored_row
        self.prompt_logprobs: list[TokenLogprobs] = []  # of these, what its client has not got yet
        self.prompt_token_id_logprobs = b""  # likewise, as `SequenceOutput` has them

        # these by the block manager
        self.num_computed_tokens = 0
        self.block_table = array("i")  # [num_blocks]; an array, so that numpy reads it in place
        self.num_units_cached = 0  # the first ones of its text, which the prefix cache knows
        self.cache_parent: CacheParent = self.cache_root  # cache id of the last of these
        # A block, and how many of its tokens the block that is computed next begins with.
        self.copied_from: tuple[int, int] | None = None

        # this by the step loop, of the operator's own: `RowProcessor`s
        self.logits_processors: Any = ()

        # these by those who have its grammar: where it is there; whether no token may be chosen now
        self.matcher: Any = None
        self.waits_for_grammar = False

        # this by the sampler: penalty counts, random numbers, ...
        self.sampler_state: Any = None

        # and this by the pooler: what it has of the hidden states so far
        self.pooled: Any = None

    @property
    def key(self) -> RequestKey:
        return (self.client_id, self.request_id)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        num_tokens = len(self.token_ids)
        return num_tokens - self.num_computed_tokens == 1 and num_tokens > self.num_prompt_tokens

    @property
    def is_scoring(self) -> bool:
        """Whether logprobs of its prompt are still wanted of what it reads."""
        if not self.is_scored:
            return False
        num_known = max(self.num_scored_tokens, self.num_computed_tokens)
        return num_known < self.num_prompt_tokens - 1

    @property
    def is_running(self) -> bool:
        return self.status is SequenceStatus.RUNNING

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def take_prompt_scores(self) -> tuple[list[TokenLogprobs] | None, bytes | None]:
        """Logprobs of its prompt, and of given ids there, that its client has not got yet."""
        taken = (self.prompt_logprobs or None, self.prompt_token_id_logprobs or None)
        self.prompt_logprobs, self.prompt_token_id_logprobs = [], b""
        return taken

    def expect_token(self, row: int) -> None:
        """A step in flight will choose a token, in this one of its sampled rows."""
        self.token_ids.append(UNKNOWN)
        self.num_unknown += 1
        self.unknown_row = row

    def forget_unknown(self) -> None:
        """What steps in flight will choose comes to nothing."""
        if self.num_unknown:
            del self.token_ids[-self.num_unknown :]
            self.num_unknown = 0

    def __repr__(self) -> str:  # counts only: logs never hold a user's tokens
        return (
            f"Sequence({self.request_id}, {self.status.value}, prompt={self.num_prompt_tokens}, "
            f"computed={self.num_computed_tokens}, tokens={self.num_tokens})"
        )


class ScheduledSequence:
    """The part of one sequence that a step computes: its next `num_tokens` uncomputed tokens.

    It stays as it was when it was scheduled, while the sequence goes on.
    """

    __slots__ = (
        "_num_preemptions",
        "end",
        "is_anticipated",
        "is_decode",
        "is_last",
        "is_sampled",
        "num_tokens",
        "prompt_logprobs",
        "prompt_token_id_logprobs",
        "scored",
        "sequence",
        "start",
    )

    def __init__(self, sequence: Sequence, num_tokens: int) -> None:
        start, num_known = sequence.num_computed_tokens, len(sequence.token_ids)
        self.sequence = sequence
        self.num_tokens = num_tokens
        self.start = start  # place of its first token
        self.end = start + num_tokens  # after the last, where a sampled token will be
        self.is_last = self.end == num_known  # whether it reaches the last token
        self.is_sampled = self.is_last and sequence.pooling is None  # so that a new one is chosen
        self.is_decode = num_known - start == 1 and num_known > sequence.num_prompt_tokens
        self.is_anticipated = False  # whether its sequence counts it as computed already
        self.scored = NO_PLACES  # places of its tokens after which logprobs are wanted
        if sequence.is_scored:
            last = sequence.num_prompt_tokens - 1
            self.scored = range(max(start, sequence.num_scored_tokens), min(self.end, last))
            self.prompt_logprobs: list[TokenLogprobs] = []  # of these, set by the runner
            self.prompt_token_id_logprobs = b""  # likewise
        self._num_preemptions = sequence.num_preemptions

    @property
    def pooled_places(self) -> range:
        """Of the tokens whose last hidden states are wanted."""
        pooling = self.sequence.pooling
        if pooling is None:
            return range(0)
        match pooling.pooling_type:
            case "MEAN":
                return range(self.start, self.end)
            case "CLS":
                return range(0 if self.start == 0 else 1, 1)
            case _:
                return range(self.end - self.is_last, self.end)

    @property
    def is_current(self) -> bool:
        """Whether its sequence still wants what the step computes.

        One that was aborted while the step ran has ended: the abort wins. One that was preempted
        has lost its blocks, and with them what the step computed, though it may run again by now.
        """
        sequence = self.sequence
        is_running = sequence.status is SequenceStatus.RUNNING
        return is_running and self._num_preemptions == sequence.num_preemptions


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What the runner gives back for a sampled sequence: a token, or why there is none.

    For a prompt that is pooled it is the embedding, in the place of a token.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: Problem | None = None
    # Nothing may follow it: the answer ends, whatever token it is.
    is_end: bool = False
    # There is none, because nobody knew what may be chosen: the same part is computed again.
    is_postponed: bool = False
    embedding: bytes | None = None  # numbers in float32, one after another


Tokens = list[SampledToken | None]  # of the parts of a step; None where none was sampled
# Starts to compute a step. What it returns waits for the tokens, and is called once.
Launch = Callable[[list[ScheduledSequence]], Callable[[], Tokens]]
