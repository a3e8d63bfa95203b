"""What must always hold: seeded random schedules of three workers, stops and takeovers.

A schedule is a list of moves drawn from a seed, so a failure can be played again.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from sessions.connection.feed import LiveFeed
from sessions.model.errors import CancelPending, RunEnded, RunLive, RunLost, SequenceGap
from sessions.model.events import LivePayload, LiveResponseEvents
from sessions.model.records import LIVE_STATUSES
from sessions.store.store import SessionStore
from tests.sessions.helpers.chat import Chat


@dataclass
class Worker:
    """A worker as simple as can be: what it believes about a run, and how it learns otherwise."""

    chat: Chat
    name: str
    fence: int  # 0: it has never owned the run
    last: int = 1
    stored: list[int] = field(default_factory=list)

    async def append(self, rid: str) -> None:
        await self.chat.append(rid, self.last + 1, "a", "b", fence=self.fence)
        self.stored += [self.last + 1, self.last + 2]
        self.last += 2

    async def finish(self, rid: str, status: str) -> bool:
        """Whether this call ended the run, and not an earlier one that was the same."""
        end = await self.chat.finish(rid, self.last + 1, fence=self.fence, status=status)
        if not end.repeated:
            self.stored.append(self.last + 1)
        return not end.repeated

    async def take_over(self, rid: str, exited: str) -> None:
        reaped = await self.chat.store.runs.reap(rid, new_owner=self.name, exited_owner=exited)
        self.fence, self.last = reaped.fence, reaped.sequence_number


async def play(chat: Chat, seed: int) -> None:
    """One run under one schedule."""
    dice = random.Random(seed)
    rid = (await chat.begin(owner="w0")).response_id
    workers = [Worker(chat, f"w{number}", fence=int(number == 0)) for number in range(3)]
    stopped = False
    num_reaps = 0
    for _ in range(30):
        worker = dice.choice(workers)
        move = dice.choices(["append", "finish", "stop", "take over"], [8, 1, 1, 2])[0]
        ended = (await chat.store.runs.get(None, rid)).status not in LIVE_STATUSES
        try:
            if move == "append":
                await worker.append(rid)
                assert not ended
            elif move == "finish":
                status = dice.choice(["completed", "cancelled", "failed"])
                is_first = await worker.finish(rid, status)
                assert is_first != ended and (status == "cancelled" or not stopped)
            elif move == "stop":
                await chat.store.runs.request_cancel("alice", rid)
                stopped = True
            else:
                owner = (await chat.store.runs.get(None, rid)).owner
                await worker.take_over(rid, dice.choice([owner, "nobody"]))
                num_reaps += 1
        except (RunEnded, RunLost, RunLive, CancelPending, SequenceGap):
            pass
    await check(chat, rid, workers, stopped, num_reaps)


async def check(chat: Chat, rid: str, workers: list[Worker], stopped: bool, num_reaps: int) -> None:
    run = await chat.store.runs.get(None, rid)
    events = await chat.store.runs.events(rid)
    numbers = [number for number, _ in events]
    assert numbers == list(range(1, run.sequence_number + 1))
    assert sorted([1] + [number for worker in workers for number in worker.stored]) == numbers
    assert run.fence == 1 + num_reaps
    assert len(await chat.store.runs.token_ids(rid)) == run.num_tokens
    index = await chat.store.runs.owned_by(run.owner)
    session = await chat.store.sessions.get(None, chat.session_id)
    assert (rid in index) == run.is_live == (session.active_response_id == rid)
    assert run.status == "cancelled" or not (stopped and not run.is_live)


async def test_numbers_fences_and_ends_hold_under_random_schedules(store: SessionStore) -> None:
    chats = [await Chat.create(store) for _ in range(40)]
    await asyncio.gather(*(play(chat, seed) for seed, chat in enumerate(chats)))


async def test_what_is_published_equals_the_log_under_concurrent_writers(
    store: SessionStore, other_store: SessionStore
) -> None:
    chat = await Chat.create(store)
    heard: list[LiveResponseEvents] = []

    def listen(payload: LivePayload) -> None:
        if isinstance(payload, LiveResponseEvents):
            heard.append(payload)

    async with LiveFeed(other_store.client, other_store.keys) as feed:
        await feed.subscribe(store.keys.session_channel(chat.session_id), listen)
        rids = [(await chat.begin(on_busy="queue")).response_id for _ in range(4)]

        async def write(rid: str, writer: Chat) -> None:
            for number in range(2, 40):
                await writer.append(rid, number, str(number))
            await writer.finish(rid, 40)

        other = chat.on(other_store)
        await asyncio.gather(*(write(rid, other if n % 2 else chat) for n, rid in enumerate(rids)))
        while sum(item.last == 40 for item in heard) < 4:
            await other_store.ping()
    for rid in rids:
        live = [item for item in heard if item.response_id == rid]
        numbers = [number for item in live for number in range(item.first, item.last + 1)]
        assert numbers == list(range(1, 41))
        assert [event for item in live for event in item.events] == [
            event for _, event in await store.runs.events(rid)
        ]


@pytest.mark.parametrize(
    "text", ["", "\0", "\n", "'\"\\", "{}", "$0\r\n", "é🙂\u2028", "r x 1 1 1\n[]"]
)
async def test_no_text_changes_what_is_stored_around_it(chat: Chat, text: str) -> None:
    chat = await Chat.create(chat.store, title=text, settings={"system": text})
    rid = (await chat.begin(text, settings={"stop": [text]})).response_id
    await chat.append(rid, 2, text, text)
    session = await chat.store.sessions.get("alice", chat.session_id)
    assert (session.title, session.settings) == (text, {"system": text})
    assert (await chat.store.messages.path("alice", chat.session_id)).messages[0].text == text
    assert [
        getattr(event, "delta", None) for _, event in await chat.store.runs.events(rid, after=1)
    ] == [
        text,
        text,
    ]
    assert (await chat.store.runs.get(None, rid)).settings == {"stop": [text]}
