"""When a server is quiet, from samples of its processor time."""

import os

from bench.peers.machine.processes import busy_cores, busy_seconds, quiet_after

MS = 0.001


def samples(*phases: tuple[int, float]) -> list[tuple[float, float]]:
    """Every 2 ms: (milliseconds, cores) after each other, from 100 s on."""
    at, busy, found = 100.0, 5.0, [(100.0, 5.0)]
    for milliseconds, cores in phases:
        for _ in range(0, milliseconds, 2):
            at, busy = at + 2 * MS, busy + 2 * MS * cores
            found.append((at, busy))
    return found


def test_quiet_begins_where_a_whole_window_is_at_rest() -> None:
    quiet = quiet_after(samples((40, 2.0), (100, 0.0)), idle_cores=0.0)
    assert quiet is not None and 36 * MS <= quiet <= 42 * MS


def test_a_short_pause_between_two_steps_is_not_quiet() -> None:
    quiet = quiet_after(samples((40, 2.0), (10, 0.0), (30, 2.0), (100, 0.0)), idle_cores=0.0)
    assert quiet is not None and quiet >= 74 * MS


def test_a_server_that_is_quiet_at_once_took_no_time() -> None:
    assert quiet_after(samples((100, 0.0)), idle_cores=0.0) == 0.0


def test_one_that_spins_on_is_never_quiet() -> None:
    assert quiet_after(samples((500, 1.0)), idle_cores=0.0) is None


def test_what_it_does_at_rest_is_no_work() -> None:
    assert quiet_after(samples((500, 1.0)), idle_cores=1.0) == 0.0


def test_cores_are_processor_time_over_time() -> None:
    assert abs(busy_cores(samples((100, 1.5))) - 1.5) < 1e-6


def test_our_own_processor_time_is_counted() -> None:
    before = busy_seconds([os.getpid()])
    sum(range(3_000_000))
    assert busy_seconds([os.getpid()]) > before
    assert busy_seconds([2**22 + 1]) == 0.0  # no such process
