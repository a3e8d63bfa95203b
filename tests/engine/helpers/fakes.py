"""Stand-ins for the core's tests: a model with a script, and a core that is stepped by hand."""

from array import array
from collections.abc import Callable, Iterable
from typing import Any

from engine.config import EngineConfig
from engine.core.metrics import CoreMetrics
from engine.core.scheduling.adapter_seats import AdapterSource
from engine.core.scheduling.block_manager import BlockManager
from engine.core.scheduling.scheduler import Scheduler
from engine.core.scheduling.sequence import (
    UNKNOWN,
    SampledToken,
    ScheduledSequence,
    Sequence,
    Tokens,
)
from engine.core.sleep import Memory
from engine.core.step_loop import EngineCore
from engine.core.utilities import Adapters
from engine.ipc import Abort, AddRequest, CoreMessage, SequenceOutput, StepOutputs
from engine.pooling import GENERATING_TASKS
from engine.sampling_params import SamplingParams

VOCAB_SIZE = 1000
EOS = 0


def make_scheduler(
    num_blocks: int = 64,
    *,
    adapter_source: AdapterSource | None = None,
    tasks: Iterable[str] = GENERATING_TASKS,
    **settings: Any,
) -> Scheduler:
    """A scheduler over blocks of 4 tokens; `settings` are those of `EngineConfig`."""
    defaults = {"max_model_len": 200, "block_size": 4, "max_num_batched_tokens": 32}
    config = EngineConfig(model="", address="", served_model_name="", **(defaults | settings))
    blocks = BlockManager(num_blocks, config.block_size, config.enable_prefix_caching)
    return Scheduler(config, blocks, VOCAB_SIZE, [EOS], tasks=tasks, adapters=adapter_source)


def make_request(request_id: str, num_prompt_tokens: int = 3, **fields: Any) -> AddRequest:
    """A greedy request whose prompt counts 1, 2, 3 ...; what is no field goes to SamplingParams."""
    prompt = fields.pop("prompt", list(range(1, num_prompt_tokens + 1)))
    names = ("resume_token_ids", "priority", "cache_salt", "pooling", "lora", "is_admitted")
    own = {name: fields.pop(name) for name in names if name in fields}
    arrival_time = fields.pop("arrival_time", 0.0)
    params = SamplingParams(**({"temperature": 0.0} | fields))
    return AddRequest(request_id, prompt, params, arrival_time, **own)


class FakeModel:
    """Runs nothing: the next token of a sequence is `script(sequence)`, by default last + 1.

    The embedding of a prompt is 1 and its number of tokens. The tokens of a prompt are certain.

    `during_step` is called once in the middle of each step, as if something happened meanwhile.
    What the scheduler does not know yet is taken from the sampled rows of the step before.
    """

    def __init__(self, script: Callable[[Sequence], int | SampledToken] | None = None) -> None:
        self.script = script or (lambda sequence: sequence.token_ids[-1] % (VOCAB_SIZE - 1) + 1)
        self.during_step: Callable[[], None] = lambda: None
        self.steps: list[dict[str, int]] = []  # request id → tokens computed
        self._chosen: list[int] = []  # in the last step

    def launch(self, scheduled: list[ScheduledSequence]) -> Callable[[], Tokens]:
        tokens = self.execute(scheduled)
        return lambda: tokens

    def execute(self, scheduled: list[ScheduledSequence]) -> Tokens:
        self.steps.append({item.sequence.request_id: item.num_tokens for item in scheduled})
        tokens = [self._next(item.sequence) if item.is_sampled else None for item in scheduled]
        self._chosen = [token.token_id for token in tokens if token is not None]
        for index, item in enumerate(scheduled):
            if item.scored:
                ids = item.sequence.token_ids
                item.prompt_logprobs += [[(ids[place + 1], 0.0, 1)] for place in item.scored]
            if item.is_last and item.sequence.pooling is not None:
                numbers = array("f", (1, item.sequence.num_tokens))
                tokens[index] = SampledToken(-1, embedding=numbers.tobytes())
        self.during_step()
        return tokens

    def _next(self, sequence: Sequence) -> SampledToken:
        if sequence.num_unknown:
            sequence.token_ids[-1] = self._chosen[sequence.unknown_row]
        token = self.script(sequence)
        if sequence.num_unknown:
            sequence.token_ids[-1] = UNKNOWN
        return SampledToken(token) if isinstance(token, int) else token


class SteppedCore:
    """An `EngineCore` without process, socket and clock; one client called "me" unless named."""

    def __init__(
        self,
        model: FakeModel | None = None,
        *,
        worker: object = None,
        memory: Memory | None = None,
        adapters: Adapters | None = None,
        runs_ahead: bool = False,
        **settings: Any,
    ) -> None:
        self.model = model or FakeModel()
        self.scheduler = make_scheduler(**settings)
        self.time = 0.0
        self.core = EngineCore(
            self.scheduler,
            self.model.launch,
            CoreMetrics("fake", "none"),
            epoch=7,
            runs_ahead=runs_ahead,
            now=lambda: self.time,
            worker=worker,
            memory=memory,
            adapters=adapters,
        )
        self.core.send = lambda client_id, message: self.sent.append((client_id, message))
        self.sent: list[tuple[str, CoreMessage]] = []

    def add(self, request_id: str, *args: Any, client_id: str = "me", **fields: Any) -> None:
        self.core.inbox.put((client_id, make_request(request_id, *args, **fields)))

    def abort(self, *request_ids: str, client_id: str = "me", reason: str = "abort") -> None:
        """As the IO thread does: on both queues."""
        message = Abort(list(request_ids), reason)
        self.core.aborts.append((client_id, message))
        self.core.inbox.put((client_id, message))

    def run(self, max_steps: int = 1000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.core.step() and self.core.inbox.empty():
                return
        raise AssertionError(f"still busy after {max_steps} steps")

    def outputs(self, request_id: str, client_id: str = "me") -> list[SequenceOutput]:
        """Every output of a request so far."""
        return [
            output
            for owner, message in self.sent
            if owner == client_id and isinstance(message, StepOutputs)
            for output in message.outputs
            if output.request_id == request_id
        ]

    def tokens(self, request_id: str, client_id: str = "me") -> list[int]:
        return [
            token
            for output in self.outputs(request_id, client_id)
            for token in output.new_token_ids
        ]

    def end(self, request_id: str, client_id: str = "me") -> SequenceOutput:
        """The one last output of a request."""
        (end,) = [o for o in self.outputs(request_id, client_id) if o.finish_reason is not None]
        assert self.outputs(request_id, client_id)[-1] is end
        return end

    def check_all_free(self) -> None:
        self.scheduler.check_integrity()
        assert not self.scheduler.sequences
        assert self.scheduler.blocks.num_free == self.scheduler.blocks.num_blocks
