"""A reply lost on the way: the script was applied, the connection broke, the call is sent again.

Every method must answer as if nothing had happened, and nothing may be stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from sessions.connection.embedded import EmbeddedRedis
from sessions.model.errors import RevisionConflict, RunGone, RunLost, SessionNotFound
from sessions.model.ids import new_response_id
from sessions.model.queue import NextRound
from sessions.model.replies import AppendReply
from sessions.store.copies import Draft
from sessions.store.kept.responses import KeptResponse
from sessions.store.messages import PART_MESSAGES
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat, assistant_message, user_message
from tests.sessions.helpers.queued import queued, texts_of
from tests.sessions.store.appends.test_append import an_append, outcomes

pytestmark = pytest.mark.row("R4")


class LossyProxy:
    """Stands before Redis; after `lose_next()` it drops a connection instead of its next reply."""

    def __init__(self, path: str, redis_path: str) -> None:
        self.url = f"unix://{path}"
        self.num_lost = 0
        self._path, self._redis_path = path, redis_path
        self._loses = False
        self._tasks: set[asyncio.Task[None]] = set()

    def lose_next(self) -> None:
        self._loses = True

    async def __aenter__(self) -> LossyProxy:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_unix_connection(self._redis_path)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upwards = asyncio.create_task(self._pass_on(reader, redis_writer))
        try:
            while data := await redis_reader.read(65536):
                if self._loses:
                    self._loses = False
                    self.num_lost += 1
                    break
                writer.write(data)
                await writer.drain()
        finally:
            upwards.cancel()
            for end in (writer, redis_writer):
                end.close()
            await asyncio.gather(upwards, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:  # a client that goes away with unread replies resets the connection
            writer.close()


@pytest.fixture
async def proxy(redis_server: EmbeddedRedis, tmp_path: Path) -> AsyncIterator[LossyProxy]:
    async with LossyProxy(str(tmp_path / "p"), redis_server.socket_path) as proxy:
        yield proxy


@pytest.fixture
async def lossy(proxy: LossyProxy, prefix: str) -> AsyncIterator[SessionStore]:
    """A store whose next reply can be lost."""
    store = await SessionStore.open(proxy.url, prefix=prefix)
    yield store
    await store.close()


@pytest.fixture
async def lossy_chat(lossy: SessionStore) -> Chat:
    return await Chat.create(lossy)


async def test_create_session(lossy: SessionStore, proxy: LossyProxy) -> None:
    proxy.lose_next()
    created = await lossy.sessions.create("alice", idempotency_key="k")
    assert proxy.num_lost == 1
    assert not created.replayed and created.session.offset == 1


async def test_update_session(lossy_chat: Chat, proxy: LossyProxy) -> None:
    store, session_id = lossy_chat.store, lossy_chat.session_id
    proxy.lose_next()
    session = await store.sessions.update("alice", session_id, title="new", if_revision=1)
    assert proxy.num_lost == 1
    assert (session.title, session.revision, session.offset) == ("new", 2, 2)
    with pytest.raises(RevisionConflict):
        await store.sessions.update("alice", session_id, title="newer", if_revision=1)


async def test_add_messages_and_replace_one(lossy_chat: Chat, proxy: LossyProxy) -> None:
    store, session_id = lossy_chat.store, lossy_chat.session_id
    message = user_message("secret")
    proxy.lose_next()
    await store.messages.add("alice", session_id, [message], head=None)
    _, version = await store.messages.with_version("alice", session_id, message.id)
    proxy.lose_next()
    left = replace(message, text="")
    await store.messages.replace("alice", session_id, left, version)
    assert proxy.num_lost == 2
    (stored,) = (await store.messages.path("alice", session_id)).messages
    assert stored.wire() == left.wire()
    session = await store.sessions.get("alice", session_id)
    assert (session.message_count, session.offset) == (1, 3)


async def test_update_session_after_the_updates_of_others(
    lossy_chat: Chat, chat: Chat, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat that comes late neither undoes what others have changed nor is logged again."""
    other, session_id = chat.store, lossy_chat.session_id
    connected = lossy_chat.store.client._link._connected

    async def slowly() -> AbstractConnection:
        if proxy.num_lost:
            await other.sessions.update("alice", session_id, title="theirs")
            monkeypatch.undo()
        return await connected()

    monkeypatch.setattr(lossy_chat.store.client._link, "_connected", slowly)
    proxy.lose_next()
    session = await lossy_chat.store.sessions.update("alice", session_id, title="mine")
    assert proxy.num_lost == 1
    assert (session.title, session.revision, session.offset) == ("theirs", 3, 3)


async def test_delete_session(lossy_chat: Chat, proxy: LossyProxy) -> None:
    proxy.lose_next()
    deleted = await lossy_chat.store.sessions.delete("alice", lossy_chat.session_id)
    assert proxy.num_lost == 1
    assert deleted.offset == 2
    assert (await lossy_chat.store.lists.page("alice")).sessions == ()
    with pytest.raises(SessionNotFound):
        await lossy_chat.store.sessions.delete("alice", lossy_chat.session_id)


async def test_begin_response(lossy_chat: Chat, proxy: LossyProxy) -> None:
    proxy.lose_next()
    begun = await lossy_chat.begin()
    assert proxy.num_lost == 1
    assert (begun.replayed, begun.fence, begun.offset) == (False, 1, 3)
    session = await lossy_chat.store.sessions.get("alice", lossy_chat.session_id)
    assert (session.message_count, session.offset) == (2, 3)
    assert len(await lossy_chat.store.runs.events(begun.response_id)) == 1


async def test_a_queue_is_written_once(lossy_chat: Chat, proxy: LossyProxy) -> None:
    queues, session_id = lossy_chat.store.queues, lossy_chat.session_id
    await queues.add("alice", session_id, queued("a"))
    proxy.lose_next()
    written = await queues.change("alice", session_id, lambda queue: queue.added(queued("b")))
    assert texts_of(written.queue) == ["a", "b"]
    proxy.lose_next()
    added = await queues.add("alice", session_id, queued("c"))
    assert added.status == "waiting"
    proxy.lose_next()
    await queues.remove("alice", session_id, "a")
    assert proxy.num_lost == 3
    assert texts_of(await queues.get("alice", session_id)) == ["b", "c"]


async def test_a_word_on_a_call_and_a_round_are_kept_once(
    lossy_chat: Chat, proxy: LossyProxy
) -> None:
    store, session_id = lossy_chat.store, lossy_chat.session_id
    rid = (await lossy_chat.begin()).response_id
    proxy.lose_next()
    kept = await store.runs.decide_call("alice", rid, "call_1", "allow", granted_tool="tool")
    assert kept.decision == "allow"
    following = NextRound(response_id=rid, message_id=lossy_chat.messages[rid].id, settings={})
    proxy.lose_next()
    assert (await lossy_chat.finish(rid, 2, next_round=following)).has_queue
    known = (await store.queues.get("alice", session_id)).next_round
    assert known is not None
    proxy.lose_next()
    begun = await lossy_chat.begin(next_round=known)
    assert not begun.replayed
    proxy.lose_next()
    await store.queues.drop_round(session_id, known)
    assert proxy.num_lost == 4
    assert (await store.queues.get("alice", session_id)).next_round is None


async def test_append_and_finish(lossy_chat: Chat, proxy: LossyProxy) -> None:
    rid = (await lossy_chat.begin()).response_id
    queued = (await lossy_chat.begin(on_busy="queue")).response_id
    proxy.lose_next()
    assert (await lossy_chat.append(rid, 2, "a", "b")).repeated
    proxy.lose_next()
    finished = await lossy_chat.finish(rid, 4)
    assert proxy.num_lost == 2
    assert finished.repeated and finished.next_response_id == queued
    assert [number for number, _ in await lossy_chat.store.runs.events(rid)] == [1, 2, 3, 4]
    assert await lossy_chat.store.runs.token_ids(rid) == [0, 1]
    session = await lossy_chat.store.sessions.get("alice", lossy_chat.session_id)
    assert (session.output_tokens, session.active_response_id) == (5, queued)


async def test_appends_of_many_runs(lossy: SessionStore, proxy: LossyProxy) -> None:
    rids = [(await (await Chat.create(lossy)).begin()).response_id for _ in range(3)]
    await lossy.runs.reap(rids[0], new_owner="w2", exited_owner="w1")
    proxy.lose_next()
    lost, *others = await outcomes(lossy, [an_append(lossy, rid, 2, "x") for rid in rids])
    assert proxy.num_lost == 1
    assert isinstance(lost, RunLost)
    assert [reply.repeated for reply in others if isinstance(reply, AppendReply)] == [True, True]
    assert [len(await lossy.runs.events(rid)) for rid in rids] == [1, 2, 2]


async def test_what_is_kept_of_a_response_is_removed_once(
    lossy_chat: Chat, proxy: LossyProxy
) -> None:
    rid = new_response_id(lossy_chat.session_id)
    answer = assistant_message(rid)
    kept = KeptResponse(rid, answer.id, (), 1, {})
    await lossy_chat.begin(response_id=rid, assistant_message=answer, kept=kept.encode())
    await lossy_chat.finish(rid, 2)
    proxy.lose_next()
    assert await lossy_chat.store.kept_responses.remove("alice", rid, [answer.id]) == 1
    assert proxy.num_lost == 1


async def test_reap(lossy_chat: Chat, proxy: LossyProxy) -> None:
    rid = (await lossy_chat.begin()).response_id
    proxy.lose_next()
    reaped = await lossy_chat.store.runs.reap(rid, new_owner="w2", exited_owner="w1")
    assert proxy.num_lost == 1
    assert (reaped.fence, reaped.old_owner) == (2, "w1")
    with pytest.raises(RunLost):
        await lossy_chat.append(rid, 2, "x")


async def test_request_cancel_and_cancel_early(lossy_chat: Chat, proxy: LossyProxy) -> None:
    rid = (await lossy_chat.begin(idempotency_key="k")).response_id
    proxy.lose_next()
    assert (await lossy_chat.store.runs.request_cancel("alice", rid, seen=1)).owner == "w1"
    proxy.lose_next()
    known = await lossy_chat.store.responses.cancel_early("alice", lossy_chat.session_id, "k")
    assert (known, proxy.num_lost) == (rid, 2)


async def test_data_lost_by_redis_is_not_created_again_half(chat: Chat) -> None:
    rid = (await chat.begin()).response_id
    await chat.store.client.call("DEL", chat.store.keys.session(chat.session_id, "m"))
    before = await chat.keys()
    with pytest.raises(RunGone):
        await chat.finish(rid, 2)
    assert await chat.keys() == before


async def test_import_and_fork(
    lossy: SessionStore, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [user_message(f"{number}", None) for number in range(PART_MESSAGES + 1)]
    messages = [
        replace(message, parent_id=messages[place - 1].id if place else None)
        for place, message in enumerate(messages)
    ]
    script = lossy.client.script

    async def lose_each(name: str, keys: list[str], **arguments: Any) -> Any:
        proxy.lose_next()
        return await script(name, keys, **arguments)

    monkeypatch.setattr(lossy.client, "script", lose_each)
    head = messages[-1].id
    made = await lossy.copies.import_draft("alice", Draft("", "", {}, messages, head))
    forked = await lossy.copies.fork("alice", made.session.id, head)
    assert proxy.num_lost >= 12  # reserve twice, begin, two parts to write; two to read
    for copy in (made, forked):
        assert not copy.replayed and copy.session.offset == 1
        read = lossy.messages.each("alice", copy.session.id, whole_tree=True)
        assert [m.text async for m in read] == [m.text for m in messages]
