"""One answer in the making at a worker, with an engine that says what the test lets it say."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from engine import CompletionOutput, RequestOutput
from engine.errors import RetryableRequestError
from server.config.intervals import Intervals
from server.engines.client import SamplingParams, TokensPrompt
from server.generation.prompts import Prompt, PromptBuilder
from server.live.hub import Hub
from server.live.subscription import Subscription
from server.runs.producer import Producer
from server.runs.run import Run
from server.telemetry.metrics import Metrics
from sessions.connection.feed import LiveFeed
from sessions.model.events import ObjectEvent, TextEvent
from sessions.store.appends.appender import Appender
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.server.helpers.engines import IdleEngine
from tests.server.helpers.watching import SilentFeed, Viewer
from tests.sessions.helpers.chat import CREATED, Chat

SETTINGS = {"temperature": 0, "top_p": 1.0, "max_output_tokens": 100, "seed": 1}
MAX_SECONDS = 300.0


def output(rid: str, text: str, finish_reason: str | None = None) -> RequestOutput:
    answer = CompletionOutput(
        index=0,
        text=text,
        token_ids=[1] if text else [],
        finish_reason=cast("Any", finish_reason),
    )
    finished = finish_reason is not None
    return RequestOutput(rid, None, None, None, [answer], finished)


class Engine(IdleEngine):
    """Says what the test lets it say; an abort ends it."""

    def __init__(self) -> None:
        super().__init__()
        self._outputs: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue()
        self.prompts: list[Any] = []
        self.sessions: list[str | None] = []
        self.ready = asyncio.Event()
        self.ready.set()

    @property
    def is_ready(self) -> bool:
        return self.ready.is_set()

    async def wait_ready(self, timeout: float | None = None) -> None:
        async with asyncio.timeout(timeout):
            await self.ready.wait()

    def say(self, *outputs: RequestOutput | Exception) -> None:
        for each in outputs:
            self._outputs.put_nowait(each)

    async def generate(
        self,
        prompt: TokensPrompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        session_id: str | None = None,
        **_: object,
    ) -> AsyncGenerator[RequestOutput, None]:
        if not self.is_ready:
            raise RetryableRequestError("no core")
        self.prompts.append(prompt)
        self.sessions.append(session_id)
        finished = False
        while not finished:
            said = await self._outputs.get()
            if isinstance(said, Exception):
                raise said
            finished = said.finished
            yield said

    async def abort(self, request_id: str) -> None:
        self.say(output(request_id, "", "abort"))


class Answering:
    """One begun answer, its producer, and somebody who watches."""

    def __init__(self, store: SessionStore, chat: Chat) -> None:
        self.store, self.chat = store, chat
        self.engine = Engine()
        self.viewer = Viewer()
        self.intervals = Intervals()
        self.metrics = Metrics()
        self.has_peers = False

    async def begin(self) -> "Answering":
        self.hub = Hub(self.store, cast("LiveFeed", SilentFeed()), self.store.keys, "w1")
        begun = await self.chat.begin()
        self.rid = begun.response_id
        response = {
            "id": self.rid,
            "session_id": self.chat.session_id,
            "settings": SETTINGS,
            "model": "village",
        }
        message = self.chat.messages[self.rid]
        created = ObjectEvent(dict(CREATED))
        self.run = Run(response, message, uid="alice", fence=1, created=created)
        self.run.set_prompt(Prompt([1, 2, 3], None, 0))
        self.hub.rooms.add_run(self.rid, cast("Any", self.run))
        subscription = Subscription(self.viewer, self.chat.session_id)
        await self.hub.join(subscription)
        subscription.end_join(begun.offset)
        subscription.put_events(self.rid, 1, 1, self.run.events)
        self.producer = Producer(
            self.run,
            appender=Appender(self.store.appends, renewal_seconds=self.intervals.renewal),
            store=self.store,
            engine=self.engine,
            prompts=cast("PromptBuilder", None),  # it has its prompt
            hub=self.hub,
            metrics=self.metrics,
            intervals=self.intervals,
            has_peers=lambda: self.has_peers,
            max_seconds=MAX_SECONDS,
        )
        return self

    def start(self) -> asyncio.Task[Any]:
        return asyncio.create_task(self._produce())

    async def _produce(self) -> Any:
        return await self.producer.produce()

    async def text_comes(self) -> None:
        while (await self.viewer.next())["type"] != "response.output_text.delta":
            pass

    async def stored(self) -> tuple[list[str], str]:
        """The texts in the log, and that of the message."""
        events = [event for _, event in await self.store.runs.events(self.rid)]
        message_id = self.run.message.id
        message = await self.store.messages.get("alice", self.chat.session_id, message_id)
        return [e.delta for e in events if isinstance(e, TextEvent)], message.text


async def until(condition: Callable[[], bool]) -> None:
    """For what only a look can tell."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)
