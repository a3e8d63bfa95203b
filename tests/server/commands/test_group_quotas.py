"""Quotas of groups at two workers: answers that race never use more than their group's day."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from server.commands.delete_session import delete_session
from server.protocol.client_frames import CreateResponse, to_struct
from server.protocol.errors import ApiError
from server.protocol.store_errors import translate_store_errors
from server.runs.stop import Stop
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.directory.groups import Group, Groups
from sessions.directory.users import Users
from sessions.model.errors import QuotaExceeded, StoreUnavailable
from sessions.model.ids import session_of
from sessions.model.quotas import GroupQuotas, OwnQuotas
from sessions.model.records import RunRecord
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix
from tests.helpers.tiny_model import oracle_answer, oracle_word
from tests.server.helpers.in_process import PATIENT, running_workers
from tests.server.helpers.scripted_engine import Dice, Request, ScriptedEngine
from tests.server.helpers.tool_chats import die

NUM_TOKENS = 8  # of an answer; its prompt has one


@dataclass
class Team:
    """Two workers, and two members of a group."""

    workers: list[Worker]
    engine: ScriptedEngine
    group: Group
    members: list[str]

    @property
    def groups(self) -> Groups:
        return _groups(self.workers[0])

    async def new_session(self, uid: str, key: str) -> str:
        store = self.workers[0].store
        return (await store.sessions.create(uid, idempotency_key=key)).session.id

    async def ask(self, number: int, session_id: str, max_tokens: int = NUM_TOKENS) -> str:
        """The answer's id. Raises `ApiError`."""
        frame = to_struct(
            {
                "type": "response.create",
                "session_id": session_id,
                "idempotency_key": "k",
                "input": oracle_word(5),
                "settings": {"max_output_tokens": max_tokens, "temperature": 0},
            },
            CreateResponse,
        )
        uid = self.members[number % 2]
        with translate_store_errors():
            creator = self.workers[number // 2 % 2].services.creator
            return (await creator.create(uid, frame))[0]

    async def end_of(self, response_id: str) -> RunRecord:
        """The run when it has ended."""
        async with asyncio.timeout(PATIENCE):
            while True:
                record = await self.workers[1].store.runs.get(None, response_id)
                if not record.is_live:
                    return record
                await asyncio.sleep(0.01)  # its owner may be killed: only the store tells

    async def used(self) -> int:
        """The group's tokens of the day, when nothing is held any more."""
        async with asyncio.timeout(PATIENCE):
            while True:
                (usage,) = await self.workers[1].store.budgets.group_usage([self.group.gid])
                if not usage.tokens_held:
                    return usage.tokens_today
                await asyncio.sleep(0.01)  # what is held is given back after the end

    async def text(self, response_id: str) -> str:
        store, session_id = self.workers[1].store, session_of(response_id)
        record = await store.runs.get(None, response_id)
        return (await store.messages.get(None, session_id, record.message_id)).text


def _groups(worker: Worker) -> Groups:
    store = worker.store
    users = Users(store.client, store.keys)
    return Groups(store.client, store.keys, users, store.allowances, store.group_sessions)


@pytest.fixture
async def team(redis_server: EmbeddedRedis) -> AsyncIterator[Team]:
    dice = Dice(7)
    engine = ScriptedEngine(dice)
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, dice, 2, PATIENT) as workers:
        users = Users(workers[0].store.client, workers[0].store.keys)
        members = [(await users.create(name)).uid for name in ("Ada", "Bob")]
        group = await _groups(workers[0]).create("team", GroupQuotas(tokens_per_day=10_000))
        for uid in members:
            await _groups(workers[0]).join(group.gid, uid)
        yield Team(workers, engine, group, members)


async def limit(team: Team, **quotas: int) -> None:
    await team.groups.update(team.group.gid, quotas=GroupQuotas(**quotas))
    for worker in team.workers:  # others learn of it within seconds
        worker.store.allowances.forget()


@pytest.mark.row("P20")
@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
async def test_racing_answers_of_two_workers_never_use_more_than_their_groups_day(
    team: Team, count: int
) -> None:
    most = count * 4  # each would use 9
    await limit(team, tokens_per_day=most)
    sessions = [await team.new_session(team.members[n % 2], f"s{n}") for n in range(count)]
    outcomes = Counter[str]()

    async def answer(number: int) -> None:
        try:
            record = await team.end_of(await team.ask(number, sessions[number]))
        except ApiError as refused:
            assert (refused.code, refused.quota) == ("quota_exceeded", "group.tokens_per_day")
            outcomes["refused"] += 1
            return
        outcomes[record.reason] += 1

    await asyncio.gather(*map(answer, range(count)))
    used = await team.used()
    stored = 0
    for uid in team.members:
        for session in (await team.workers[0].store.lists.page(uid, limit=count)).sessions:
            stored += session.input_tokens + session.output_tokens
    assert used == stored <= most
    assert most - used < 9 and outcomes["refused"] > count // 4


@pytest.mark.row("P20")
async def test_what_is_left_of_the_day_survives_a_takeover(team: Team) -> None:
    """All that is left is held by an answer whose worker dies: it goes on to its end."""
    await limit(team, tokens_per_day=NUM_TOKENS + 1)
    rid = await held_answer(team)
    with pytest.raises(ApiError) as refused:  # nothing is left for anybody else
        await team.ask(3, await team.new_session(team.members[1], "other"))
    assert refused.value.quota == "group.tokens_per_day"
    assert 0 < (refused.value.retry_after_ms or 0) <= 5000
    await die(team.workers[0])
    team.engine.requests[rid].is_held.clear()  # of the dead one's request, which waits for ever
    await team.workers[1].takeover.adopt(team.workers[0].config.replica)
    record = await team.end_of(rid)
    assert (record.status, record.reason) == ("incomplete", "max_output_tokens")
    assert await team.text(rid) == oracle_answer(5, NUM_TOKENS)
    assert await team.used() == NUM_TOKENS + 1


async def held_answer(team: Team, max_tokens: int = NUM_TOKENS) -> str:
    """An answer of the first worker that stays in its middle."""

    def held() -> Request:
        request = Request()
        request.is_held.add("mid")
        return request

    team.engine.requests.default_factory = held
    rid = await team.ask(0, await team.new_session(team.members[0], "held"), max_tokens)
    async with asyncio.timeout(PATIENCE):
        await team.engine.requests[rid].reached["mid"].wait()
    team.engine.requests.default_factory = Request
    return rid


async def test_an_answer_that_is_refused_stores_nothing(team: Team) -> None:
    await limit(team, tokens_per_day=1)  # no more than its prompt
    session_id = await team.new_session(team.members[0], "s")
    with pytest.raises(ApiError) as refused:
        await team.ask(0, session_id)
    assert (refused.value.code, refused.value.quota) == ("quota_exceeded", "group.tokens_per_day")
    assert (await team.workers[0].store.sessions.get(None, session_id)).message_count == 0
    assert await team.used() == 0


async def test_an_answer_gets_what_is_left_and_says_why_it_ends(team: Team) -> None:
    await limit(team, tokens_per_day=4)
    rid = await team.ask(0, await team.new_session(team.members[0], "s"))
    record = await team.end_of(rid)
    assert (record.status, record.reason) == ("incomplete", "quota")
    assert await team.text(rid) == oracle_answer(5, 3)
    assert await team.used() == 4


async def test_a_stop_gives_back_what_was_not_used(team: Team) -> None:
    rid = await held_answer(team, 1000)
    run = team.workers[0].runs.local(rid)
    assert run is not None
    team.workers[0].runs.stop(run, Stop())
    record = await team.end_of(rid)
    assert record.status == "cancelled"
    assert 2 <= await team.used() < 20


async def test_an_answer_of_a_session_that_is_deleted_counts_for_what_it_has_used(
    team: Team,
) -> None:
    rid = await held_answer(team, 1000)
    await delete_session(team.workers[0].services, team.members[0], session_of(rid))
    assert 2 <= await team.used() < 20
    (own, _) = await team.workers[0].store.budgets.usage(team.members)
    assert own.tokens_today == await team.used()


async def test_what_waits_in_a_session_asks_for_its_tokens_when_its_turn_comes(team: Team) -> None:
    """Its prompt is not known before; then nothing is left, and it says so."""
    rid = await held_answer(team)
    session_id = session_of(rid)
    frame = to_struct(
        {
            "type": "response.create",
            "session_id": session_id,
            "idempotency_key": "next",
            "input": oracle_word(9),
            "on_busy": "queue",
            "settings": {"max_output_tokens": NUM_TOKENS, "temperature": 0},
        },
        CreateResponse,
    )
    waiting, _ = await team.workers[0].services.creator.create(team.members[0], frame)
    store = team.workers[0].store
    await store.budgets.settle(team.group.gid, waiting, 0)  # as if its prompt were another by now
    run = team.workers[0].runs.local(waiting)
    assert run is not None
    run.tokens_held = None
    await limit(team, tokens_per_day=NUM_TOKENS + 1)
    request = team.engine.requests[rid]
    request.released.set()
    assert (await team.end_of(rid)).reason == "max_output_tokens"
    record = await team.end_of(waiting)
    assert (record.status, record.reason) == ("incomplete", "quota")
    assert await team.used() == NUM_TOKENS + 1


async def test_what_is_held_for_an_answer_is_given_back_when_the_reply_is_lost(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = team.workers[0].store.budgets
    hold = budgets.hold

    async def hold_and_lose(*args: Any, **fields: Any) -> int:
        assert await hold(*args, **fields) == NUM_TOKENS + 1
        raise StoreUnavailable

    session_id = await team.new_session(team.members[0], "s")
    with monkeypatch.context() as patch:
        patch.setattr(budgets, "hold", hold_and_lose)
        with pytest.raises(ApiError):
            await team.ask(0, session_id)
    assert await team.used() == 0
    await team.end_of(await team.ask(0, session_id))
    assert await team.used() == NUM_TOKENS + 1


async def test_members_share_their_answers_at_a_time(team: Team) -> None:
    await limit(team, answers=1)
    rid = await held_answer(team)
    with pytest.raises(ApiError) as refused:
        await team.ask(3, await team.new_session(team.members[1], "other"))
    assert (refused.value.code, refused.value.quota) == ("rate_limited", "group.answers")
    team.engine.requests[rid].released.set()
    await team.end_of(rid)


async def test_quotas_of_one_user_stand_above_the_servers(team: Team) -> None:
    uid = team.members[0]
    await team.groups.leave(team.group.gid, uid)
    await team.groups.limit_user(uid, OwnQuotas(tokens_per_day=4))
    rid = await team.ask(0, await team.new_session(uid, "s"))
    assert (await team.end_of(rid)).reason == "quota"
    with pytest.raises(ApiError) as refused:
        await team.ask(0, await team.new_session(uid, "t"))
    assert refused.value.quota == "user.tokens_per_day"
    await team.groups.limit_user(uid, OwnQuotas(answers=1))
    rid = await held_answer(team)
    with pytest.raises(ApiError) as refused:
        await team.ask(0, await team.new_session(uid, "t"))
    assert refused.value.quota == "user.answers"
    team.engine.requests[rid].released.set()
    await team.end_of(rid)


async def keys_of(team: Team) -> list[bytes]:
    """What Redis keeps of the group."""
    client, prefix = team.workers[0].store.client, team.workers[0].store.keys.prefix
    _, found = await client.call(
        "SCAN", 0, "MATCH", f"{prefix}g:{{{team.group.gid}}}*", "COUNT", 10**6
    )
    return list(found)


async def test_an_answer_goes_on_when_its_group_is_removed_and_leaves_nothing_of_it(
    team: Team,
) -> None:
    rid = await held_answer(team)
    assert await keys_of(team)
    await _groups(team.workers[1]).remove(team.group.gid)
    # The first worker has not heard of it yet: it still holds tokens for answers of the group.
    other = await team.ask(0, await team.new_session(team.members[0], "other"))
    assert (await team.end_of(other)).reason == "max_output_tokens"
    team.engine.requests[rid].released.set()
    record = await team.end_of(rid)
    assert (record.status, record.reason) == ("incomplete", "max_output_tokens")
    assert await team.text(rid) == oracle_answer(5, NUM_TOKENS)
    (own, _) = await team.workers[0].store.budgets.usage(team.members)
    assert own.tokens_today == 2 * (NUM_TOKENS + 1)
    assert await keys_of(team) == []


async def test_a_quota_below_what_is_used_refuses_what_is_new_and_takes_nothing_back(
    team: Team,
) -> None:
    rid = await held_answer(team)
    await team.new_session(team.members[1], "second")
    await limit(team, tokens_per_day=1, sessions=1, answers=1)
    budget = await team.workers[0].store.budgets.today(team.members[0])
    assert budget is not None and budget.remaining == 0
    with pytest.raises(QuotaExceeded) as full:
        await team.new_session(team.members[1], "third")
    assert full.value.quota == "group.sessions"
    with pytest.raises(ApiError) as refused:
        await team.ask(3, await first_session(team, 1))
    assert refused.value.quota in ("group.answers", "group.tokens_per_day")
    team.engine.requests[rid].released.set()
    record = await team.end_of(rid)  # what it holds is more than the group may use by now
    assert (record.status, record.reason) == ("incomplete", "max_output_tokens")
    assert await team.used() == NUM_TOKENS + 1
    with pytest.raises(ApiError) as refused:
        await team.ask(3, await first_session(team, 1))
    assert (refused.value.code, refused.value.quota) == ("quota_exceeded", "group.tokens_per_day")
    assert (refused.value.retry_after_ms or 0) > 0


async def first_session(team: Team, number: int) -> str:
    """That a member keeps."""
    return (await team.workers[0].store.lists.page(team.members[number])).sessions[0].id
