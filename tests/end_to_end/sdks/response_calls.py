"""Calls of the Responses by OpenAI's Python client. Runs as `calls.py` does, which see."""

import asyncio
import inspect
import json
import traceback

import openai
from calls import MODEL, THREE, client, later

ASK = {"model": MODEL, "input": "t00001 ", "max_output_tokens": 3, "temperature": 0}


def ask(**more):
    return client.responses.create(**(ASK | more))


def kinds_of(events):
    return [event.type for event in events]


def refused(kind, param, **more):
    try:
        ask(**more)
    except kind as error:
        assert error.param == param, error.body
    else:
        raise AssertionError("it was not refused")


def an_answer():
    answer = ask(metadata={"a": "b"}, instructions="Count.")
    assert answer.output_text == THREE and answer.object == "response"
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.metadata == {"a": "b"} and answer.instructions == "Count."
    assert answer.usage.output_tokens == 3
    assert answer.usage.input_tokens_details.cached_tokens >= 0


def an_answer_is_read_again():
    answer = ask()
    assert client.responses.retrieve(answer.id) == answer


def a_stream():
    events = list(ask(stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = kinds_of(events)
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.incomplete"
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == THREE


def a_stream_is_read_again_from_any_event():
    events = list(ask(stream=True))
    found = client.responses.retrieve(events[0].response.id, stream=True)
    assert list(found) == events
    rest = client.responses.retrieve(events[0].response.id, stream=True, starting_after=4)
    assert list(rest) == events[5:]


def a_stream_by_its_helper():
    with client.responses.stream(**ASK) as events:
        kinds = kinds_of(events)
    assert "response.output_text.delta" in kinds


def a_stream_goes_on_by_its_helper():
    answer = ask()
    with client.responses.stream(response_id=answer.id, starting_after=3) as events:
        numbers = [event.sequence_number for event in events]
    assert numbers[0] == 4 and numbers == list(range(4, 4 + len(numbers)))


async def a_stream_later():
    events = await later.responses.create(**ASK, stream=True)
    deltas = [e.delta async for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == THREE


def a_stream_that_is_closed_goes_on():
    events = ask(stream=True, max_output_tokens=60)
    answer = next(iter(events)).response
    events.close()
    found = list(client.responses.retrieve(answer.id, stream=True))
    assert found[-1].response.usage.output_tokens == 60


def an_answer_in_the_background():
    answer = ask(background=True)
    assert answer.status in ("queued", "in_progress") and answer.background
    events = list(client.responses.retrieve(answer.id, stream=True))
    assert events[-1].response.output_text == THREE


def a_background_answer_is_stopped():
    answer = ask(background=True, max_output_tokens=8000)
    stopped = client.responses.cancel(answer.id)
    assert stopped.status == "cancelled" and stopped.usage.output_tokens < 8000
    assert client.responses.cancel(answer.id) == stopped


def an_answer_is_stopped_while_it_is_streamed():
    events = ask(stream=True, max_output_tokens=8000)
    first = next(iter(events))
    assert client.responses.cancel(first.response.id).status == "cancelled"
    assert [event for event in events][-1].response.status == "cancelled"


def an_answer_follows_another():
    first = ask(instructions="Count.")
    second = ask(input="t00005 ", previous_response_id=first.id)
    assert second.output_text == "t00006 t00007 t00008 " and second.instructions is None
    items = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert [item.role for item in items] == ["user", "assistant", "user"]


def items_are_a_conversation():
    answer = ask(
        input=[
            {"role": "developer", "content": "Count."},
            {"role": "user", "content": "t00007 "},
            {"role": "assistant", "content": "t00008 "},
            {"role": "user", "content": [{"type": "input_text", "text": "t00001 "}]},
        ]
    )
    assert answer.output_text == THREE


def nothing_is_kept():
    answer = ask(store=False)
    assert answer.output_text == THREE
    try:
        client.responses.retrieve(answer.id)
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("it was kept")


def a_stream_of_which_nothing_is_kept():
    events = list(ask(store=False, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == THREE


def a_response_is_removed():
    answer = ask()
    client.responses.delete(answer.id)
    try:
        client.responses.retrieve(answer.id)
    except openai.NotFoundError as error:
        assert error.code == "response_not_found"
    else:
        raise AssertionError("it is still there")


def logprobs():
    answer = ask(include=["message.output_text.logprobs"], top_logprobs=2)
    found = answer.output[0].content[0].logprobs
    assert "".join(each.token for each in found) == THREE and len(found[0].top_logprobs) == 2


def tokens_are_counted():
    counted = client.responses.input_tokens.count(model=MODEL, input="t00001 t00002 ")
    assert counted.input_tokens > 0


def a_key_asks_once():
    headers = {"Idempotency-Key": "the same"}
    assert ask(extra_headers=headers) == ask(extra_headers=headers)


def words_about_who_asks_change_nothing():
    answer = ask(
        user="u", safety_identifier="s", service_tier="auto", prompt_cache_key="k", max_tool_calls=1
    )
    assert answer.output_text == THREE and answer.user == "u"


def a_field_that_cannot_be_honoured():
    refused(openai.BadRequestError, "tools[0].type", tools=[{"type": "web_search"}])
    refused(openai.BadRequestError, "prompt", prompt={"id": "pmpt_1"})
    refused(openai.BadRequestError, "text.verbosity", text={"verbosity": "high"})
    refused(openai.BadRequestError, "nonsense", extra_body={"nonsense": 1})


def a_model_that_nobody_serves():
    refused(openai.NotFoundError, "model", model="nobody")


def a_response_that_nobody_made():
    refused(openai.NotFoundError, "previous_response_id", previous_response_id="resp_nobody")


def main():
    own = globals().values()
    calls = [call for call in own if inspect.isfunction(call) and call.__module__ == __name__]
    helpers = {ask, kinds_of, refused, main}

    async def run_all():
        for call in calls:
            if call in helpers:
                continue
            problem = ""
            try:
                outcome = call()
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception:
                problem = traceback.format_exc()
            print(json.dumps({"name": call.__name__, "problem": problem}), flush=True)

    asyncio.run(run_all())


if __name__ == "__main__":
    main()
