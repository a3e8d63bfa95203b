"""A call that is made again: which answer it gets, here and at another worker, and what ends it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from server.commands.stateless import repeats as module
from server.commands.stateless.relay import Relay
from server.commands.stateless.repeats import Make, Repeats
from server.commands.stateless.reply import Reading, Reply
from server.commands.stateless.tries import Names, Try
from server.protocol.errors import ApiError
from sessions.connection.embedded import EmbeddedRedis
from sessions.connection.feed import LiveFeed
from sessions.directory.calls import Calls, Place
from sessions.model.errors import StoreUnavailable
from sessions.model.events import LiveFrame, LivePayload
from sessions.store.store import SessionStore
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import fresh_prefix

WORDS = (b"one ", b"two ", b"three")


class Maker:
    """Makes answers of `WORDS`, each word when it may be said; counts them."""

    def __init__(self) -> None:
        self.num_made = 0
        self.num_ended = 0
        self.error: ApiError | None = None
        self._may_say = asyncio.Semaphore(0)
        self._ended = asyncio.Event()

    def say(self, count: int = 1) -> None:
        for _ in range(count):
            self._may_say.release()

    async def __call__(self, reply: Reply) -> None:
        self.num_made += 1
        reply.headers = [(b"x-answer", str(self.num_made).encode())]
        try:
            for word in WORDS:
                await self._may_say.acquire()
                if self.error is not None:
                    raise self.error
                reply.put(word)
        finally:
            self.num_ended += 1
            self._ended.set()

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._ended.wait()


class Client:
    """One call, read by hand."""

    def __init__(self, reading: Reading, leave: AsyncExitStack) -> None:
        self.reading, self._leave = reading, leave

    async def next(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            said = await self.reading.next()
        self.reading.give()
        return said

    async def rest(self) -> bytes:
        said = b""
        while new := await self.next():
            said += new
        return said

    async def go(self) -> None:
        await self._leave.aclose()


class House:
    """One worker's repeats, and who calls there."""

    def __init__(self, name: str, store: SessionStore, feed: LiveFeed, wait_seconds: float) -> None:
        self.calls = Calls(store.client, store.keys)
        self._feed = feed
        relay = Relay(self.calls, feed, store.keys)
        self.repeats = Repeats(self.calls, relay, Names("secret"), name, wait_seconds)
        self._channel = store.keys.control_channel(name)
        self._tasks = self.repeats._background

    async def open(self) -> None:
        await self._feed.start()
        await self._feed.subscribe(self._channel, self._hear)

    async def die(self) -> None:
        """It hears and says nothing more."""
        await self._feed.close()

    async def close(self) -> None:
        await self.repeats.close()
        await self._feed.close()

    def _hear(self, payload: LivePayload) -> None:
        assert isinstance(payload, LiveFrame)
        match payload.data:
            case {"type": "relay", "call_id": call_id, "channel": channel}:
                self.repeats.relay(call_id, channel)
            case {"type": "relay_end", "channel": channel}:
                self.repeats.end_relay(channel)

    def call(self, make: Make, **changed: Any) -> Client:
        given: dict[str, Any] = {"credential": "alice", "route": "/v1/x", "body": b"{}"}
        given |= {"number": 0} | changed
        leave = AsyncExitStack()
        return Client(self.repeats.read(Try(**given), make, leave), leave)

    async def announced(self) -> None:
        """What it had to say has reached Redis."""
        await self._tasks.wait(PATIENCE)


NewHouse = Callable[..., Any]


@pytest.fixture
async def new_house(redis_server: EmbeddedRedis) -> AsyncIterator[NewHouse]:
    prefix = fresh_prefix()
    async with AsyncExitStack() as stack:

        async def make(name: str = "w0", wait_seconds: float = 600.0) -> House:
            store = await SessionStore.open(redis_server.url, prefix=prefix)
            stack.push_async_callback(store.close)
            house = House(name, store, LiveFeed(store.client, store.keys), wait_seconds)
            stack.push_async_callback(house.close)
            await house.open()
            return house

        yield make


@pytest.fixture
async def house(new_house: NewHouse) -> House:
    made: House = await new_house()
    return made


@pytest.fixture
async def other(new_house: NewHouse) -> House:
    made: House = await new_house("w1")
    return made


@pytest.fixture
def make() -> Maker:
    return Maker()


async def keys(house: House) -> list[bytes]:
    client, prefix = house.calls._client, house.calls._keys.prefix
    return sorted(await client.call("KEYS", f"{prefix}call:*"))


# ---- a repeat without a key ----------------------------------------------------------------------


async def test_a_repeat_joins_the_call_whose_client_has_gone(house: House, make: Maker) -> None:
    first = house.call(make)
    await asyncio.sleep(0)
    await first.go()
    await house.announced()
    repeat = house.call(make, number=1)
    make.say(3)
    assert await repeat.rest() == b"".join(WORDS)
    await repeat.go()
    await house.announced()
    assert make.num_made == 1 and await keys(house) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"number": 0},
        {"number": None},
        {"number": 1, "body": b"{ }"},
        {"number": 1, "credential": "bob"},
        {"number": 1, "route": "/v1/y"},
    ],
)
async def test_what_is_no_repeat_has_an_answer_of_its_own(
    house: House, make: Maker, changed: dict[str, Any]
) -> None:
    await house.call(make).go()
    own = house.call(make, **changed)
    make.say(6)
    assert await own.rest() == b"".join(WORDS) and make.num_made == 2


async def test_a_call_whose_client_is_there_is_not_joined(house: House, make: Maker) -> None:
    two = [house.call(make), house.call(make, number=1)]
    make.say(6)
    assert [await each.rest() for each in two] == [b"".join(WORDS)] * 2
    assert make.num_made == 2


async def test_each_call_is_joined_once(house: House, make: Maker) -> None:
    for _ in range(2):
        await house.call(make).go()
    repeats = [house.call(make, number=1) for _ in range(3)]
    make.say(9)
    assert [await each.rest() for each in repeats] == [b"".join(WORDS)] * 3
    assert make.num_made == 3


async def test_a_call_that_nobody_repeats_ends(new_house: NewHouse, make: Maker) -> None:
    house = await new_house(wait_seconds=0.01)
    first = house.call(make)
    await asyncio.sleep(0)
    await first.go()
    await make.ended()
    await house.announced()
    assert await keys(house) == []
    repeat = house.call(make, number=1)
    make.say(3)
    assert await repeat.rest() == b"".join(WORDS) and make.num_made == 2


@pytest.mark.parametrize(("number", "has_begun"), [(0, True), (None, False), (3, True)])
async def test_what_breaks_in_its_stream_or_counts_no_tries_ends_at_once(
    house: House, make: Maker, number: int | None, has_begun: bool
) -> None:
    first = house.call(make, number=number)
    if has_begun:
        make.say()
        assert await first.next() == b"one "
    await asyncio.sleep(0)
    await first.go()
    assert make.num_ended == make.num_made == 1
    await house.announced()
    assert await keys(house) == []


async def test_an_answer_that_has_ended_meanwhile_is_there_whole(house: House, make: Maker) -> None:
    first, at_its_end = house.call(make), house.call(make)
    await asyncio.sleep(0)
    await first.go()
    make.say(6)
    await make.ended()
    await at_its_end.go()
    repeats = [house.call(make, number=1) for _ in range(2)]
    assert [await each.rest() for each in repeats] == [b"".join(WORDS)] * 2
    assert make.num_made == 2


async def test_an_answer_that_has_failed_meanwhile_is_made_anew(house: House, make: Maker) -> None:
    first = house.call(make)
    await asyncio.sleep(0)
    await first.go()
    make.error = ApiError("engine_unavailable", "no")
    make.say()
    await make.ended()
    await asyncio.sleep(0)
    make.error = None
    repeat = house.call(make, number=1)
    make.say(3)
    assert await repeat.rest() == b"".join(WORDS) and make.num_made == 2


async def test_no_more_wait_than_may(
    house: House, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LEFT", 1)
    clients = [house.call(make) for _ in range(2)]
    await asyncio.sleep(0)
    for each in clients:
        await each.go()
    assert (make.num_made, make.num_ended) == (2, 1)


async def test_what_nobody_reads_gives_way_where_no_more_answers_may_be(house: House) -> None:
    make, full = Maker(), ApiError("rate_limited", "4 answers are running already")

    async def make_one(reply: Reply) -> None:
        if make.num_made > make.num_ended:
            raise full
        await make(reply)

    await house.call(make_one).go()
    await asyncio.sleep(0)
    with pytest.raises(ApiError):
        await house.call(make_one, credential="bob").rest()
    assert (make.num_made, make.num_ended) == (1, 0)
    new = house.call(make_one, body=b"another")
    make.say(3)
    assert await new.rest() == b"".join(WORDS) and make.num_made == 2
    with pytest.raises(ApiError):
        held = house.call(make_one)
        await asyncio.sleep(0)
        await house.call(make_one, body=b"third").rest()
    await held.go()


# ---- at another worker ---------------------------------------------------------------------------


async def joined(house: House, other: House, make: Maker) -> Client:
    """A repeat at the other worker that has sent its first word; the first client has left."""
    await house.call(make).go()
    await house.announced()
    repeat = other.call(make, number=1)
    make.say()
    assert await repeat.next() == b"one "
    return repeat


async def test_a_repeat_joins_at_another_worker(house: House, other: House, make: Maker) -> None:
    first = house.call(make)
    make.say()
    await asyncio.sleep(0)
    await first.go()
    await house.announced()
    repeat = other.call(make, number=1)
    assert await repeat.next() == b"one "
    assert repeat.reading.headers == [(b"x-answer", b"1")]
    make.say(2)
    assert await repeat.rest() == b"two three"
    assert make.num_made == 1 and await keys(house) == []


async def test_it_joins_once_over_all_workers(house: House, other: House, make: Maker) -> None:
    await house.call(make).go()
    await house.announced()
    repeats = [other.call(make, number=1), house.call(make, number=1), other.call(make, number=1)]
    make.say(9)
    assert [await each.rest() for each in repeats] == [b"".join(WORDS)] * 3
    assert make.num_made == 3


async def test_a_repeat_that_breaks_too_waits_for_the_next(
    house: House, other: House, make: Maker
) -> None:
    await house.call(make).go()
    await house.announced()
    second = other.call(make, number=1)
    make.say()
    async with asyncio.timeout(PATIENCE):
        assert await second.reading.next() == b"one "  # which its client is not sent any more
    await second.go()
    await other.announced()
    third = house.call(make, number=2)
    make.say(2)
    assert await third.rest() == b"".join(WORDS) and make.num_made == 1


async def test_a_relayed_client_that_leaves_ends_it_where_it_is_made(
    house: House, other: House, make: Maker
) -> None:
    repeat = await joined(house, other, make)
    await repeat.go()
    await make.ended()
    assert make.num_made == 1


async def test_a_refusal_is_relayed_in_its_own_words(
    house: House, other: House, make: Maker
) -> None:
    repeat = await joined(house, other, make)
    make.error = ApiError("rate_limited", "slowly", param="p", retry_after_ms=7)
    make.say()
    with pytest.raises(ApiError) as refusal:
        await repeat.rest()
    error = refusal.value
    assert (error.code, error.param, error.retry_after_ms) == ("rate_limited", "p", 7)


async def test_what_a_dead_worker_had_is_made_anew(house: House, other: House, make: Maker) -> None:
    first = house.call(make)
    await asyncio.sleep(0)
    await first.go()
    await house.announced()
    await house.die()
    repeat = other.call(make, number=1)
    make.say(6)
    assert await repeat.rest() == b"".join(WORDS) and make.num_made == 2


class BrokenCalls(Calls):
    """Its Redis is away."""

    async def leave(self, name: str, place: Place) -> None:
        raise StoreUnavailable

    async def take(self, name: str) -> Place | None:
        raise StoreUnavailable


async def test_without_redis_a_repeat_joins_at_its_own_worker(
    house: House, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("leave", "take"):
        monkeypatch.setattr(house.calls, name, getattr(BrokenCalls, name).__get__(house.calls))
    await house.call(make).go()
    repeats = [house.call(make, number=1) for _ in range(2)]
    make.say(6)
    assert [await each.rest() for each in repeats] == [b"".join(WORDS)] * 2
    assert make.num_made == 2


# ---- a key ---------------------------------------------------------------------------------------


async def read_all(clients: Sequence[Client]) -> list[bytes]:
    return await asyncio.gather(*(each.rest() for each in clients))


async def test_a_key_stands_for_one_answer_while_it_is_made_and_after(
    house: House, other: House, make: Maker
) -> None:
    clients = [house.call(make, key="k") for _ in range(2)]
    make.say()
    assert await clients[0].next() == b"one "
    clients += [other.call(make, key="k") for _ in range(2)]
    make.say(2)
    assert await clients[0].rest() == b"two three"
    assert await read_all(clients[1:]) == [b"".join(WORDS)] * 3
    for each in clients:
        await each.go()
    later = [house.call(make, key="k"), other.call(make, key="k", number=1)]
    assert await read_all(later) == [b"".join(WORDS)] * 2 and make.num_made == 1


async def test_a_key_is_for_one_body_and_one_credential(
    house: House, other: House, make: Maker
) -> None:
    make.say(6)
    assert await house.call(make, key="k").rest() == b"".join(WORDS)
    for where in (house, other):
        with pytest.raises(ApiError) as refusal:
            await where.call(make, key="k", body=b"[]").rest()
        assert refusal.value.code == "idempotency_key_reused"
    assert await other.call(make, key="k", credential="bob").rest() == b"".join(WORDS)
    assert make.num_made == 2


async def test_keys_that_come_to_two_workers_at_a_time_have_one_answer(
    house: House, other: House, make: Maker
) -> None:
    clients = [where.call(make, key="k") for where in (house, other, other, house)]
    make.say(12)
    assert await read_all(clients) == [b"".join(WORDS)] * 4 and make.num_made == 1


async def test_a_call_with_a_key_waits_for_its_repeat_unless_it_breaks_in_its_stream(
    house: House, make: Maker
) -> None:
    await house.call(make, key="k", number=None).go()
    repeat = house.call(make, key="k", number=None)
    make.say()
    assert await repeat.next() == b"one "
    await repeat.go()
    assert (make.num_made, make.num_ended) == (1, 1)
    anew = house.call(make, key="k", number=None)
    make.say(3)
    assert await anew.rest() == b"".join(WORDS) and make.num_made == 2


async def test_a_key_is_free_again_when_its_call_has_failed(
    house: House, other: House, make: Maker
) -> None:
    make.error = ApiError("engine_unavailable", "no")
    make.say()
    with pytest.raises(ApiError):
        await house.call(make, key="k").rest()
    await house.announced()
    make.error = None
    make.say(3)
    assert await other.call(make, key="k").rest() == b"".join(WORDS) and make.num_made == 2


async def test_a_key_of_a_dead_worker_is_taken_over(
    house: House, other: House, make: Maker
) -> None:
    make.say(6)
    assert await house.call(make, key="k").rest() == b"".join(WORDS)
    await house.die()
    assert await other.call(make, key="k").rest() == b"".join(WORDS) and make.num_made == 2


@pytest.mark.parametrize(("bound", "value"), [("KEPT_SECONDS", 0.0), ("MAX_KEPT_BYTES", 1)])
async def test_an_answer_is_not_kept_for_ever(
    house: House, make: Maker, monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    dropped, drop = asyncio.Event(), house.calls.drop

    async def drop_and_tell(name: str, call_id: str) -> None:
        await drop(name, call_id)
        dropped.set()

    monkeypatch.setattr(house.calls, "drop", drop_and_tell)
    monkeypatch.setattr(module, bound, value)
    make.say(6)
    assert await house.call(make, key="k").rest() == b"".join(WORDS)
    async with asyncio.timeout(PATIENCE):
        await dropped.wait()
    assert await keys(house) == []
    assert await house.call(make, key="k").rest() == b"".join(WORDS) and make.num_made == 2


async def test_redis_holds_places_under_hashes_for_a_minute_and_nothing_else(
    house: House, make: Maker
) -> None:
    keyed = house.call(make, body=b"roses", key="k")
    make.say()
    assert await keyed.next() == b"one "
    await house.call(make, body=b"tulips").go()
    await house.announced()
    client, prefix = house.calls._client, house.calls._keys.prefix
    found = await keys(house)
    for key in found:
        assert re.fullmatch(rf"{prefix}call:[kl]:[0-9a-f]{{64}}", key.decode())
        assert 0 < await client.call("PTTL", key) <= 60_000
    key_of_keyed, key_of_left = found
    values = await client.call("HGETALL", key_of_keyed)
    assert sorted(values) == [b"body", b"call_id", b"replica"]
    assert re.fullmatch(rb"[0-9a-f]{64}", values[b"body"])
    (place,) = await client.call("LRANGE", key_of_left, 0, -1)
    assert re.fullmatch(rb"w0 [\w-]{16}", place)
