"""`ReplyTargets`: a client answers the calls of an answer, as the prompt and the store have it."""

from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from engine.client.parsing.formats import grammar_of
from engine.client.parsing.marks import AddedToken
from server.commands.exports import as_json, as_markdown
from server.commands.imports import parse_import
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.records import Message
from tests.end_to_end.oracle.history import History
from tests.helpers.redis_server import fresh_prefix
from tests.server.helpers.callers import ANSWER, TOOLS, CallingEngine
from tests.server.helpers.in_process import LocalClient, running_workers
from tests.server.helpers.scripted_engine import Dice, Request

SETTINGS = {"tools": TOOLS, "max_output_tokens": 500}


@pytest.fixture
def engine() -> CallingEngine:
    return CallingEngine()


@pytest.fixture
async def worker(redis_server: EmbeddedRedis, engine: CallingEngine) -> AsyncIterator[Worker]:
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(0), 1) as (one,):
        yield one


@pytest.fixture
async def client(worker: Worker) -> AsyncIterator[LocalClient]:
    async with LocalClient(worker, History(lambda: None)) as one:
        yield one


async def messages_of(worker: Worker, session_id: str) -> list[Message]:
    return [
        message
        async for message in worker.store.messages.each("local", session_id, whole_tree=False)
    ]


async def called(client: LocalClient, worker: Worker) -> tuple[str, list[dict[str, Any]]]:
    """A session whose answer has ended with calls, and these."""
    session = await client.new_session()
    answer = await client.done(await client.ask(session, "How is it?", settings=SETTINGS))
    assert answer.done is not None
    assert answer.done["response"]["status_details"]["reason"] == "tool_calls"
    last = (await messages_of(worker, session))[-1]
    assert last.tool_calls is not None
    return session, last.tool_calls


def outputs(calls: list[dict[str, Any]], *said: str) -> list[dict[str, str]]:
    return [
        {"type": "function_call_output", "call_id": call["call_id"], "output": output}
        for call, output in zip(calls, said, strict=True)
    ]


async def test_what_tools_give_back_is_stored_and_given_to_the_model(
    worker: Worker, client: LocalClient, engine: CallingEngine
) -> None:
    session, calls = await called(client, worker)
    first = engine.prompts[-1]
    assert first[1]["tools"] == [
        {
            "type": "function",
            "function": {"parameters": {"type": "object", "properties": {}}, "description": ""}
            | {name: value for name, value in tool.items() if name != "type"},
        }
        for tool in TOOLS
    ]
    answered = await client.ask(session, outputs(calls, "<rain>", ""), settings=SETTINGS)
    answer = await client.done(answered)
    assert answer.final == ANSWER
    question, calling, given = engine.prompts[-1][0][-4:-1]
    assert question == {"role": "user", "content": "How is it?"}
    functions = [call["function"] for call in calling["tool_calls"]]
    assert functions == [
        {"name": "weather", "arguments": {"city": "Brno é😀"}},
        {"name": "clock", "arguments": {}},
    ]
    assert (calling["content"], given["content"], given["name"]) == ("I look.", "<rain>", "weather")
    assert given["tool_call_id"] == calling["tool_calls"][0]["id"]
    roles = [message.role for message in await messages_of(worker, session)]
    assert roles == ["user", "assistant", "tool", "assistant"]
    stored = (await messages_of(worker, session))[2]
    assert [part["text"] for part in stored.wire()["content"]] == ["<rain>", ""]
    assert stored.text == "<rain>"
    again = await client.reply(
        "response.create",
        session_id=session,
        idempotency_key="again",
        regenerate_of=(await messages_of(worker, session))[-1].id,
    )
    assert (await client.done(again["response"]["id"])).final == ANSWER
    # The tools of a question are its own: the session's settings have none.
    assert "tools" not in engine.prompts[-1][1]
    assert engine.prompts[-1][0][-1]["role"] == "tool"


async def test_calls_that_are_not_there_or_not_answered_are_refused(
    worker: Worker, client: LocalClient
) -> None:
    session, calls = await called(client, worker)
    both = outputs(calls, "a", "b")

    async def refused(given: Any, **more: Any) -> tuple[str, str | None]:
        fields = {"session_id": session, "idempotency_key": "k", "input": given, **more}
        frame = await client.reply("response.create", **fields)
        return frame["error"]["code"], frame["error"].get("param")

    unknown = [{**both[0], "call_id": "call_other"}, both[1]]
    assert await refused(unknown) == ("call_not_found", "input[0].call_id")
    assert await refused(both[:1]) == ("call_outputs_missing", "input")
    assert await refused([both[0], both[0]]) == ("invalid_field", "input")
    text = {"type": "input_text", "text": "x"}
    assert await refused([*both, text]) == ("invalid_field", "input")
    assert await refused(both, parent_id=None) == ("call_not_found", "input[0].call_id")
    question = (await messages_of(worker, session))[0]
    assert await refused(both, parent_id=question.id) == ("call_not_found", "input[0].call_id")
    assert len(await messages_of(worker, session)) == 2


async def test_a_question_in_the_place_of_outputs_leaves_the_calls_out_of_the_prompt(
    worker: Worker, client: LocalClient, engine: CallingEngine
) -> None:
    session, _ = await called(client, worker)
    await client.done(await client.ask(session, "Never mind.", settings=SETTINGS))
    assert [message["content"] for message in engine.prompts[-1][0]] == [
        *("How is it?", "I look.", "Never mind.")
    ]
    assert not any("tool_calls" in message for message in engine.prompts[-1][0])


@pytest.mark.parametrize("lacks", ["format", "template"])
async def test_tools_are_refused_of_a_model_that_cannot_call(
    worker: Worker, client: LocalClient, engine: CallingEngine, lacks: str
) -> None:
    if lacks == "format":
        engine.grammar = grammar_of("'</think>'")
    else:
        engine.takes_tools = False
    session = await client.new_session()
    fields = {"session_id": session, "idempotency_key": "k", "input": "Hi", "settings": SETTINGS}
    refused = await client.reply("response.create", **fields)
    assert (refused["error"]["code"], refused["error"]["param"]) == (
        "tools_not_supported",
        "settings.tools",
    )
    assert await messages_of(worker, session) == []
    fields["settings"] = {**SETTINGS, "tool_choice": "none"}
    begun = await client.reply("response.create", **fields)
    await client.done(begun["response"]["id"])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "clock"}])
async def test_an_answer_that_must_call_is_held_to_a_call(
    client: LocalClient, engine: CallingEngine, choice: Any
) -> None:
    settings = {**SETTINGS, "tool_choice": choice}
    answer = await client.done(
        await client.ask(await client.new_session(), "How is it?", settings=settings)
    )
    assert answer.done is not None
    assert answer.done["response"]["status_details"]["reason"] == "tool_calls"
    assert answer.done["response"]["settings"]["tool_choice"] == choice
    form = engine.asked[-1].structured_outputs
    assert form is not None and "clock" in str(form.grammar)
    assert ("weather" in str(form.grammar)) == (choice == "required")


@pytest.mark.parametrize(
    ("tools", "choice"),
    [([], "required"), (TOOLS, {"type": "function", "name": "other"})],
)
async def test_a_choice_of_what_is_not_offered_is_refused(
    client: LocalClient, tools: list[Any], choice: Any
) -> None:
    fields = {"session_id": await client.new_session(), "idempotency_key": "k", "input": "Hi"}
    settings = {"tools": tools, "tool_choice": choice}
    refused = await client.reply("response.create", **fields, settings=settings)
    assert (refused["error"]["code"], refused["error"]["param"]) == (
        "invalid_field",
        "settings.tool_choice",
    )


async def test_a_budget_for_thoughts_reaches_the_engine_or_is_refused(
    client: LocalClient, engine: CallingEngine
) -> None:
    session = await client.new_session()
    fields = {"session_id": session, "idempotency_key": "k", "input": "Hi"}
    settings = {"thinking_token_budget": 5}
    refused = await client.reply("response.create", **fields, settings=settings)
    assert (refused["error"]["code"], refused["error"]["param"]) == (
        "thinking_not_supported",
        "settings.thinking_token_budget",
    )
    tokens = [AddedToken(300, "<think>", True), AddedToken(301, "</think>", True)]
    engine.grammar = grammar_of("<tool_call></tool_call>", tokens)
    await client.done(
        (await client.reply("response.create", **fields, settings=settings))["response"]["id"]
    )
    assert engine.asked[-1].thinking_token_budget == 5


async def test_what_looks_like_a_call_is_text_where_no_tool_is_offered(
    worker: Worker, client: LocalClient, engine: CallingEngine
) -> None:
    session = await client.new_session()
    settings = {**SETTINGS, "tool_choice": "none"}
    answer = await client.done(await client.ask(session, "How is it?", settings=settings))
    assert answer.final.startswith("I look.\n<tool_call>")
    assert "tools" not in engine.prompts[-1][1]


async def test_a_form_and_tools_are_refused_together(client: LocalClient) -> None:
    settings = {**SETTINGS, "output": {"type": "json"}}
    fields = {"session_id": await client.new_session(), "idempotency_key": "k", "input": "Hi"}
    refused = await client.reply("response.create", **fields, settings=settings)
    assert refused["error"]["param"] == "settings.output"


async def test_a_stop_keeps_the_calls_that_were_shown(
    worker: Worker, client: LocalClient, engine: CallingEngine
) -> None:
    def held() -> Request:
        request = Request()
        request.is_held.add("mid")
        return request

    engine.requests = defaultdict(held)
    engine.first = ['<tool_call>{"name": "weather", "arguments": {"ci', 'ty": "Brno"}}</tool_call>']
    session = await client.new_session()
    response_id = await client.ask(session, "How is it?", settings=SETTINGS)
    shown = await client.next("response.function_call_arguments.delta")
    seen = shown["sequence_number"]
    await client.reply("stop", response_id=response_id, seen_sequence_number=seen)
    await client.done(response_id)
    await client.next("message.updated")
    message = (await messages_of(worker, session))[-1]
    assert [(call["arguments"], call["status"]) for call in message.tool_calls or ()] == [
        (shown["delta"], "incomplete")
    ]
    assert message.status == "interrupted"
    fields = {"session_id": session, "idempotency_key": "c", "continue_of": message.id}
    continued = await client.reply("response.create", **fields)
    assert continued["error"]["param"] == "continue_of"


async def test_a_call_that_the_answer_had_no_room_for_is_incomplete(
    worker: Worker, client: LocalClient, engine: CallingEngine
) -> None:
    engine.first = ['<tool_call>{"name": "weather", "arguments": {"ci', 'ty": "Brno"}}</tool_call>']
    session = await client.new_session()
    settings = SETTINGS | {"max_output_tokens": 1}
    answer = await client.done(await client.ask(session, "How is it?", settings=settings))
    assert answer.done is not None
    assert answer.done["response"]["status_details"]["reason"] == "max_output_tokens"
    calls = (await messages_of(worker, session))[-1].tool_calls or ()
    assert [(call["arguments"], call["status"]) for call in calls] == [('{"ci', "incomplete")]


async def test_an_export_brings_calls_and_outputs_back(worker: Worker, client: LocalClient) -> None:
    session_id, calls = await called(client, worker)
    await client.done(await client.ask(session_id, outputs(calls, "rain", "noon")))
    session = await worker.store.sessions.get("local", session_id)
    each = worker.store.messages.each
    exported = [part async for part in as_json(session, each("local", session_id, whole_tree=True))]
    draft = parse_import(b"".join(exported), "oracle")
    kept = await messages_of(worker, session_id)
    assert [(one.role, one.text, one.outputs, one.tool_calls) for one in draft.messages] == [
        (one.role, one.text, one.outputs, one.tool_calls) for one in kept
    ]
    markdown = b"".join(
        [part async for part in as_markdown(session, each("local", session_id, whole_tree=False))]
    )
    assert b"Calls `weather` with:" in markdown
    assert b"`weather` gave back:\n\n```\nrain\n```" in markdown and b"```\nnoon\n```" in markdown
    share = await worker.store.shares.create("local", session_id, "T", kept)
    shown = [orjson.loads(line) for line in (await worker.store.shares.get(share.id)).messages()]
    assert [one.get("tool_calls") for one in shown] == [None, calls, None, None]
    assert [part.get("call_id") for part in shown[2]["content"]] == [c["call_id"] for c in calls]
