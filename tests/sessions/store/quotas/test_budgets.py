"""`Budgets`: what a group holds for its answers and has used never goes beyond its day."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from sessions.connection.embedded import EmbeddedRedis
from sessions.connection.link import Call
from sessions.directory.groups import Group, Groups
from sessions.directory.users import Users
from sessions.indexes.indexes import local_ms
from sessions.model.errors import QuotaExceeded
from sessions.model.ids import new_response_id, new_session_id
from sessions.model.quotas import GROUP_TOKENS, GroupQuotas, OwnQuotas
from sessions.store.quotas import budgets
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.sessions.helpers.batches import RedisBatches
from tests.sessions.helpers.chat import Chat

NUM_ANSWERS = 1000
AT_ONCE = 100  # more of them would wait for a busy machine's Redis longer than a call may


def groups_of(store: SessionStore) -> Groups:
    users = Users(store.client, store.keys)
    return Groups(store.client, store.keys, users, store.allowances, store.group_sessions)


async def new_group(store: SessionStore, **quotas: int) -> Group:
    return await groups_of(store).create("team", GroupQuotas(**quotas))


async def new_member(store: SessionStore, group: Group) -> str:
    user = await Users(store.client, store.keys).create("Ada")
    await groups_of(store).join(group.gid, user.uid)
    return user.uid


def response() -> str:
    return new_response_id(new_session_id())


async def tokens(store: SessionStore, group: Group) -> tuple[int, int]:
    """Used today, and held."""
    (usage,) = await store.budgets.group_usage([group.gid])
    return usage.tokens_today, usage.tokens_held


async def test_as_much_is_held_as_is_wanted_or_left(store: SessionStore) -> None:
    group = await new_group(store, tokens_per_day=100)
    assert await store.budgets.hold(group.gid, response(), wanted=70, least=10) == 70
    assert await store.budgets.hold(group.gid, response(), wanted=70, least=10) == 30
    assert await tokens(store, group) == (0, 100)
    with pytest.raises(QuotaExceeded) as caught:
        await store.budgets.hold(group.gid, response(), wanted=70, least=10)
    assert (caught.value.quota, caught.value.limit) == (GROUP_TOKENS, 100)
    assert caught.value.retry_after_ms == budgets.HELD_RETRY_MS  # answers that run may give back


async def test_less_than_the_least_is_not_held(store: SessionStore) -> None:
    group = await new_group(store, tokens_per_day=100)
    await store.budgets.hold(group.gid, response(), wanted=95, least=1)
    with pytest.raises(QuotaExceeded):
        await store.budgets.hold(group.gid, response(), wanted=20, least=6)
    assert await tokens(store, group) == (0, 95)


async def test_what_an_answer_has_not_used_is_free_again(store: SessionStore) -> None:
    group, rid = await new_group(store, tokens_per_day=100), response()
    await store.budgets.hold(group.gid, rid, wanted=100, least=1)
    for _ in range(2):  # a repeat counts nothing
        await store.budgets.settle(group.gid, rid, 30)
    assert await tokens(store, group) == (30, 0)
    assert await store.budgets.hold(group.gid, response(), wanted=100, least=1) == 70


async def test_a_takeover_finds_what_is_held_for_the_answer(
    store: SessionStore, other_store: SessionStore
) -> None:
    group, rid = await new_group(store, tokens_per_day=100), response()
    await store.budgets.hold(group.gid, rid, wanted=60, least=1)
    await store.budgets.hold(group.gid, response(), wanted=60, least=1)
    assert await other_store.budgets.hold(group.gid, rid, wanted=60, least=20) == 60
    assert await tokens(store, group) == (0, 100)


async def test_an_answer_that_needs_more_gets_what_is_left(store: SessionStore) -> None:
    group, rid = await new_group(store, tokens_per_day=100), response()
    await store.budgets.hold(group.gid, rid, wanted=40, least=1)
    assert await store.budgets.hold(group.gid, rid, wanted=140, least=90) == 100
    assert await store.budgets.hold(group.gid, rid, wanted=10, least=1) == 100
    with pytest.raises(QuotaExceeded):
        await store.budgets.hold(group.gid, rid, wanted=140, least=101)
    assert await tokens(store, group) == (0, 100)


async def test_a_group_without_a_limit_counts_all_the_same(store: SessionStore) -> None:
    group, rid = await new_group(store), response()
    assert await store.budgets.hold(group.gid, rid, wanted=10**9, least=1) == 10**9
    await store.budgets.settle(group.gid, rid, 7)
    assert await tokens(store, group) == (7, 0)


async def test_a_group_that_is_gone_refuses_nobody_and_leaves_nothing(store: SessionStore) -> None:
    group, rid = await new_group(store, tokens_per_day=1), response()
    await groups_of(store).remove(group.gid)
    assert await store.budgets.hold(group.gid, rid, wanted=50, least=50) == 50
    await store.budgets.settle(group.gid, rid, 20)
    replies = await store.client.everywhere("KEYS", f"{store.keys.prefix}g:*")
    assert not [key for keys in replies for key in keys]


async def test_the_tighter_of_both_days_is_reported(store: SessionStore) -> None:
    group = await new_group(store, tokens_per_day=100)
    uid = await new_member(store, group)
    await groups_of(store).limit_user(uid, OwnQuotas(tokens_per_day=50))
    budget = await store.budgets.check(uid)
    assert budget is not None and (budget.limit, budget.remaining) == (50, 50)
    await store.budgets.hold(group.gid, response(), wanted=60, least=1)
    budget = await store.budgets.check(uid)
    assert budget is not None and (budget.quota, budget.remaining) == (GROUP_TOKENS, 40)
    assert budget.own_left == 50
    await store.budgets.hold(group.gid, response(), wanted=60, least=1)
    with pytest.raises(QuotaExceeded) as caught:
        await store.budgets.check(uid)
    assert caught.value.quota == GROUP_TOKENS


async def test_what_is_left_of_a_day_is_read_with_one_call_where_the_clocks_agree(
    redis_server: EmbeddedRedis, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await new_group(store, tokens_per_day=100)
    uid = await new_member(store, group)
    await groups_of(store).limit_user(uid, OwnQuotas(tokens_per_day=50))
    await store.budgets.charge(uid, response(), 20, await store.client.now_ms())
    await store.budgets.check(uid)  # from now on what the user may is known
    redis, now_ms = RedisBatches(monkeypatch), local_ms()
    for ahead_ms, num_calls in ((0, 1), (budgets.DAY_MS, 2)):
        clock = partial(int, now_ms + ahead_ms)
        monkeypatch.setattr("sessions.store.quotas.budgets.local_ms", clock)
        redis.all.clear()
        budget = await store.budgets.check(uid)
        assert budget is not None and (budget.used, budget.remaining) == (20, 30)
        assert len(redis.all) == num_calls


async def test_a_thousand_racing_answers_never_use_more_than_their_groups_day(
    store: SessionStore, other_store: SessionStore
) -> None:
    """Of all sizes, at two workers; some are taken over by the other one, some never settle."""
    dice = random.Random(20)
    group = await new_group(store, tokens_per_day=20_000)
    most, outcomes, places = 0, Counter[str](), asyncio.Semaphore(AT_ONCE)

    async def answer(number: int) -> None:
        async with places:
            await race(number)

    async def race(number: int) -> None:
        nonlocal most
        first, second = dice.sample((store, other_store), 2)
        rid, prompt = response(), dice.randrange(1, 60)
        wanted = prompt + dice.randrange(1, 200)
        try:
            held = await first.budgets.hold(group.gid, rid, wanted=wanted, least=prompt + 1)
        except QuotaExceeded:
            outcomes["refused"] += 1
            return
        assert prompt + 1 <= held <= wanted
        if number % 7 == 0:
            again = await second.budgets.hold(group.gid, rid, wanted=wanted, least=prompt + 1)
            assert again >= held
            held = again
        used, kept = await tokens(second, group)
        most = max(most, used + kept)
        if number % 11:
            await second.budgets.settle(group.gid, rid, dice.randrange(prompt, held + 1))
            outcomes["settled"] += 1

    await asyncio.gather(*map(answer, range(NUM_ANSWERS)))
    used, kept = await tokens(store, group)
    assert 15_000 < most <= 20_000 and used + kept <= 20_000
    assert outcomes["refused"] > 100 and outcomes["settled"] > 50


async def aged(store: SessionStore, group: Group, response_id: str) -> None:
    """As if what is held for it had been held for long."""
    key, field = store.keys.group_tokens(group.gid), f"r:{response_id}"
    day, held, _ = (await store.client.call("HGET", key, field)).decode().split()
    await store.client.call("HSET", key, field, f"{day} {held} 1")


async def test_what_an_older_worker_has_ended_is_settled_when_it_is_missed(
    store: SessionStore,
) -> None:
    """It knows no groups: its end gives nothing back. The message tells what was used."""
    group = await new_group(store, tokens_per_day=100)
    chat = await Chat.create(store)
    begun = await chat.begin("hello")
    rid = begun.response_id
    await store.budgets.hold(group.gid, rid, wanted=90, least=1)
    message = chat.messages[rid]
    ended = replace(message, usage=USAGE, status="completed")
    await chat.finish(rid, 2, message=ended)  # without `group`, as it does
    with pytest.raises(QuotaExceeded):  # so young that its worker may be at it
        await store.budgets.hold(group.gid, response(), wanted=60, least=60)
    store.budgets._looked.clear()
    await aged(store, group, rid)
    assert await store.budgets.hold(group.gid, response(), wanted=60, least=60) == 60
    assert await tokens(store, group) == (8, 60)


USAGE = {"input_tokens": 3, "output_tokens": 5}


async def test_what_still_runs_stays_held_however_old(store: SessionStore) -> None:
    group = await new_group(store, tokens_per_day=100)
    chat = await Chat.create(store)
    begun = await chat.begin("hello")
    await store.budgets.hold(group.gid, begun.response_id, wanted=90, least=1)
    await aged(store, group, begun.response_id)
    with pytest.raises(QuotaExceeded):
        await store.budgets.hold(group.gid, response(), wanted=60, least=60)
    assert await tokens(store, group) == (0, 90)


async def test_of_a_call_that_is_gone_all_that_was_held_counts(store: SessionStore) -> None:
    group, lost, living = await new_group(store, tokens_per_day=100), response(), response()
    uid = await new_member(store, group)
    for rid in (lost, living):
        await store.budgets.hold(group.gid, rid, wanted=45, least=1)
        await aged(store, group, rid)
    await store.slots.take(uid, living, 0)  # its worker says every few seconds that it lives
    with pytest.raises(QuotaExceeded):
        await store.budgets.hold(group.gid, response(), wanted=60, least=60)
    assert await tokens(store, group) == (45, 45)


async def test_nobody_waits_until_the_tokens_of_an_end_are_counted(
    redis_server: EmbeddedRedis, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, counted = Call.answer, asyncio.Event()

    def held_back(call: Call, reply: object) -> None:
        if call.script == "charge_tokens":
            counted.set()
        else:
            answer(call, reply)

    monkeypatch.setattr(Call, "answer", held_back)
    chat = await Chat.create(store)
    rid = (await chat.begin()).response_id
    await asyncio.wait_for(chat.finish(rid, 2), PATIENCE)
    await asyncio.wait_for(counted.wait(), PATIENCE)
    assert [each.tokens_today for each in await store.budgets.usage(["alice"])] == [8]
