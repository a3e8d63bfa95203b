"""The Responses over the websocket of OpenAI's Python client."""

from asking import MODEL, THREE, TOKEN, URL, client, later
from openai import OpenAI

ASK = {"model": MODEL, "input": "t00001 ", "max_output_tokens": 3, "temperature": 0}
LONG = 4000  # tokens: time enough to say something


def _until(events, kind, lane=None):
    """The events of that lane up to one of that type."""
    found = []
    for event in events:
        if getattr(event, "stream_id", None) == lane:
            found.append(event)
            if event.type == kind:
                return found
    raise AssertionError(f"no {kind} but {[event.type for event in found]}")


def _told(events):
    return "".join(e.delta for e in events if e.type == "response.output_text.delta")


def an_answer_over_a_websocket():
    with client.responses.connect() as connection:
        connection.response.create(**ASK)
        events = _until(connection, "response.incomplete")
    assert _told(events) == THREE
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert client.responses.retrieve(events[-1].response.id) == events[-1].response


def two_lanes_and_what_follows_in_one():
    with client.responses.connect() as connection:
        connection.response.create(**ASK, stream_id="a")
        first = _until(connection, "response.incomplete", "a")[-1].response
        more = {**ASK, "input": "t00007 ", "previous_response_id": first.id}
        connection.response.create(**more, stream_id="b")
        events = _until(connection, "response.incomplete", "b")
    assert _told(events) == "t00008 t00009 t00010 "
    assert events[-1].response.previous_response_id == first.id


def what_is_refused_leaves_the_connection_open():
    with client.responses.connect() as connection:
        connection.response.create(**{**ASK, "model": "nobody"}, stream_id="a")
        (error,) = _until(connection, "error", "a")
        assert (error.status, error.error.code, error.error.param) == (
            404,
            "model_not_found",
            "model",
        )
        connection.response.create(**ASK, stream_id="a")
        assert _told(_until(connection, "response.incomplete", "a")) == THREE


def an_answer_is_steered():
    with client.responses.connect() as connection:
        connection.response.create(**{**ASK, "max_output_tokens": LONG}, stream_id="a")
        first = _until(connection, "response.created", "a")[-1].response.id
        connection.response.steer(input="t00020 ", previous_response_id=first)
        events = _until(connection, "response.incomplete", "a")
        assert events[-1].response.incomplete_details.reason == "steered"
        (accepted,) = [event for event in events if event.type == "response.steer.accepted"]
        assert accepted.steer.previous_response_id == first
        following = _until(connection, "response.created", "a")[-1].response
        assert following.previous_response_id == first
        connection.send({"type": "response.cancel", "response_id": following.id})
        ended = _until(connection, "response.incomplete", "a")
        assert ended[-1].response.status == "cancelled"
        assert _told(ended)[:7] in ("", "t00021 ")


def a_key_that_nobody_has():
    try:
        OpenAI(base_url=URL, api_key=TOKEN + "x").responses.connect().enter()
    except Exception as error:
        assert error.response.status_code == 401, error
    else:
        raise AssertionError("it was let in")


async def an_answer_that_is_awaited():
    async with later.responses.connect() as connection:
        await connection.response.create(**ASK, store=False)
        text = ""
        async for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.incomplete":
                break
    assert text == THREE
