"""B31: an id that is somebody else's is answered exactly like one that nobody has."""

import json
from collections.abc import Sequence

import pytest

from sessions.connection.client import RedisClient
from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.frames.raw import assert_discreet
from tests.end_to_end.oracle import bad_input
from tests.end_to_end.site.harness import Client, Frame, Server
from tests.end_to_end.site.recovery import still_works


async def answers(client: Client, frames: Sequence[Frame]) -> list[Frame]:
    """The error that each frame gets."""
    errors = []
    for fields in frames:
        await client.socket.send(json.dumps(fields))
        error = (await client.next("error"))["error"]
        errors.append(error)
    await still_works(client)
    return errors


@pytest.mark.row("B31")
async def test_a_session_id_that_is_not_ours_is_answered_like_an_unknown_one(
    server: Server, bystander: Client
) -> None:
    foreign = next(f["session"]["id"] for f in bystander.frames if f["type"] == "session.created")
    unknown = "ses_" + "A" * 22
    ids = [unknown, foreign, *bad_input.malformed_ids(foreign)]
    before = await keys_of(server)
    async with Client(server) as client:
        for kind, fields in bad_input.SESSION_FRAMES.items():
            frames = [{"type": kind, "session_id": sid, **fields} for sid in ids]
            errors = await answers(client, frames)
            codes = {error["code"] for error in errors}
            assert codes <= {"session_not_found", "not_subscribed"}, (kind, errors)
            assert all(error == errors[0] for error in errors[:2]), kind
            if kind != "session.unsubscribe":
                assert codes == {"session_not_found"}
                assert all(error == errors[0] for error in errors), kind
        assert_discreet(server, json.dumps(client.frames).encode())
    assert await keys_of(server) - before == set()


@pytest.mark.row("B31")
async def test_a_response_id_that_is_not_ours_is_answered_like_an_unknown_one(
    server: Server, bystander: Client
) -> None:
    (foreign,) = bystander.answers  # it is running
    unknown = "resp_" + "A" * 33
    ids = [unknown, foreign, foreign[:-1] + "A", *bad_input.malformed_ids(foreign)]
    before = await keys_of(server)
    async with Client(server) as client:
        for kind, fields in bad_input.RESPONSE_FRAMES.items():
            frames = [{"type": kind, "response_id": rid, **fields} for rid in ids]
            errors = await answers(client, frames)
            assert {error["code"] for error in errors} == {"response_not_found"}, (kind, errors)
            assert all(error == errors[0] for error in errors), (kind, errors)
        assert_discreet(server, json.dumps(client.frames).encode())
    assert await keys_of(server) - before == set()


@pytest.mark.row("B31")
async def test_a_message_id_that_is_not_ours_is_answered_like_an_unknown_one(
    server: Server, bystander: Client
) -> None:
    foreign = next(f["message"]["id"] for f in bystander.frames if f["type"] == "message.created")
    ids = ["msg_" + "A" * 22, foreign, *bad_input.malformed_ids(foreign)]
    async with Client(server) as client:
        session = await client.new_session()
        before = await keys_of(server)
        for kind, field in bad_input.MESSAGE_FRAMES.items():
            base = {"type": kind, "session_id": session}
            if kind == "response.create":
                base |= {"idempotency_key": "bad-parent", "input": "hello"}
            errors = await answers(client, [{**base, field: mid} for mid in ids])
            assert {error["code"] for error in errors} == {"message_not_found"}, (kind, errors)
            assert all(error == errors[0] for error in errors), (kind, errors)
    assert await keys_of(server) - before == set()


async def keys_of(server: Server) -> set[bytes]:
    """All keys in the server's Redis but token ids, which the bystander's answer gets in time."""
    client = RedisClient(EmbeddedRedis(server.data_dir / "redis").url)
    try:
        return {name for name in await client.call("KEYS", "*") if b":tok:" not in name}
    finally:
        await client.close()
