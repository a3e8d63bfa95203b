"""A worker of Parley whose engine is another Parley, asked by OpenAI's routes over a socket."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from server.engines.client import RequestOutput, ServedModel, TokensPrompt
from server.engines.models import Models
from server.engines.remote.wire.address import RemoteAddress
from server.engines.textual.engine import TextEngine
from server.engines.textual.line import Line
from server.worker.app import Worker
from server.worker.uvicorn_server import Server, uvicorn_config
from sessions.background import start
from sessions.connection.embedded import EmbeddedRedis
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.in_process import (
    PATIENT,
    TOKEN,
    LocalClient,
    patient_history,
    running_worker,
)
from tests.server.helpers.scripted_engine import Dice, ScriptedEngine
from tests.server.helpers.tool_chats import die

NUM_TOKENS = 9
MODEL = ServedModel("oracle", "by its name")


class Relay:
    """Carries bytes to a port, and cuts all connections when it is told to."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, their_writer]
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(_copy(reader, their_writer), _copy(their_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
    writer.close()


@contextlib.asynccontextmanager
async def listening(worker: Worker) -> AsyncIterator[int]:
    """The worker behind a port, with the server that real ones have."""
    config = uvicorn_config(worker.app, 20.0)
    config.lifespan = "off"  # it lasts already
    server = Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    serving = start(server.serve(sockets=[listener]))
    await server.ready.wait()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await serving


class Halting(ScriptedEngine):
    """It stops after so many tokens, and goes on when it is told to."""

    def __init__(self, dice: Dice) -> None:
        super().__init__(dice)
        self.halt_after: int | None = None
        self.prompts: list[int] = []  # the last token of each
        self.has_left = asyncio.Event()  # a reader, before the end

    async def generate(
        self, prompt: TokensPrompt, *given: Any, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        self.prompts.append(prompt["prompt_token_ids"][-1])
        num_said, outputs = 0, super().generate(prompt, *given, **options)
        try:
            async for output in outputs:
                yield output
                num_said += 1
                if num_said == self.halt_after:
                    await asyncio.Event().wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.has_left.set()
            raise


class House:
    """Parley in front of Parley. Both engines are scripted; the one behind answers."""

    def __init__(
        self, url: str, key_file: Path, relay: Relay, behind: Halting, stack: AsyncExitStack
    ) -> None:
        self.url, self.prefix = url, fresh_prefix()
        self.relay, self.behind = relay, behind
        self.history = patient_history(url, self.prefix)
        self._key_file, self._stack = key_file, stack

    async def worker(self, name: str) -> Worker:
        """One in front, with an engine of its own to the one behind."""
        address = RemoteAddress(f"http://127.0.0.1:{self.relay.port}/v1", self._key_file)
        engine = TextEngine(Line(address), name="oracle")
        self._stack.callback(engine.shutdown)
        await engine.wait_ready(PATIENCE)
        models = Models.of_one(MODEL, engine)
        running = running_worker(
            self.url, self.prefix, self.behind, Dice(7), name, PATIENT, models=models
        )
        return await self._stack.enter_async_context(running)


@pytest.fixture
async def house(redis_server: EmbeddedRedis, tmp_path: Path) -> AsyncIterator[House]:
    dice = Dice(5)
    behind = Halting(dice)
    key_file = tmp_path / "key"
    key_file.write_text(TOKEN)
    async with AsyncExitStack() as stack:
        running = running_worker(redis_server.url, fresh_prefix(), behind, dice, "behind")
        hidden = await stack.enter_async_context(running)
        port = await stack.enter_async_context(listening(hidden))
        relay = await stack.enter_async_context(Relay(port))
        yield House(redis_server.url, key_file, relay, behind, stack)


async def ask(client: LocalClient) -> str:
    settings = {"max_output_tokens": NUM_TOKENS, "temperature": 0}
    return await client.ask(await client.new_session(), oracle_word(1), settings=settings)


def text_of(client: LocalClient, response_id: str) -> str:
    """As far as it has come."""
    answer = client.answers.get(response_id)
    return "" if answer is None else answer.text


async def test_an_answer_has_the_text_and_the_figures_of_the_parley_behind(house: House) -> None:
    worker = await house.worker("w1")
    async with LocalClient(worker, house.history) as client:
        answer = await client.done(await ask(client))
        assert answer.text == oracle_answer(1, NUM_TOKENS)
        created = await client.next("response.created")
        assert created["response"]["exactness"] == "text"
        assert answer.done is not None
        response = answer.done["response"]
        assert response["status_details"]["reason"] == "max_output_tokens"
        assert response["usage"] == {
            "input_tokens": 1,
            "cached_tokens": 0,
            "output_tokens": NUM_TOKENS,
        }
        message = await client.next("message.updated")
        assert message["message"]["exactness"] == "text"
        assert answer.done["engine"] == "released"


async def test_an_answer_whose_connection_breaks_goes_on_with_the_same_text(house: House) -> None:
    house.behind.halt_after = 4
    worker = await house.worker("w1")
    async with LocalClient(worker, house.history) as client:
        response_id = await ask(client)
        await client.wait(lambda: text_of(client, response_id) == oracle_answer(1, 4))
        house.behind.halt_after = None
        house.relay.cut()
        answer = await client.done(response_id)
        assert answer.text == oracle_answer(1, NUM_TOKENS)
        assert house.behind.prompts == [1, 5]
        assert answer.done is not None and answer.done["response"]["restarts"] == 1
        assert answer.done["response"]["usage"]["output_tokens"] == NUM_TOKENS


async def test_an_answer_of_a_dead_worker_goes_on_at_another_after_its_text(house: House) -> None:
    house.behind.halt_after = 4
    first, second = await house.worker("w1"), await house.worker("w2")
    async with LocalClient(second, house.history) as client:
        async with LocalClient(first, house.history) as asker:
            response_id = await ask(asker)
            session_id = (await asker.next("response.created"))["response"]["session_id"]
            await client.reply("session.subscribe", session_id=session_id)
            await client.wait(lambda: text_of(client, response_id) == oracle_answer(1, 4))
            await die(first, asker)
        house.behind.halt_after = None
        await second.takeover.adopt("w1")
        answer = await client.done(response_id)
        assert answer.final.startswith(oracle_answer(1, 5))
        assert oracle_answer(1, NUM_TOKENS).startswith(answer.final)
        assert house.behind.prompts == [1, 5]


async def test_a_stop_ends_the_generation_behind_and_claims_no_confirmation(house: House) -> None:
    house.behind.halt_after = 4
    worker = await house.worker("w1")
    async with LocalClient(worker, house.history) as client:
        response_id = await ask(client)
        await client.wait(lambda: text_of(client, response_id) == oracle_answer(1, 4))
        await client.send("response.cancel", response_id=response_id)
        answer = await client.done(response_id)
        assert answer.done is not None and answer.done["engine"] == "unknown"
        assert answer.done["response"]["status"] == "cancelled"
        await asyncio.wait_for(house.behind.has_left.wait(), PATIENCE)


async def test_what_it_cannot_do_is_refused_by_name_before_anything_is_stored(house: House) -> None:
    worker = await house.worker("w1")
    async with LocalClient(worker, house.history) as client:
        session_id = await client.new_session()
        for settings, param in (
            ({"logprobs": 1}, "settings.logprobs"),
            ({"output": {"type": "regex", "pattern": "a+"}}, "settings.output"),
        ):
            refusal = await client.reply(
                "response.create",
                session_id=session_id,
                input="Hello",
                settings=settings,
                idempotency_key=param.removeprefix("settings."),
            )
            assert (refusal["type"], refusal["error"]["param"]) == ("error", param)
        assert house.behind.prompts == []
