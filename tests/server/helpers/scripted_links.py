"""`Site`: a group of engines over links to no cores at all, which say what a test lets them say.

All but the links is real: tokenizer, detokenizer, the client of each engine, and the group.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from engine import AsyncLLM, demo_model
from engine.client.requests.core_link import CoreListener
from engine.client.text.tokenizer import Tokenizer
from engine.errors import EngineGenerateError
from engine.ipc import AddRequest, ClientMessage, Ready, SchedulerStats, SequenceOutput
from server.config.models import EngineStatus
from server.engines.client import (
    CoreState,
    EngineClient,
    EngineDeadError,
    Exactness,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)
from server.engines.placement.group import EngineGroup
from server.engines.placement.member import Member
from tests.engine.helpers.scripted_core import make_ready

NUM_BLOCKS = 100
CONTEXT = 1000
PROMPT = [5, 6, 7]
ANSWER = "Žluťoučký kůň, 東京の朝は静かです. Once upon a time there was a small grey cat."


class ScriptedLink:
    """One engine's. It is joined from the start, and ends at once what is to be ended."""

    def __init__(self) -> None:
        self.exactness = Exactness.EXACT
        self.state = CoreState.READY
        self.ready: Ready | None = ready(1)
        self.stats: SchedulerStats | None = None
        self.heard_at: float | None = None
        self.sent: list[AddRequest] = []
        self.aborted: list[str] = []
        self.can_send = True
        self.is_closed = self._is_attached = False
        self._listener: CoreListener | None = None

    def listen(self, listener: CoreListener) -> None:
        self._listener = listener

    def attach(self) -> None:
        if not self._is_attached:
            self._is_attached = True
            asyncio.get_running_loop().call_soon(self._enter, self.state, "")

    def send(self, message: ClientMessage) -> bool:
        assert isinstance(message, AddRequest)
        if self.ready is None or not self.can_send:
            return False
        self.sent.append(message)
        return True

    def check(self, params: SamplingParams) -> None:
        """It can do everything."""

    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> None:
        self.aborted += request_ids
        ends = [SequenceOutput(each, finish_reason="abort") for each in request_ids]
        asyncio.get_running_loop().call_soon(self._say, ends, self.ready)

    def call(self, name: str, *args: Any) -> Awaitable[Any]:
        answer = asyncio.get_running_loop().create_future()
        if name == "metrics":
            answer.set_result({"requests_total": len(self.sent), "device": "none"})
        else:
            answer.set_exception(EngineGenerateError(f"no {name} here"))
        return answer

    async def wait_ready(self) -> None:
        if self.is_closed:
            raise EngineDeadError("it is closed")

    def core_has_exited(self) -> bool:
        return self.ready is None

    def close(self) -> None:
        self.is_closed = True

    def _say(self, outputs: Sequence[SequenceOutput], core: Ready | None) -> None:
        if core is self.ready is not None and not self.is_closed:
            assert self._listener is not None
            self._listener.on_core_outputs(outputs)

    # ---- for the test

    def ids(self, request_id: str) -> list[str]:
        """Under which it knows this request, whose client adds something to it."""
        return [each.request_id for each in self.sent if f"{request_id}-" in each.request_id]

    def emit(self, request_id: str, *token_ids: int, **more: Any) -> None:
        """Tokens for what was sent last under this id."""
        assert self._listener is not None
        output = SequenceOutput(self.ids(request_id)[-1], list(token_ids), **more)
        self._listener.on_core_outputs([output])

    def load(self, num_running: int, num_waiting: int = 0, num_free: int = NUM_BLOCKS) -> None:
        self.stats = SchedulerStats(num_running, num_waiting, 0, NUM_BLOCKS, num_free)

    def die(self, reason: str = "it died") -> None:
        self.ready = None
        self._enter(CoreState.DEAD, reason)

    def come(self) -> None:
        """Another core is there."""
        self.ready = ready(2 + len(self.sent))
        self._enter(CoreState.READY, "")

    def stall(self) -> None:
        self._enter(CoreState.STALLED, "it is silent")

    def _enter(self, state: CoreState, reason: str) -> None:
        assert self._listener is not None
        self.state = state
        self._listener.on_core_state(state, reason)


def ready(epoch: int) -> Ready:
    return make_ready(epoch=epoch, max_model_len=CONTEXT, num_blocks=NUM_BLOCKS, vocab_size=100_000)


class Reader:
    """Who reads one answer, as a `Producer` does."""

    def __init__(
        self, group: EngineClient, request_id: str, on_delta: bool = True, **options: Any
    ) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.end: RequestOutput | None = None
        self.error: Exception | None = None
        self.num_progress = 0
        self._group, self._request_id = group, request_id
        params = options.pop("params", None) or params_of()
        self._outputs = group.generate(
            {"prompt_token_ids": options.pop("prompt", PROMPT), "cache_salt": "u"},
            params,
            request_id,
            is_admitted=True,
            on_delta=self._take if on_delta else None,
            **options,
        )
        self.task = asyncio.create_task(self._read())

    def _take(self, text: str, token_ids: Sequence[int], logprobs: Any = None) -> None:
        self.text += text
        self.token_ids += token_ids

    async def _read(self) -> None:
        try:
            async for output in self._outputs:
                for answer in output.outputs:
                    self._take(answer.text, answer.token_ids)
                if output.finished:
                    assert self.end is None
                    self.end = output
        except Exception as error:
            self.error = error

    @property
    def reason(self) -> str | None:
        return None if self.end is None else self.end.outputs[0].finish_reason

    @property
    def num_restarts(self) -> int:
        assert self.end is not None and self.end.metrics is not None
        return self.end.metrics.num_resubmits


def params_of(**fields: Any) -> SamplingParams:
    given = {"max_tokens": 500, "output_kind": RequestOutputKind.DELTA, **fields}
    return SamplingParams(**given)


class Site:
    """The group of the engines `a`, `b` and so on, and how it says that it is."""

    def __init__(self, names: str = "ab", **weights: float) -> None:
        self.tokenizer = Tokenizer(str(demo_model()))
        self.links: dict[str, ScriptedLink] = {}
        self.states: list[CoreState] = []
        self.statuses = [
            EngineStatus(name=name, kind="native", weight=weights.get(name, 1.0), options={"n": 1})
            for name in names
        ]
        self._readers: list[Reader] = []  # a task that nobody holds may vanish
        self.group = EngineGroup(self._connect, lambda state, _: self.states.append(state))
        self.group.take(self.statuses)

    def _connect(
        self, status: EngineStatus, take_state: Callable[[CoreState, str], None]
    ) -> EngineClient:
        link = self.links[status.name] = ScriptedLink()
        return AsyncLLM.connect(
            link,
            model=str(demo_model()),
            tokenizer=self.tokenizer,
            on_core_state=take_state,
            max_num_queued_reqs=4,
        )

    def change(self, name: str, **fields: Any) -> None:
        """The supervisor says something else of one engine."""
        self.statuses = [
            msgspec.structs.replace(status, **fields) if status.name == name else status
            for status in self.statuses
        ]
        self.group.take(self.statuses)

    def remove(self, name: str) -> None:
        self.statuses = [status for status in self.statuses if status.name != name]
        self.group.take(self.statuses)

    def add(self, name: str, **fields: Any) -> None:
        status = EngineStatus(name=name, kind="native", **{"options": {}, **fields})
        self.statuses = [*self.statuses, status]
        self.group.take(self.statuses)

    @property
    def members(self) -> list[Member]:
        return self.group.members

    def read(self, request_id: str, **options: Any) -> Reader:
        self._readers.append(Reader(self.group, request_id, **options))
        return self._readers[-1]

    async def begin(
        self, request_id: str, *token_ids: int, **options: Any
    ) -> tuple[Reader, ScriptedLink, ScriptedLink]:
        """An answer that has said so much, the link of its engine, and another one."""
        reader = self.read(request_id, **options)
        await self.settle()
        mine, other = self.at(request_id)
        mine.emit(request_id, *token_ids)
        await self.settle()
        return reader, mine, other

    def place_of(self, request_id: str) -> str:
        """The name of the engine that was asked last for this answer."""
        return [name for name, link in self.links.items() if link.ids(request_id)][-1]

    def at(self, request_id: str) -> tuple[ScriptedLink, ScriptedLink]:
        """The link of the engine that writes an answer, and another one."""
        ids = {each: [a.request_id for a in self.group.answers.at(each)] for each in self.members}
        mine = next(each for each, here in ids.items() if request_id in here)
        other = next(name for name in self.links if name != mine.name)
        return self.links[mine.name], self.links[other]

    async def settle(self) -> None:
        """Until nobody has anything to do any more."""
        for _ in range(30):
            await asyncio.sleep(0)

    def close(self) -> None:
        self.group.shutdown()
        self.tokenizer.close()


def ids_of(site: Site, text: str = ANSWER) -> list[int]:
    return site.tokenizer.encode(text, add_special_tokens=False)
