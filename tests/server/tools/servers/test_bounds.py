"""How much a server may say."""

import pytest

from server.tools.servers import bounds
from server.tools.servers.bounds import MAX_MESSAGE_BYTES, MAX_VALUES, Measure, Unasked


def test_a_message_has_a_bound_in_bytes_however_it_is_cut() -> None:
    measure = Measure()
    assert not any(measure.is_exceeded_by(b"x" * (MAX_MESSAGE_BYTES // 4)) for _ in range(4))
    assert measure.is_exceeded_by(b"x")


def test_a_message_has_a_bound_in_values() -> None:
    assert not Measure().is_exceeded_by(b"{}" * MAX_VALUES)
    assert Measure().is_exceeded_by(b"[]," * MAX_VALUES)


async def test_who_says_what_nobody_asked_for_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = 100.0, []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(f"{bounds.__name__}.asyncio.sleep", sleep)
    unasked = Unasked(lambda: now)
    for _ in range(200):
        await unasked.take()
    assert waited == []
    await unasked.take()
    assert waited == [pytest.approx(1 / 50)]
    now += 60.0
    await unasked.take(num_bytes=300 * 4096)
    assert waited[1:] == [pytest.approx(101 / 50)]
