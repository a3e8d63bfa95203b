"""`ToolPhase`: calls that the server carries out, in log, message and the model's prompt."""

from typing import Any

import pytest

from engine.tracing.endpoint import open_tracing
from tests.helpers.collector import Collector
from tests.server.helpers.callers import ANSWER, TOOLS, CallingEngine
from tests.server.helpers.tool_chats import OUTPUT, Chats, calling, offering, say
from tests.server.tools.helpers.running import heard


async def test_the_model_reads_what_a_tool_gives_back_and_answers_by_itself(
    chats: Chats,
) -> None:
    engine = CallingEngine(said=calling(("good__echo", {"text": "rain"})))
    async with chats(engine) as chat:
        session, first = await chat.ask("good")
        second = await chat.next_response(first)
        answer = await chat.client.done(second)
        assert answer.final == ANSWER
        done = (await chat.client.done(first)).done
        assert done is not None
        assert done["response"]["status_details"]["reason"] == "tool_calls"
        running, completed = chat.items(first)
        assert (running["status"], running["output"]) == ("in_progress", "")
        assert (completed["status"], completed["output"]) == ("completed", "rain")
        assert (completed["name"], completed["server_label"]) == ("good__echo", "good")
        _, called, given, answered = await chat.messages(session)
        assert called.tool_outputs == [completed]
        assert (given.role, given.outputs) == (
            "tool",
            [{"call_id": completed["call_id"], "output": "rain"}],
        )
        assert (answered.text, answered.parent_id) == (ANSWER, given.id)
        told = engine.prompts[-1][0]
        assert [message["role"] for message in told] == ["user", "assistant", "tool"]
        assert told[-1]["content"] == "rain"


async def test_calls_of_one_answer_run_side_by_side(chats: Chats) -> None:
    said = calling(("good__count", {"name": "a"}), ("good__count", {"name": "b"}))
    async with chats(CallingEngine(said=said)) as chat:
        began_a, go_a, began_b, go_b = chat.pipes("a-began", "a-go", "b-began", "b-go")
        session, first = await chat.ask("good")
        assert [await heard(began_a), await heard(began_b)] == ["1", "1"]  # neither waits
        await say(go_b, "late")
        await say(go_a, "later")
        await chat.client.done(await chat.next_response(first))
        _, called, given, _ = await chat.messages(session)
        assert called.tool_outputs is not None
        assert [item["output"] for item in called.tool_outputs] == [
            "call 1: later",
            "call 1: late",
        ]  # in the order of the calls
        assert given.outputs is not None
        assert [each["output"] for each in given.outputs] == ["call 1: later", "call 1: late"]


@pytest.mark.parametrize(
    ("name", "given", "code", "output"),
    [
        ("good__fail", {}, "tool_reported_error", None),
        (
            "good__echo",
            {},
            "tool_arguments_invalid",
            "error tool_arguments_invalid: text is missing",
        ),
        ("good__none", {}, "tool_unknown", "error tool_unknown: there is no such tool"),
        ("elsewhere", {}, "tool_unknown", "error tool_unknown: there is no such tool"),
        (
            "dying__die",
            {},
            "tool_failed",
            "error tool_failed: the server ended during the call",
        ),
    ],
)
async def test_the_model_reads_a_failure_in_one_line_by_its_code(
    chats: Chats, name: str, given: dict[str, Any], code: str, output: str | None
) -> None:
    async with chats(CallingEngine(said=calling((name, given)))) as chat:
        session, first = await chat.ask("dying" if code == "tool_failed" else "good")
        item = await chat.item(first, "failed")
        assert item["code"] == code
        assert item["output"] == output if output else "fail" in item["output"]
        await chat.client.done(await chat.next_response(first))
        assert (await chat.messages(session))[2].text == item["output"]


async def test_calls_beyond_the_limit_of_a_server_are_refused_from_the_question_on(
    chats: Chats,
) -> None:
    said = calling(*(("few__echo", {"text": str(number)}) for number in range(3)))
    engine = CallingEngine(said=said, is_tireless=True)
    async with chats(engine) as chat:
        _, first = await chat.ask("few")
        second = await chat.next_response(first)
        await chat.item(second, "failed", 2)
        codes = [item.get("code") for item in chat.items(first) if item["status"] != "in_progress"]
        assert sorted(codes, key=str) == [None, None, "tool_limit_reached"]
        codes = [item.get("code") for item in chat.items(second)]
        assert codes == ["tool_limit_reached"] * 3  # of the same question: none is left
        await chat.client.send("stop", response_id=await chat.next_response(second))


async def test_a_question_has_so_many_rounds_and_then_an_answer(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.runs.tools.phase.MAX_ROUNDS", 2)
    engine = CallingEngine(said=calling(("good__echo", {"text": "more"})), is_tireless=True)
    async with chats(engine) as chat:
        session, response = await chat.ask("good")
        for _ in range(3):
            await chat.client.done(response)
            response = await chat.next_response(response)
        assert (await chat.client.done(response)).final == ANSWER
        found = [each.tool_outputs for each in await chat.messages(session) if each.tool_outputs]
        assert [items[0].get("code") for items in found] == [None, None, "tool_rounds_exceeded"]
        assert "tools" not in engine.prompts[-1][1]


async def test_outputs_that_are_too_long_together_are_not_kept(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.runs.tools.phase.MAX_OUTPUT_BYTES", 3000)
    said = calling(("good__echo", {"text": "a" * 2000}), ("good__echo", {"text": "b" * 2000}))
    async with chats(CallingEngine(said=said)) as chat:
        session, first = await chat.ask("good")
        await chat.client.done(await chat.next_response(first))
        outputs = (await chat.messages(session))[1].tool_outputs
        assert outputs is not None
        assert sorted(item.get("code", "") for item in outputs) == ["", "tool_result_too_large"]


async def test_the_client_gives_the_rest_and_the_server_adds_its_own(chats: Chats) -> None:
    said = calling(("weather", {"city": "Brno"}), ("good__echo", {"text": "noon"}))
    async with chats(CallingEngine(said=said)) as chat:
        settings = offering("good")
        settings["tools"] += TOOLS
        session, first = await chat.ask(settings=settings)
        done = (await chat.client.done(first)).done
        assert done is not None
        assert done["response"]["status_details"]["reason"] == "tool_calls"
        await chat.client.next("message.updated")
        theirs, own = (f"call_{first.removeprefix('resp_')}_{number}" for number in range(2))
        for given in ([own], [theirs, own]):
            outputs = [{"type": OUTPUT, "call_id": call_id, "output": "x"} for call_id in given]
            refused = await chat.client.reply(
                "response.create", session_id=session, idempotency_key="k", input=outputs
            )
            assert refused["error"]["code"] == "call_not_found"
        rain: list[Any] = [{"type": OUTPUT, "call_id": theirs, "output": "rain"}]
        second = await chat.client.ask(session, rain, settings=settings)
        assert (await chat.client.done(second)).final == ANSWER
        given_back = (await chat.messages(session))[2].outputs
        assert given_back == [
            {"call_id": theirs, "output": "rain"},
            {"call_id": own, "output": "noon"},
        ]


async def test_a_queue_is_not_paused_and_goes_on_after_the_next_round(chats: Chats) -> None:
    async with chats(CallingEngine(said=calling(("good__count", {"name": "q"})))) as chat:
        began, go = chat.pipes("q-began", "q-go")
        session, first = await chat.ask("good")
        await heard(began)
        await chat.client.reply(
            "queue.add", session_id=session, idempotency_key="later", input="and then?"
        )
        await say(go, "on")
        await chat.client.done(await chat.next_response(first))

        def is_asked() -> bool:
            frames = chat.client.frames
            return any(f.get("idempotency_key") == "later" and "response" in f for f in frames)

        await chat.client.wait(is_asked, "the answer to what waited")
        updates = [f["queue"] for f in chat.client.frames if f["type"] == "queue.updated"]
        assert not any(queue["paused"] for queue in updates)
        order = [
            f["idempotency_key"] for f in chat.client.frames if f["type"] == "response.created"
        ]
        assert order[1:] == ["calls_" + first.removeprefix("resp_"), "later"]


async def test_a_question_that_waits_has_the_outputs_in_its_prompt(chats: Chats) -> None:
    engine = CallingEngine(said=calling(("good__count", {"name": "w"})))
    async with chats(engine) as chat:
        began, go = chat.pipes("w-began", "w-go")
        session, first = await chat.ask("good")
        await heard(began)
        waits = await chat.client.ask(
            session, "or else?", on_busy="queue", settings={"tool_choice": "none"}
        )
        await say(go, "on")
        await chat.client.done(waits)
        told = [(m["role"], m["content"].strip()) for m in engine.prompts[-1][0]]
        assert told == [
            ("user", "what?"),
            ("assistant", "I look."),
            ("tool", "call 1: on"),
            ("user", "or else?"),
        ]
        keys = [f["idempotency_key"] for f in chat.client.frames if f["type"] == "response.created"]
        assert "calls_" + first.removeprefix("resp_") not in keys


async def test_each_call_is_in_metrics_and_in_the_audit_log_without_its_words(
    chats: Chats,
) -> None:
    engine = CallingEngine(said=calling(("good__echo", {"text": "secret"}), ("good__fail", {})))
    async with chats(engine) as chat:
        session, first = await chat.ask("good")
        await chat.client.done(await chat.next_response(first))
        shown = chat.workers[0].metrics.render().decode()
        assert 'parley_tool_calls_total{outcome="completed",server="good"} 1.0' in shown
        assert 'parley_tool_calls_total{outcome="tool_reported_error",server="good"} 1.0' in shown
        assert 'parley_tool_calls_running{server="good"} 0.0' in shown
        assert 'parley_tool_call_seconds_count{server="good"} 2.0' in shown
        page = await chat.workers[1].services.auditor.log.page()
        entries = [entry for entry in page.entries if entry.target == session]
        assert {entry.action for entry in entries} == {"tool.call"}
        assert all("secret" not in entry.reason for entry in entries)
        words = sorted(entry.reason.split()[:4] for entry in entries)
        assert words == [
            [first, "good", "good__echo", "completed"],
            [first, "good", "good__fail", "tool_reported_error"],
        ]


async def test_what_had_to_be_called_has_been_and_the_next_round_is_free(chats: Chats) -> None:
    engine = CallingEngine(said=calling(("good__echo", {"text": "once"})))
    async with chats(engine) as chat:
        settings = offering("good") | {"tool_choice": "required"}
        _, first = await chat.ask("good", settings=settings)
        second = await chat.next_response(first)
        assert (await chat.client.done(second)).final == ANSWER
        created = [f["response"] for f in chat.client.frames if f["type"] == "response.created"]
        assert [one["settings"]["tool_choice"] for one in created] == ["required", "auto"]


async def test_each_call_is_a_span_of_its_answer_and_the_rounds_are_one_trace(
    chats: Chats,
) -> None:
    engine = CallingEngine(said=calling(("good__echo", {"text": "secret"}), ("good__fail", {})))
    with Collector() as collector:
        tracing = open_tracing(collector.url)
        async with chats(engine, tracing=tracing) as chat:
            _, first = await chat.ask("good")
            second = await chat.next_response(first)
            await chat.client.done(second)
        tracing.close()
    answers = {s.attributes["gen_ai.response.id"]: s for s in collector.spans if "chat" in s.name}
    assert answers[second].parent_id == answers[first].span_id
    calls = [span for span in collector.spans if span.name == "execute_tool"]
    assert {span.parent_id for span in calls} == {answers[first].span_id}
    assert {span.attributes["parley.tool.outcome"] for span in calls} == {
        "completed",
        "tool_reported_error",
    }
    assert all(span.attributes["parley.tool.server"] == "good" for span in calls)
    assert not any(b"secret" in body for body in collector.bodies)
