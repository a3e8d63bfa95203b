"""`ResponseCreator`: what an answer is given to answer, no matter what ends while it begins."""

import asyncio
import gc
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine import ChatTemplateError, QueueOverflowError
from server.engines.client import RequestOutput, SamplingParams, TokensPrompt
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import StoreUnavailable
from tests.end_to_end.oracle.history import History
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.in_process import LocalClient, running_workers
from tests.server.helpers.scripted_engine import Dice, Request, ScriptedEngine

NUM_TOKENS = 3


class SlowTemplate(ScriptedEngine):
    """Renders a prompt when the test says so, and keeps those that it was given to answer."""

    def __init__(self) -> None:
        super().__init__(Dice(0))
        self.rendered: asyncio.Queue[asyncio.Event] | None = None
        self.prompts: dict[str, list[int]] = {}

    async def apply_chat_template_async(
        self, messages: Sequence[Mapping[str, Any]], answer: str = "", **options: object
    ) -> list[int]:
        if self.rendered is not None:
            go_on = asyncio.Event()
            self.rendered.put_nowait(go_on)
            await go_on.wait()
        return await self.encode_async(" ".join(message["content"] for message in messages))

    def generate(
        self,
        prompt: TokensPrompt,
        sampling_params: SamplingParams,
        request_id: str,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        self.prompts[request_id] = prompt["prompt_token_ids"]
        return super().generate(prompt, sampling_params, request_id, **options)


async def test_a_prompt_holds_the_whole_of_an_answer_that_ended_while_it_was_built(
    redis_server: EmbeddedRedis,
) -> None:
    engine, settings = SlowTemplate(), {"max_output_tokens": NUM_TOKENS}
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(0), 1) as (worker,):
        async with LocalClient(worker, History(lambda: None)) as client:
            session = await client.new_session()
            first = await client.ask(session, oracle_word(10), settings=settings)
            engine.requests[first].is_held.add("last")
            await engine.requests[first].reached["last"].wait()
            engine.rendered = asyncio.Queue()
            asking = asyncio.create_task(
                client.ask(session, oracle_word(20), settings=settings, on_busy="queue")
            )
            # Alone, then after the history, which was read while the first answer was written.
            (await engine.rendered.get()).set()
            go_on = await engine.rendered.get()
            engine.requests[first].released.set()
            await client.done(first)
            engine.rendered = None
            go_on.set()
            second = await asking
            await client.done(second)
    assert engine.prompts[second] == [10, 11, 12, 13, 20]


async def test_a_stop_by_key_in_the_packet_of_its_question_lets_no_token_through(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the store takes to say which answer the key began."""
    engine = ScriptedEngine(Dice(0))
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(0), 1) as (worker,):
        cancel_early = worker.services.store.responses.cancel_early

        async def cancel_late(uid: str, session_id: str, key: str) -> str | None:
            known = await cancel_early(uid, session_id, key)
            if known is not None:
                await engine.requests[known].reached["ended"].wait()
            return known

        monkeypatch.setattr(worker.services.store.responses, "cancel_early", cancel_late)
        async with LocalClient(worker, History(lambda: None)) as client:
            key = {"session_id": await client.new_session(), "idempotency_key": "packet"}
            await client.send("response.create", **key, input=oracle_word(0))
            await client.send("stop", **key)
            created = await client.next("response.created")
            answer = await client.done(created["response"]["id"])
            assert (answer.final, answer.num_deltas) == ("", 0)


def held_at_the_last_token() -> Request:
    request = Request()
    request.is_held.add("last")
    return request


async def test_an_answer_whose_turn_comes_while_the_store_is_away_waits_for_it(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, settings = ScriptedEngine(Dice(0)), {"max_output_tokens": NUM_TOKENS}
    engine.requests = defaultdict(held_at_the_last_token)
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(0), 1) as (worker,):
        async with LocalClient(worker, History(lambda: None)) as client:
            session = await client.new_session()
            first = await client.ask(session, oracle_word(10), settings=settings)
            second = await client.ask(session, oracle_word(20), settings=settings, on_busy="queue")
            path, num_refused = worker.store.messages.path, 0

            async def path_after_an_outage(*arguments: Any, **options: Any) -> Any:
                nonlocal num_refused
                num_refused += 1
                if num_refused < 3:
                    raise StoreUnavailable("Redis did not answer in time")
                return await path(*arguments, **options)

            monkeypatch.setattr(worker.store.messages, "path", path_after_an_outage)
            for response_id in (first, second):
                engine.requests[response_id].released.set()
            answer = await client.done(second)
            assert answer.done is not None
            assert answer.done["response"]["status"] == "incomplete"  # all its tokens
            assert num_refused >= 3
            assert answer.final == "".join(map(oracle_word, (21, 22, 23)))


async def test_an_answer_whose_question_makes_no_prompt_when_its_turn_comes_fails_in_one_line(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, settings = ScriptedEngine(Dice(0)), {"max_output_tokens": NUM_TOKENS}
    engine.requests = defaultdict(held_at_the_last_token)
    url, prefix = redis_server.url, fresh_prefix()

    async def leave_bounds(*_: Any, **__: Any) -> list[int]:
        raise ChatTemplateError("it takes too long")

    async with running_workers(url, prefix, engine, Dice(0), 1) as (worker,):
        async with LocalClient(worker, History(lambda: None)) as client:
            session = await client.new_session()
            first = await client.ask(session, oracle_word(10), settings=settings)
            second = await client.ask(session, oracle_word(20), settings=settings, on_busy="queue")
            with monkeypatch.context() as patch, capture_logs() as logs:
                patch.setattr(engine, "apply_chat_template_async", leave_bounds)
                engine.requests[first].released.set()
                answer = await client.done(second)
            assert answer.done is not None
            assert answer.done["response"]["status"] == "failed"
            assert answer.done["response"]["status_details"]["reason"] == "engine_error"
            third = await client.ask(session, oracle_word(30), settings=settings)
            engine.requests[third].released.set()
            assert (await client.done(third)).num_deltas
    (line,) = [line for line in logs if line["log_level"] not in ("info", "debug")]
    assert (line["event"], line["code"]) == ("no prompt", "invalid_field")


class FullQueue(ScriptedEngine):
    """Lets so many answers begin, of those on their way; renders none before all have asked."""

    def __init__(self, most: int, num_asking: int) -> None:
        super().__init__(Dice(0))
        self.most = most
        self.num_missing = num_asking
        self.all_have_asked = asyncio.Event()

    def check_admission(self, n: int = 1) -> None:
        self.num_missing -= 1
        if self.num_missing == 0:
            self.all_have_asked.set()
        if n > self.most:
            raise QueueOverflowError("too many requests are waiting")

    async def apply_chat_template_async(
        self, messages: Sequence[Mapping[str, Any]], answer: str = "", **options: object
    ) -> list[int]:
        await self.all_have_asked.wait()
        return await super().apply_chat_template_async(messages, answer)


@pytest.mark.row("P17")
async def test_answers_that_begin_at_the_same_time_are_counted_before_the_engine_has_them(
    redis_server: EmbeddedRedis,
) -> None:
    engine, settings = FullQueue(3, num_asking=20), {"max_output_tokens": NUM_TOKENS}
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(0), 1) as (worker,):

        async def ask(_: int = 0) -> str | None:
            async with LocalClient(worker, History(lambda: None)) as client:  # frames wait in turn
                frame = await client.reply(
                    "response.create",
                    session_id=await client.new_session(),
                    input=oracle_word(10),
                    settings=settings,
                    idempotency_key="k",
                )
                if frame["type"] == "response.created":
                    await client.done(frame["response"]["id"])
                code: str | None = frame.get("error", {}).get("code")
                return code

        codes = await asyncio.gather(*map(ask, range(20)))
        assert (codes.count(None), codes.count("queue_full")) == (3, 17)
        assert await ask() is None


class LongPrompts(SlowTemplate):
    """All of them longer than the context."""

    async def apply_chat_template_async(
        self, messages: Sequence[Mapping[str, Any]], answer: str = "", **options: object
    ) -> list[int]:
        return 100_000 * await super().apply_chat_template_async(messages, answer, **options)


@pytest.mark.row("M5")
async def test_a_refusal_whose_asker_has_left_writes_nothing_into_the_log(
    redis_server: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[dict[str, Any]] = []  # by asyncio, of a task whose failure nobody has taken
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    engine = LongPrompts()
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(0), 1) as (worker,):
        async with LocalClient(worker, History(lambda: None)) as client:
            session = await client.new_session()
            engine.rendered = asyncio.Queue()
            key = {"session_id": session, "idempotency_key": "k"}
            await client.send("response.create", **key, input=oracle_word(10))
            go_on = await engine.rendered.get()
        go_on.set()
        await worker.runs.wait_idle(PATIENCE)
    gc.collect()
    assert reported == []
    assert caplog.records == []
