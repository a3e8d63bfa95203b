"""`PromptAhead`: the prompt after a steer is made once, while the answer ends, of what is kept."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from server.commands.messages.redact_message import redact_message
from server.commands.queue.prompt_ahead import PromptAhead
from server.commands.reply_target import ReplyTarget
from server.generation.prompts import PromptBuilder
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import QueueChanged
from sessions.model.records import Message
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_word
from tests.server.helpers.answering import until
from tests.server.helpers.in_process import LocalClient, patient_history, running_workers
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine
from tests.sessions.helpers.batches import RedisBatches

QUESTION, WORDS = oracle_word(7), oracle_word(30)


class Prompts:
    """What is rendered, and how often a prompt is begun."""

    def __init__(self, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_begun = 0
        self.rendered: list[list[dict[str, Any]]] = []
        build, render = PromptBuilder.build, engine.apply_chat_template_async

        async def counted(builder: PromptBuilder, *given: Any, **named: Any) -> Any:
            self.num_begun += 1
            return await build(builder, *given, **named)

        async def noted(messages: Any, answer: str = "", **options: object) -> list[int]:
            self.rendered.append(messages)
            return await render(messages, answer, **options)

        monkeypatch.setattr(PromptBuilder, "build", counted)
        monkeypatch.setattr(engine, "apply_chat_template_async", noted)


@pytest.fixture
async def site(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Worker, LocalClient, Prompts]]:
    dice, prefix = Dice(0), fresh_prefix()
    engine = ScriptedEngine(dice)
    prompts = Prompts(engine, monkeypatch)
    async with running_workers(redis_server.url, prefix, engine, dice, 1) as (worker,):
        async with LocalClient(worker, patient_history(redis_server.url, prefix)) as client:
            yield worker, client, prompts


async def steered(client: LocalClient, **fields: Any) -> str:
    """The session of a steered answer whose words were answered."""
    session = await client.new_session()
    first = await client.ask(session, QUESTION, settings={"max_output_tokens": 500})
    await client.deltas(first, 2)
    await client.reply(
        "response.steer", previous_response_id=first, idempotency_key="k", input=WORDS, **fields
    )
    created = await client.wait(
        lambda: next((f for f in client.frames if f.get("idempotency_key") == "k"), None), "words"
    )
    await client.done(created["response"]["id"])
    return session


async def test_the_prompt_after_a_steer_is_begun_once_and_has_what_is_stored(
    site: tuple[Worker, LocalClient, Prompts],
) -> None:
    worker, client, prompts = site
    session = await steered(client, settings={"max_output_tokens": 500})
    assert prompts.num_begun == 2
    kept = (await worker.store.messages.path(None, session)).messages[1]
    assert kept.text and kept.status == "interrupted"
    assert prompts.rendered[-1] == [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": kept.text},
        {"role": "user", "content": WORDS},
    ]


async def test_words_with_other_settings_get_a_prompt_of_their_own(
    site: tuple[Worker, LocalClient, Prompts],
) -> None:
    _, client, prompts = site
    await steered(client, settings={"system": "Be brief.", "max_output_tokens": 3})
    assert prompts.num_begun == 3
    assert prompts.rendered[-1][0] == {"role": "system", "content": "Be brief."}


async def test_the_words_alone_are_rendered_while_the_history_is_read(
    site: tuple[Worker, LocalClient, Prompts], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client, prompts = site
    path, rendered = PromptBuilder.path, asyncio.Event()

    async def late(builder: PromptBuilder, *given: Any) -> list[Message]:
        if given[2] is not None:  # else it is the first question
            await until(lambda: len(prompts.rendered) > 1)
            rendered.set()
        return await path(builder, *given)

    monkeypatch.setattr(PromptBuilder, "path", late)
    await steered(client, settings={"max_output_tokens": 500})
    assert rendered.is_set()
    assert [len(each) for each in prompts.rendered] == [1, 1, 3]


async def test_nothing_is_read_between_the_end_and_the_next_beginning(
    site: tuple[Worker, LocalClient, Prompts], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client, _ = site
    redis = RedisBatches(monkeypatch)
    await steered(client, settings={"max_output_tokens": 500})
    sent = redis.between("finish_response", "begin_response")
    assert {"HGET", "LRANGE", "read_bodies", "read_session"}.isdisjoint(sent)


@pytest.mark.parametrize("place", [0, 1])
async def test_what_is_deleted_before_the_words_are_asked_never_reaches_the_model(
    site: tuple[Worker, LocalClient, Prompts], place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, client, prompts = site
    messages, take = worker.store.messages, PromptAhead.take

    async def deleted_first(ahead: PromptAhead, target: ReplyTarget, settings: Any) -> Any:
        session_id = ahead._run.session_id
        session = await worker.store.sessions.get(None, session_id)
        message_id = (await messages.path(None, session_id)).messages[place].id
        await redact_message(
            worker.store, session.uid, session_id, message_id, lambda old: replace(old, text="")
        )
        return await take(ahead, target, settings)

    monkeypatch.setattr(PromptAhead, "take", deleted_first)
    session = await steered(client, settings={"max_output_tokens": 500})
    kept = (await messages.path(None, session)).messages[1 - place].text
    assert [each["content"] for each in prompts.rendered[-1]] == (
        [f"{QUESTION}\n\n{WORDS}"] if place else [kept, WORDS]
    )


async def test_the_look_for_what_was_deleted_ends_with_a_beginning_that_is_refused(
    site: tuple[Worker, LocalClient, Prompts], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, client, _ = site
    looking, ended = asyncio.Event(), asyncio.Event()

    async def look(ahead: PromptAhead) -> bool:
        looking.set()
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise

    async def refuse(*given: Any, **named: Any) -> Any:
        await looking.wait()
        raise QueueChanged

    session = await client.new_session()
    first = await client.ask(session, QUESTION, settings={"max_output_tokens": 500})
    await client.deltas(first, 2)
    monkeypatch.setattr(PromptAhead, "is_current", look)
    monkeypatch.setattr(worker.store.responses, "begin", refuse)
    await client.reply(
        "response.steer",
        previous_response_id=first,
        idempotency_key="k",
        input=WORDS,
        settings={"max_output_tokens": 500},
    )
    await asyncio.wait_for(ended.wait(), PATIENCE)
