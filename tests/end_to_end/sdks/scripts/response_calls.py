"""Calls of the Responses by OpenAI's Python client."""

import openai
from asking import FOREVER, MODEL, THREE, Ends, client, given_up, later

ASK = {"model": MODEL, "input": "t00001 ", "max_output_tokens": 3, "temperature": 0}


def _ask(**more):
    return client.responses.create(**(ASK | more))


def _kinds_of(events):
    return [event.type for event in events]


def _refused(kind, param, **more):
    try:
        _ask(**more)
    except kind as error:
        assert error.param == param, error.body
    else:
        raise AssertionError("it was not refused")


def an_answer():
    answer = _ask(metadata={"a": "b"}, instructions="Count.")
    assert answer.output_text == THREE and answer.object == "response"
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.metadata == {"a": "b"} and answer.instructions == "Count."
    assert answer.usage.output_tokens == 3
    assert answer.usage.input_tokens_details.cached_tokens >= 0


def an_answer_is_read_again():
    answer = _ask()
    assert client.responses.retrieve(answer.id) == answer


def a_stream():
    events = list(_ask(stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = _kinds_of(events)
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
    events = list(_ask(stream=True))
    found = client.responses.retrieve(events[0].response.id, stream=True)
    assert list(found) == events
    rest = client.responses.retrieve(events[0].response.id, stream=True, starting_after=4)
    assert list(rest) == events[5:]


def a_stream_by_its_helper():
    with client.responses.stream(**ASK) as events:
        kinds = _kinds_of(events)
    assert "response.output_text.delta" in kinds


def a_stream_goes_on_by_its_helper():
    answer = _ask()
    with client.responses.stream(response_id=answer.id, starting_after=3) as events:
        numbers = [event.sequence_number for event in events]
    assert numbers[0] == 4 and numbers == list(range(4, 4 + len(numbers)))


async def a_stream_later():
    events = await later.responses.create(**ASK, stream=True)
    deltas = [e.delta async for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == THREE


def a_stream_that_is_closed_goes_on():
    events = _ask(stream=True, max_output_tokens=60)
    answer = next(iter(events)).response
    events.close()
    found = list(client.responses.retrieve(answer.id, stream=True))
    assert found[-1].response.usage.output_tokens == 60


def an_answer_in_the_background():
    answer = _ask(background=True)
    assert answer.status in ("queued", "in_progress") and answer.background
    events = list(client.responses.retrieve(answer.id, stream=True))
    assert events[-1].response.output_text == THREE


def a_background_answer_is_stopped():
    answer = _ask(background=True, max_output_tokens=8000)
    stopped = client.responses.cancel(answer.id)
    assert stopped.status == "cancelled" and stopped.usage.output_tokens < 8000
    assert client.responses.cancel(answer.id) == stopped


def an_answer_is_stopped_while_it_is_streamed():
    events = _ask(stream=True, max_output_tokens=8000)
    first = next(iter(events))
    assert client.responses.cancel(first.response.id).status == "cancelled"
    assert [event for event in events][-1].response.status == "cancelled"


def an_answer_follows_another():
    first = _ask(instructions="Count.")
    second = _ask(input="t00005 ", previous_response_id=first.id)
    assert second.output_text == "t00006 t00007 t00008 " and second.instructions is None
    items = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert [item.role for item in items] == ["user", "assistant", "user"]


def items_are_a_conversation():
    answer = _ask(
        input=[
            {"role": "developer", "content": "Count."},
            {"role": "user", "content": "t00007 "},
            {"role": "assistant", "content": "t00008 "},
            {"role": "user", "content": [{"type": "input_text", "text": "t00001 "}]},
        ]
    )
    assert answer.output_text == THREE


def nothing_is_kept():
    answer = _ask(store=False)
    assert answer.output_text == THREE
    try:
        client.responses.retrieve(answer.id)
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("it was kept")


def a_stream_of_which_nothing_is_kept():
    events = list(_ask(store=False, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == THREE


def a_response_is_removed():
    answer = _ask()
    client.responses.delete(answer.id)
    try:
        client.responses.retrieve(answer.id)
    except openai.NotFoundError as error:
        assert error.code == "response_not_found"
    else:
        raise AssertionError("it is still there")


def logprobs():
    answer = _ask(include=["message.output_text.logprobs"], top_logprobs=2)
    found = answer.output[0].content[0].logprobs
    assert "".join(each.token for each in found) == THREE and len(found[0].top_logprobs) == 2


def tokens_are_counted():
    counted = client.responses.input_tokens.count(model=MODEL, input="t00001 t00002 ")
    assert counted.input_tokens > 0


def a_key_asks_once():
    headers = {"Idempotency-Key": "the-same"}
    assert _ask(extra_headers=headers) == _ask(extra_headers=headers)


def words_about_who_asks_change_nothing():
    answer = _ask(
        user="u", safety_identifier="s", service_tier="auto", prompt_cache_key="k", max_tool_calls=1
    )
    assert answer.output_text == THREE and answer.user == "u"


def a_field_that_cannot_be_honoured():
    _refused(openai.BadRequestError, "tools[0].type", tools=[{"type": "web_search"}])
    _refused(openai.BadRequestError, "prompt", prompt={"id": "pmpt_1"})
    _refused(openai.BadRequestError, "text.verbosity", text={"verbosity": "high"})
    _refused(openai.BadRequestError, "nonsense", extra_body={"nonsense": 1})


def a_model_that_nobody_serves():
    _refused(openai.NotFoundError, "model", model="nobody")


def a_response_that_nobody_made():
    _refused(openai.NotFoundError, "previous_response_id", previous_response_id="resp_nobody")


async def an_answer_later():
    assert (await later.responses.create(**ASK)).output_text == THREE


async def an_answer_in_the_background_later():
    answer = await later.responses.create(**ASK, background=True)
    while answer.status in ("queued", "in_progress"):
        answer = await later.responses.retrieve(answer.id)
    assert answer.output_text == THREE


async def a_background_answer_is_stopped_later():
    answer = await later.responses.create(**ASK | {"max_output_tokens": FOREVER}, background=True)
    stopped = await later.responses.cancel(answer.id)
    assert stopped.status == "cancelled" and stopped.usage.output_tokens < FOREVER


def a_stream_that_is_not_kept_is_closed():
    with Ends():
        events = _ask(store=False, stream=True, max_output_tokens=FOREVER)
        next(iter(events))
        events.close()


async def an_answer_that_is_not_kept_is_given_up():
    with Ends():
        await given_up(later.responses.create(**ASK | {"max_output_tokens": FOREVER}, store=False))
