"""Input that is odd and yet good: taken as it is, within its bounds, and shown to nobody else."""

import asyncio
from pathlib import Path

import pytest

from server.protocol.client_frames import MAX_INPUT_BYTES
from tests.end_to_end.frames.raw import TEXT, RawSocket, frame
from tests.end_to_end.oracle import bad_input
from tests.end_to_end.oracle.bad_input import MAX_MESSAGE_BYTES
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.tiny_model import oracle_word

pytestmark = pytest.mark.usefixtures("bystander")  # somebody else's answer streams meanwhile


@pytest.mark.row("B27")
async def test_a_tiny_temperature_is_accepted_and_the_effective_one_reported(
    server: Server,
) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 1e-308, "max_output_tokens": 2}
        await client.ask(session, oracle_word(5), settings=settings)
        created = next(f for f in client.frames if f["type"] == "response.created")
        assert created["response"]["settings"]["temperature"] == 0.01


@pytest.mark.row("B26")
async def test_an_input_of_128_kib_is_accepted(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        text = "x" * bad_input.MAX_INPUT_BYTES
        response = await client.ask(session, text, settings={"max_output_tokens": 2})
        await client.done(response)


@pytest.mark.row("B22")
async def test_text_is_stored_and_sent_back_exactly(server: Server) -> None:
    texts = ["a\0b", "\u202eabc\u2066", "a\u200bb\u2060", "\U000e0041\U000e007f", "e\u0301 \u00e9"]
    async with Client(server) as client:
        session = await client.new_session()
        for text in texts:
            response = await client.ask(session, text, settings={"max_output_tokens": 2})
            await client.done(response)
    messages = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    assert [m["content"][0]["text"] for m in messages if m["role"] == "user"] == texts


@pytest.mark.row("B21")
async def test_an_unknown_top_level_field_is_ignored(server: Server) -> None:
    async with Client(server) as client:
        extra = {"__proto__": {"t": 9}, "__class__": "x", "user_id": "admin", "token": "x"}
        many = {f"k{number}": number for number in range(10_000)}
        await client.send("ping", t=3, **extra, **many)
        assert (await client.next("pong"))["t"] == 3


@pytest.mark.row("B20")
async def test_an_event_id_comes_back_with_the_error_and_only_if_it_is_short(
    server: Server,
) -> None:
    async with Client(server) as client:
        await client.send("nonsense", event_id="e1")
        assert (await client.next("error"))["error"]["event_id"] == "e1"
        await client.send("nonsense", event_id="x" * 65)
        assert "event_id" not in (await client.next("error"))["error"]


@pytest.mark.row("B9", "B13")
async def test_unusual_but_valid_framing_is_read(server: Server) -> None:
    for _, data in bad_input.HARMLESS_BYTES:
        async with RawSocket(server) as socket:
            await socket.upgrade()
            await socket.send(data)
            assert (await socket.next("pong", "error"))["t"] == 5


@pytest.mark.row("P27")
async def test_no_words_of_a_user_reach_the_log(server: Server) -> None:
    canary = "canary-7f3a9c"
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, canary, settings={"max_output_tokens": 2})
        await client.done(response)
        await client.send("session.update", session_id=session, title=canary)
        await client.next("session.updated")
        await client.send(canary, event_id=canary)
        await client.next("error")
        await client.send("response.create", session_id=session, input=canary)
        await client.next("error")
    async with RawSocket(server) as socket:
        await socket.upgrade()
        await socket.send(frame(TEXT, canary.encode() + b"\xff"))
        await socket.closed()
    log = Path(f"{server.data_dir}.log")
    assert canary not in await asyncio.to_thread(log.read_text)
    _, metrics = await asyncio.to_thread(server.get, "/metrics")
    assert canary not in metrics.decode()


async def test_the_size_limit_is_that_of_connection_ready(server: Server) -> None:
    async with Client(server) as client:
        ready = await client.next("connection.ready")
        assert ready["limits"]["max_message_bytes"] == MAX_MESSAGE_BYTES


@pytest.mark.parametrize("character", ["€", "é", "𝄞", '"'])
async def test_an_input_of_the_largest_size_is_no_frame_too_large_however_it_is_escaped(
    server: Server, character: str
) -> None:
    """`json.dumps` writes what is not ASCII in six bytes or twelve."""
    text = character * (MAX_INPUT_BYTES // len(character.encode()))
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"max_output_tokens": 1}
        asked = {"session_id": session, "idempotency_key": "long", "input": text}
        await client.done(await client.ask(session, text, settings=settings))
        longer = await client.reply("response.create", **{**asked, "input": text + character})
        assert longer["error"]["code"] == "message_too_large"
