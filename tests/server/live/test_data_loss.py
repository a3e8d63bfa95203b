"""What viewers hear when Redis has lost sessions, or the last writes to them."""

import asyncio

import pytest

from server.live.hub import Hub
from server.live.subscription import Subscription
from server.protocol.server_frames import SessionDeleted
from tests.helpers.patience import PATIENCE
from tests.server.helpers.watching import Viewer
from tests.sessions.helpers.chat import Chat


class Rejoining(Subscription):
    """A subscription that says when its state is sent again."""

    def __init__(self, viewer: Viewer, session_id: str) -> None:
        super().__init__(viewer, session_id)
        self.is_rejoined = asyncio.Event()
        self.rejoin = self._send_again

    async def _send_again(self) -> None:
        self.is_rejoined.set()
        self.end_join(0)


async def join(hub: Hub, chat: Chat, viewer: Viewer) -> Rejoining:
    subscription = Rejoining(viewer, chat.session_id)
    await hub.join(subscription)
    subscription.end_join((await chat.store.sessions.get(None, chat.session_id)).offset)
    return subscription


async def lose(chat: Chat, *suffixes: str, **fields: int) -> None:
    """What a Redis without its last writes has instead."""
    for suffix in suffixes:
        await chat.store.client.call("DEL", chat.store.keys.session(chat.session_id, suffix))
    for name, value in fields.items():
        key = chat.store.keys.session(chat.session_id, "m")
        await chat.store.client.call("HSET", key, name, value)


async def test_a_session_that_went_back_in_time_gets_a_new_epoch_and_is_sent_again(
    hub: Hub, chat: Chat
) -> None:
    await chat.store.sessions.update("alice", chat.session_id, title="lost")
    subscription = await join(hub, chat, Viewer())
    before = await chat.store.sessions.get(None, chat.session_id)
    await lose(chat, offset=1)
    await hub.data_loss.look_at(chat.session_id)
    await asyncio.wait_for(subscription.is_rejoined.wait(), PATIENCE)
    after = await chat.store.sessions.get(None, chat.session_id)
    assert after.epoch != before.epoch
    assert hub.rooms[chat.session_id].epoch == after.epoch


async def test_a_session_that_lost_nothing_is_left_alone(hub: Hub, chat: Chat) -> None:
    subscription = await join(hub, chat, Viewer())
    epoch = hub.rooms[chat.session_id].epoch
    await hub.data_loss.look_at(chat.session_id)
    assert (await chat.store.sessions.get(None, chat.session_id)).epoch == epoch
    assert not subscription.joining


async def test_a_log_that_no_longer_reaches_back_is_made_up_for_by_a_snapshot(
    hub: Hub, chat: Chat
) -> None:
    subscription = await join(hub, chat, Viewer())
    epoch = hub.rooms[chat.session_id].epoch
    await chat.store.sessions.update("alice", chat.session_id, title="missed")
    await lose(chat, "log")
    hub.catch_up.sync_all()
    await asyncio.wait_for(subscription.is_rejoined.wait(), PATIENCE)
    assert hub.rooms[chat.session_id].epoch == epoch


async def test_an_epoch_is_renewed_once_however_many_notice(chat: Chat) -> None:
    store = chat.store
    epoch = (await store.sessions.get(None, chat.session_id)).epoch
    await store.sessions.renew_epoch(chat.session_id, epoch)
    renewed = (await store.sessions.get(None, chat.session_id)).epoch
    await store.sessions.renew_epoch(chat.session_id, epoch)
    assert (await store.sessions.get(None, chat.session_id)).epoch == renewed != epoch


@pytest.mark.parametrize(("suffixes", "by"), [(("m",), "store_lost"), ((), "user")])
async def test_a_session_that_is_gone_is_announced_with_what_became_of_it(
    hub: Hub, chat: Chat, suffixes: tuple[str, ...], by: str
) -> None:
    viewer = Viewer()
    await join(hub, chat, viewer)
    if suffixes:
        await lose(chat, *suffixes)
    else:
        await chat.store.sessions.delete("alice", chat.session_id)
    await hub.data_loss.look_at(chat.session_id)
    (frame,) = [f for f in await viewer.sent() if f["type"] == "session.deleted"]
    assert (frame["session_id"], frame["by"], frame["offset"]) == (chat.session_id, by, 2)


async def test_a_loss_that_two_notice_is_announced_once(hub: Hub, chat: Chat) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    lost = hub.rooms[chat.session_id].epoch
    await chat.store.sessions.renew_epoch(chat.session_id, lost)
    await hub.data_loss.look_at(chat.session_id)
    await asyncio.wait_for(subscription.is_rejoined.wait(), PATIENCE)
    subscription.is_rejoined.clear()
    await hub.data_loss.look_at(chat.session_id, lacking=lost)
    await asyncio.sleep(0)
    assert not subscription.is_rejoined.is_set()


async def test_of_two_states_the_second_waits_for_the_first_and_nothing_comes_between(
    hub: Hub, chat: Chat
) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    may_go_on, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def send_state() -> None:
        begun.release()
        await may_go_on.wait()
        subscription.outbox.put({"type": "state"})
        subscription.end_join(0)

    subscription.rejoin = send_state
    for _ in range(2):
        await hub.data_loss.look_at(chat.session_id, lacking=hub.rooms[chat.session_id].epoch)
    await begun.acquire()
    await asyncio.sleep(0)
    assert begun.locked()  # the second has not begun
    subscription.put_session_event(9, {"type": "session.updated"})
    may_go_on.set()
    await begun.acquire()
    async with subscription.sending:
        sent = [f["type"] for f in await viewer.sent() if f["type"] != "viewer.changed"]
        assert sent == ["state", "state", "session.updated"]


@pytest.mark.parametrize("is_heard", [True, False])
async def test_a_session_that_is_deleted_while_its_state_is_sent_again_is_announced_once(
    hub: Hub, chat: Chat, is_heard: bool
) -> None:
    viewer = Viewer()
    subscription = await join(hub, chat, viewer)
    is_sent = asyncio.Event()

    async def send_state() -> None:
        deleted = await chat.store.sessions.delete("alice", chat.session_id)
        if is_heard:
            hub.publish_session(
                SessionDeleted(session_id=chat.session_id, offset=deleted.offset, by="user")
            )
        is_sent.set()
        await chat.store.sessions.get(None, chat.session_id)

    subscription.rejoin = send_state
    await hub.data_loss.look_at(chat.session_id, lacking=hub.rooms[chat.session_id].epoch)
    await asyncio.wait_for(is_sent.wait(), PATIENCE)
    async with subscription.sending:
        sent = [f for f in await viewer.sent() if f["type"] == "session.deleted"]
    assert [(f["by"], f["offset"]) for f in sent] == [("user", 2)]
