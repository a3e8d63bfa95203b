"""Answers that keep to a form, through `parley serve`: refused, killed and continued."""

import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.site.harness import TESTING, Answer, Client, Server
from tests.end_to_end.site.owned_answer import owner_and_other
from tests.helpers.tiny_model import build_tiny_model

PERSON: Frame = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 60, "maxLength": 80},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
SCHEMA: Frame = {"type": "json_schema", "schema": PERSON}
HOT: Frame = {"temperature": 1.0, "top_p": 1.0, "max_output_tokens": 200}
SEEDS = (3, 4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("structured")
    model = build_tiny_model(folder / "model")
    environment = {**TESTING, "PARLEY_WORKERS": "2", "PARLEY_PACE": "60"}
    server = Server(folder / "data", model, None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


@asynccontextmanager
async def chat(server: Server) -> AsyncIterator[tuple[Client, str]]:
    async with Client(server) as client:
        yield client, await client.new_session()


def details(answer: Answer) -> Frame:
    assert answer.done is not None
    found: Frame = answer.done["response"]["status_details"]
    return found


async def undisturbed(server: Server) -> list[str]:
    texts = []
    for seed in SEEDS:
        async with chat(server) as (client, session):
            settings = {**HOT, "seed": seed, "output": SCHEMA}
            answer = await client.done(await client.ask(session, "Who?", settings=settings))
            assert details(answer) == {"reason": "eos"}
            texts.append(answer.final)
    return texts


async def test_an_answer_has_the_form_that_was_asked_for(server: Server) -> None:
    for text in await undisturbed(server):
        value = json.loads(text)
        assert value.keys() == {"name", "age"} and 60 <= len(value["name"]) <= 80
    for output, pattern in (
        ({"type": "regex", "pattern": "[ab]{3}"}, "[ab]{3}"),
        ({"type": "choice", "choices": ["yes", "no"]}, "yes|no"),
        ({"type": "grammar", "grammar": 'start: "a" /[0-9]/'}, "a[0-9]"),
    ):
        async with chat(server) as (client, session):
            settings = {**HOT, "output": output}
            answer = await client.done(await client.ask(session, "Say.", settings=settings))
            assert re.fullmatch(pattern, answer.final)
            assert answer.done is not None
            assert answer.done["response"]["settings"]["output"] == output


async def test_what_no_grammar_can_hold_ends_the_answer_with_its_reason(server: Server) -> None:
    async with chat(server) as (client, session):
        output = {"type": "json_schema", "schema": {"type": "array", "uniqueItems": True}}
        answer = await client.done(
            await client.ask(session, "Say.", settings={**HOT, "output": output})
        )
        assert details(answer)["reason"] == "output_format_refused"
        assert "uniqueItems" in details(answer)["message"]
        assert answer.final == ""


async def test_warnings_reach_the_client(server: Server) -> None:
    schema = {"type": "boolean", "uniqueItems": True, "x-guidance": {"lenient": True}}
    async with chat(server) as (client, session):
        settings = {**HOT, "output": {"type": "json_schema", "schema": schema}}
        answer = await client.done(await client.ask(session, "Say.", settings=settings))
        assert answer.done is not None and answer.final in ("true", "false")
        assert "uniqueItems" in answer.done["response"]["warnings"][0]


async def test_a_continued_answer_goes_on_in_its_form(server: Server) -> None:
    async with chat(server) as (client, session):
        settings = {**HOT, "seed": 5, "output": SCHEMA}
        cut = {**settings, "max_output_tokens": 20}
        first = await client.done(await client.ask(session, "Who?", settings=cut))
        assert first.done is not None and details(first)["reason"] == "max_output_tokens"
        created = await client.reply(
            "response.create",
            session_id=session,
            idempotency_key="continue",
            continue_of=first.done["response"]["message_id"],
            settings=settings,
        )
        answer = await client.done(created["response"]["id"])
        assert json.loads(answer.final).keys() == {"name", "age"}


async def test_after_a_kill_of_the_core_each_text_is_the_same(server: Server) -> None:
    expected = await undisturbed(server)
    async with chat(server) as (client, _):
        responses = []
        for seed in SEEDS:
            session = await client.new_session()
            settings = {**HOT, "seed": seed, "output": SCHEMA}
            responses.append(await client.ask(session, "Who?", settings=settings))
        for response in responses:
            await client.deltas(response, 8)
        server.kill_child("engine.core")
        answers = [await client.done(response) for response in responses]
        assert [answer.final for answer in answers] == expected
        assert all(a.done is not None and a.done["response"]["restarts"] for a in answers)


async def test_after_a_kill_of_the_owner_each_text_is_the_same(server: Server) -> None:
    expected = await undisturbed(server)
    async with owner_and_other(server) as (owner, other, pid):
        responses = []
        for seed in SEEDS:
            session = await owner.new_session()
            await other.reply("session.subscribe", session_id=session)
            settings = {**HOT, "seed": seed, "output": SCHEMA}
            responses.append(await owner.ask(session, "Who?", settings=settings))
        for response in responses:
            await other.deltas(response, 8)
        os.kill(pid, signal.SIGKILL)
        answers = [await other.done(response) for response in responses]
        assert [answer.final for answer in answers] == expected
        assert {answer.fence for answer in answers} == {2}
