"""The table of quotas in the terminal."""

from typing import Any

from server.terminal.manage.users import quotas_table

LIMITS = {"sessions_per_user": 10, "tokens_per_day": None}


def printed(own: dict[str, int | None] | None) -> list[str]:
    """What one user has who keeps three sessions and has used seven tokens."""
    user = {"id": "usr_a", "name": "Ada"}
    rows: list[dict[str, Any]] = [{"user": user, "sessions": 3, "tokens_today": 7}]
    users = {} if own is None else {"usr_a": {**user, "quotas": own}}
    (row,) = quotas_table(LIMITS, rows, users).rows
    return [word for cell in row for word in cell.text.split()]


def test_who_has_no_quotas_of_their_own_has_those_of_the_settings() -> None:
    nothing: dict[str, int | None] = {"sessions": None, "tokens_per_day": None, "answers": None}
    for own in (None, nothing):  # None: of a user who is built in
        assert printed(own) == ["Ada", "3", "of", "10", "7"]


def test_a_users_own_quotas_stand_in_the_place_of_the_settings() -> None:
    assert printed({"sessions": 4, "tokens_per_day": 9}) == "Ada 3 of 4 7 of 9".split()
    assert printed({"sessions": 0, "tokens_per_day": None}) == ["Ada", "3", "7"]
