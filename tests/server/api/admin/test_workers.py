"""What admins are shown of workers that fell silent."""

from typing import Any

from server.api.admin.workers import roll_wire
from sessions.directory.replicas import Replica, Roll

NOW = 1_000_000


def worker(name: str, host: str, *, silent_ms: int, started_at: int = 0) -> Replica:
    figures = {"host": host, "server_started_at": str(started_at), "pid": "7"}
    return Replica(name, NOW - silent_ms, figures)


def wire_of(present: list[Replica], missing: list[Replica]) -> dict[str, Any]:
    return roll_wire(Roll(NOW, tuple(present), tuple(missing)))


def test_a_silent_worker_is_listed_beside_those_that_are_there() -> None:
    hung = worker("a-1", "a", silent_ms=20_000)
    wire = wire_of([worker("a-2", "a", silent_ms=100)], [hung])
    assert wire["now"] == NOW
    assert [one["id"] for one in wire["replicas"]] == ["a-2"]
    assert wire["missing"] == [
        {"id": "a-1", "seen_at": NOW - 20_000, "host": "a", "server_started_at": 0, "pid": 7}
    ]


def test_who_went_down_with_a_server_is_not_missing_when_that_server_is_back() -> None:
    lost = worker("a-1", "a", silent_ms=20_000)
    again = worker("a-2", "a", silent_ms=100, started_at=NOW - 5000)
    elsewhere = worker("b-1", "b", silent_ms=100, started_at=NOW - 5000)
    assert wire_of([again], [lost])["missing"] == []
    assert len(wire_of([elsewhere], [lost])["missing"]) == 1
    of_an_older_version = Replica("a-3", NOW, {"host": "a"})
    assert len(wire_of([of_an_older_version], [lost])["missing"]) == 1
