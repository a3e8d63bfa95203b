"""Moments and spans of time as operators write and read them: in UTC, as the logs have them."""

import re
from datetime import UTC, datetime

import typer

from server.terminal.text import UNITS

DAY_SECONDS = UNITS["d"]
_SPAN = re.compile(r"(\d{1,9}) ?([smhd])")


def day(milliseconds: int) -> str:
    return _utc(milliseconds).strftime("%Y-%m-%d")


def second(milliseconds: int) -> str:
    return _utc(milliseconds).strftime("%Y-%m-%d %H:%M:%S")


def seconds_of(text: str, option: str) -> int:
    """`90s`, `30m`, `4h` or `7d`. Raises `typer.BadParameter`."""
    if (found := _SPAN.fullmatch(text.strip())) is None:
        raise typer.BadParameter(f"{text!r} is no time such as 30m, 4h or 7d", param_hint=option)
    return int(found[1]) * UNITS[found[2]]


def moment_of(text: str, option: str, now_ms: int) -> int:
    """So long ago, or a date with or without a time, in milliseconds since 1970.

    Raises `typer.BadParameter`.
    """
    if _SPAN.fullmatch(text.strip()):
        return max(0, now_ms - seconds_of(text, option) * 1000)
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0, int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        known = "4h, 2026-11-27 or 2026-11-27T09:30"
        raise typer.BadParameter(
            f"{text!r} is no moment such as {known}", param_hint=option
        ) from None


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
