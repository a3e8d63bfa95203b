"""The console's figures in the terminal, and how health is said."""

from typing import Any

import pytest

from server.terminal.sessions.figures import BAD, bars, figures_line, health_line, short_worker

HOSTILE = "\x1b]0;owned\x07"


def worker(name: str = "host-7-x", **changed: Any) -> dict[str, Any]:
    return {"id": name, "engine": "ok", "draining": 0, "seen_at": 99_000, **changed}


def stats(*workers: dict[str, Any], missing: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "now": 100_000,
        "replicas": list(workers),
        "missing": list(missing),
        "live": {
            "active_responses": 5,
            "queued_responses": 2,
            "connections": 1234,
            "sessions": 1_000_000,
        },
        "series": {
            "decode_tokens_per_s": [None, 400.0, 800.4, None],
            "ttft_ms.p50": [40.0, None],
            "ttft_ms.p95": [95.0],
            "kv_usage": [0.125],
        },
    }


def words(line: list[tuple[str, str]]) -> str:
    return "".join(text for _, text in line)


def test_the_figures_are_the_newest_that_were_measured() -> None:
    assert words(figures_line(stats())) == (
        "800 tokens/s  ▄█ · 3 running · 2 waiting · first token 40 ms (p95 95 ms) · KV 12 %"
        " · 1,234 connections · 1,000,000 sessions"
    )


def test_a_narrow_terminal_breaks_no_figure() -> None:
    series = {**stats()["series"], "decode_tokens_per_s": [1.0] * 90}
    lines = words(figures_line({**stats(), "series": series}, 39)).split("\n")
    assert lines == [
        f"1 tokens/s {'█' * 19}",
        "3 running · 2 waiting",
        "first token 40 ms (p95 95 ms) · KV 12 %",
        "1,234 connections · 1,000,000 sessions",
    ]


def test_nothing_was_measured_yet() -> None:
    empty = {**stats(), "series": {}}
    assert words(figures_line(empty)).startswith("0 tokens/s · 3 running · 2 waiting · 1,234")
    assert figures_line(None) == []


def test_all_is_well_in_no_red() -> None:
    line = health_line(stats(worker()), None, 0.5)
    assert words(line) == "Redis answers · engine ok · 1 worker"
    assert BAD not in [style for style, _ in line]


@pytest.mark.parametrize(
    ("shown", "problem", "age", "said"),
    [
        (stats(worker(engine="stalled")), None, 0, "the engine of host · 7 makes no progress"),
        (stats(worker(engine="unavailable")), None, 0, "the engine of host · 7 is away"),
        (stats(worker(draining=1)), None, 0, "1 draining"),
        (stats(missing=(worker(seen_at=88_000),)), None, 0, "worker host · 7 silent for 12 s"),
        (stats(), None, 0, "no worker"),
        (stats(worker()), "Redis does not answer", 0, "Redis does not answer"),
        (stats(worker()), None, 75, "these figures are 1 min 15 s old"),
        (None, "http://h does not answer", 0, "http://h does not answer"),
    ],
)
def test_what_is_wrong_is_red(shown: Any, problem: str | None, age: float, said: str) -> None:
    line = health_line(shown, problem, age)
    assert (BAD, said) in line
    assert ("Redis answers" in words(line)) == (shown is not None and problem is None)


@pytest.mark.row("B60")
def test_names_and_problems_command_no_terminal() -> None:
    away = worker(HOSTILE, engine="stalled")
    line = health_line(stats(away, missing=(away,)), HOSTILE, 9)
    assert "\x1b" not in words(line) and "\x07" not in words(line)
    assert short_worker(HOSTILE) == "·]0;owned·"


def test_bars_are_as_high_as_the_highest_and_have_gaps() -> None:
    assert bars([0.0, None, 5.0, 10.0]) == "▁ ▅█"
    assert bars([None, 0.0]) == bars([]) == ""
