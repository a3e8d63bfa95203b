"""`Placement`: which of several engines an answer goes to, and how soon that is known."""

import random
import time
from collections import Counter
from typing import Any

import pytest

from server.config.models import EngineStatus
from server.engines.client import CoreState
from server.engines.placement import placement as module
from server.engines.placement.breaker import FIRST_SECONDS, MAX_SECONDS, NUM_FAILURES, Breaker
from server.engines.placement.member import Member
from server.engines.placement.placement import Placement
from server.engines.placement.rendezvous import score, stamp
from server.engines.placement.sums import GroupLoad


class Engine:
    """As a worker sees it."""

    def __init__(self) -> None:
        self.is_ready = True
        self.core_state = CoreState.READY
        self.stats: GroupLoad | None = None

    def load(self, num_running: int, num_waiting: int = 0, num_free: int = 100) -> None:
        self.stats = GroupLoad(num_running, num_waiting, 100, num_free, is_sleeping=False)


def member(name: str, weight: float = 1.0) -> Member:
    made = Member(EngineStatus(name=name, kind="native", weight=weight), lambda: 0.0)
    engine: Any = Engine()
    made.engine = engine
    return made


def members(names: str) -> list[Member]:
    return list(map(member, names))


def engine_of(one: Member) -> Engine:
    found: Any = one.engine
    return found  # type: ignore[no-any-return]


def places(placement: Placement, among: list[Member], num_sessions: int) -> dict[str, str]:
    found = {}
    for number in range(num_sessions):
        chosen = placement.choose(f"session-{number}", among)
        assert chosen is not None
        found[f"session-{number}"] = chosen.name
    return found


def test_answers_of_a_session_go_to_one_engine_however_often_it_is_asked() -> None:
    placement, among = Placement(), members("abc")
    first = places(placement, among, 50)
    assert all(places(placement, among, 50) == first for _ in range(4))


def test_workers_agree_on_nearly_all_sessions_without_talking() -> None:
    one, other = Placement(), Placement()
    first, second = places(one, members("ab"), 400), places(other, members("ba"), 400)
    assert sum(first[session] == second[session] for session in first) == 400
    backwards, among = Placement(), members("ab")
    asked = [f"session-{number}" for number in reversed(range(400))]
    third = {each: getattr(backwards.choose(each, among), "name", "") for each in asked}
    assert sum(first[session] == third[session] for session in first) > 320


def hits(
    num_workers: int, names: str, spilled: float = 0.0, *, is_kept: bool = True, num_chats: int = 64
) -> float:
    """Which share of the tokens of prompts is where they go, of as many chats of 4 turns.

    Each turn asks any of the workers, and a share of them finds its engine full. Where the last
    answer went is kept with the session, or each worker remembers it for itself.
    """
    found = asked = 0
    for seed in range(10):
        rng = random.Random(seed)
        workers = [(Placement(), members(names)) for _ in range(num_workers)]
        cached: Counter[tuple[str, str]] = Counter()
        kept: dict[str, str] = {}
        for turn in range(4):
            for session in rng.sample(
                [f"session-{number}" for number in range(num_chats)], num_chats
            ):
                placement, among = rng.choice(workers)
                if is_kept and session in kept:
                    placement.know(session, next(one for one in among if one.name == kept[session]))
                full = placement.place_of(session) if rng.random() < spilled else None
                for each in among:
                    engine_of(each).load(rng.randrange(8), num_waiting=1 if each is full else 0)
                chosen = placement.choose(session, among)
                assert chosen is not None
                kept[session] = chosen.name
                found += min(cached[session, chosen.name], 200 * turn)
                asked += 200 * turn
                cached[session, chosen.name] = 200 * (turn + 1)
    return found / asked


def test_one_worker_always_finds_what_a_session_has_in_a_cache() -> None:
    assert hits(1, "abcd") == 1.0


@pytest.mark.parametrize(("num_workers", "names"), [(2, "ab"), (4, "abcd")])
@pytest.mark.parametrize("spilled", [0.0, 0.05, 0.2])
def test_several_workers_find_as_much_in_the_caches_as_one_does(
    num_workers: int, names: str, spilled: float
) -> None:
    alone, kept = hits(1, names, spilled), hits(num_workers, names, spilled)
    alike = hits(num_workers, names, spilled, is_kept=False)
    print(f"{num_workers} workers, {len(names)} engines: {alike:.1%}, {kept:.1%} kept, {alone:.1%}")
    assert kept >= 0.99 * alone
    assert kept >= alike


@pytest.mark.parametrize("names", ["ab", "abc", "abcd"])
def test_engines_have_about_as_many_sessions_at_64(names: str) -> None:
    for begin in range(0, 2000, 100):
        placement, among = Placement(), members(names)
        for number in range(begin, begin + 64):
            placement.choose(f"session-{number}", among)
        counts = [each.num_sessions for each in among]
        assert sum(counts) == 64
        assert max(counts) / (64 / len(among)) <= 1.3
        if len(names) == 2:
            assert max(counts) / min(counts) <= 1.3


def test_an_engine_has_sessions_by_its_weight() -> None:
    placement = Placement()
    among = [member("a", 1.0), member("b", 3.0)]
    counts = Counter(places(placement, among, 400).values())
    assert 85 <= counts["a"] <= 115


def test_when_an_engine_comes_only_its_sessions_move() -> None:
    two, three = members("ab"), members("abc")
    for number in range(300):
        name = stamp(f"session-{number}")
        before = max(two, key=lambda each: score(name, each.stamp, 1.0)).name
        after = max(three, key=lambda each: score(name, each.stamp, 1.0)).name
        assert after in (before, "c")


def test_a_session_stays_where_it_went_when_its_own_engine_is_back() -> None:
    placement, among = Placement(), members("ab")
    (mine, other) = sorted(among, key=lambda each: score(stamp("s"), each.stamp, 1.0))[::-1]
    assert placement.choose("s", among) is mine
    engine_of(mine).is_ready = False
    assert placement.choose("s", among) is other
    engine_of(mine).is_ready = True
    assert placement.choose("s", among) is other
    assert (mine.num_sessions, other.num_sessions) == (0, 1)


@pytest.mark.parametrize("why", ["a queue", "no blocks"])
def test_where_its_engine_is_full_an_answer_spills_over_to_the_one_with_the_least_to_do(
    why: str,
) -> None:
    placement, among = Placement(), members("abc")
    mine = placement.choose("s", among)
    assert mine is not None
    busy, idle = (each for each in among if each is not mine)
    engine_of(busy).load(5)
    engine_of(idle).load(1)
    engine_of(mine).load(8, 1) if why == "a queue" else engine_of(mine).load(2, 0, num_free=3)
    assert placement.choose("s", among) is idle
    engine_of(mine).load(0)
    assert placement.choose("s", among) is idle  # it has its keys and values by now


def test_where_all_are_full_a_session_waits_where_its_keys_and_values_are() -> None:
    placement, among = Placement(), members("ab")
    mine = placement.choose("s", among)
    for each in among:
        engine_of(each).load(8, 2)
    assert placement.choose("s", among) is mine


def test_what_belongs_to_no_session_goes_where_the_least_is_to_do() -> None:
    placement, among = Placement(), members("ab")
    a, b = among
    engine_of(a).load(3)
    engine_of(b).load(2)
    assert placement.choose(None, among) is b
    engine_of(a).load(2, num_free=60)
    engine_of(b).load(2, num_free=30)
    assert placement.choose(None, among) is a
    a.num_answers = 3
    assert placement.choose(None, among) is b  # which the engine has not said yet


@pytest.mark.parametrize("why", ["drains", "is not ready", "fails", "leaves"])
def test_an_engine_that_takes_nothing_new_is_not_chosen(why: str) -> None:
    placement, among = Placement(), members("ab")
    a = among[0]
    match why:
        case "drains":
            a.status = EngineStatus(name="a", kind="native", is_draining=True)
        case "is not ready":
            engine_of(a).is_ready = False
        case "fails":
            for _ in range(NUM_FAILURES):
                a.breaker.fail(0.0)
        case "leaves":
            a.is_leaving = True
    assert set(places(placement, among, 20).values()) == {"b"}
    assert placement.choose(None, [a]) is None


def test_sessions_that_were_asked_longest_ago_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 10)
    placement, among = Placement(), members("ab")
    places(placement, among, 100)
    assert sum(each.num_sessions for each in among) == 10


def test_an_engine_that_is_gone_has_no_sessions() -> None:
    placement, among = Placement(), members("ab")
    places(placement, among, 40)
    gone, left = among
    placement.forget(gone)
    assert gone.num_sessions == 0 < left.num_sessions
    assert set(places(placement, [left], 40).values()) == {left.name}


@pytest.mark.parametrize(("names", "most"), [("ab", 20e-6), ("abcdefgh", 60e-6)])
def test_a_place_is_found_in_microseconds(names: str, most: float) -> None:
    among = members(names)
    for each in among:
        engine_of(each).load(3)
    least = float("inf")
    for turn in range(5):
        placement = Placement()
        begun = time.process_time()
        for number in range(1000):
            placement.choose(f"session-{turn}-{number}", among)
        least = min(least, (time.process_time() - begun) / 1000)
    assert least < most


def test_a_breaker_opens_after_some_failures_in_a_row_and_longer_each_time() -> None:
    breaker = Breaker()
    for _ in range(NUM_FAILURES - 1):
        breaker.fail(0.0)
    assert breaker.may_ask(0.0)
    now, pauses = 0.0, []
    for _ in range(8):
        breaker.fail(now)
        assert not breaker.may_ask(now)
        pause = next(s for s in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0) if breaker.may_ask(now + s))
        pauses.append(pause)
        now += pause
    assert pauses == [FIRST_SECONDS, 2.0, 4.0, 8.0, 16.0, *[MAX_SECONDS] * 3]
    breaker.succeed()
    breaker.fail(now)
    assert breaker.may_ask(now)
