"""`parley users` in the terminal: quotas, storage, and words of strangers."""

import re
from typing import Any

import pytest
import typer

from server.terminal.manage.quotas import GivenQuotas, users_table
from server.terminal.manage.users import NOTHING_OWN, show_storage, show_user, users_list
from server.terminal.tables import Table
from tests.server.terminal.manage.played import Played
from tests.server.terminal.test_tables import HOSTILE

LIMITS = {"sessions_per_user": 10, "tokens_per_day": None}


def user(**changed: Any) -> dict[str, Any]:
    return {
        "id": "usr_a",
        "name": "Ada",
        "roles": ["user"],
        "created_at": 0,
        "disabled": False,
        "group": None,
        "quotas": NOTHING_OWN,
        "tokens": [],
        **changed,
    }


def quotas_row(**own: int | None) -> str:
    """What one user has who keeps three sessions and has used seven tokens."""
    named = {"id": "usr_a", "name": "Ada"}
    row = {"user": named, "sessions": 3, "tokens_today": 7, "own": {**NOTHING_OWN, **own}}
    ((_, *cells),) = users_table(LIMITS, [row]).rows
    return " · ".join(cell.text for cell in cells)


def test_who_has_no_quotas_of_their_own_has_those_of_the_settings() -> None:
    assert quotas_row() == "3 of 10 · 7 · default"


def test_a_users_own_quotas_stand_in_the_place_of_the_settings() -> None:
    assert quotas_row(sessions=4, tokens_per_day=9, answers=2) == "3 of 4 · 7 of 9 · 2"
    assert quotas_row(sessions=0, answers=0) == "3 · 7 · any"


def test_a_quota_that_is_given_changes_and_the_others_stay() -> None:
    own = {"tokens_per_day": 9, "sessions": None, "answers": 2}
    changed = GivenQuotas(sessions="none", answers="default").changed(own, is_group=False)
    assert changed == {"tokens_per_day": 9, "sessions": 0, "answers": None}
    assert GivenQuotas().changed(own, is_group=False) is None


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "", str(2**53)])
def test_what_is_no_quota_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="a number, none or default"):
        GivenQuotas(sessions=text).changed({}, is_group=False)


def test_a_group_has_no_default() -> None:
    with pytest.raises(typer.BadParameter, match="a number or none"):
        GivenQuotas(sessions="default").changed({}, is_group=True)


def test_who_stores_most_comes_first_and_who_stores_nothing_is_not_asked_for() -> None:
    def row(uid: str, sessions: int) -> dict[str, Any]:
        return {"user": {"id": uid, "name": uid[-1]}, "sessions": sessions}

    def stored(uid: str, size: int, counted: int) -> dict[str, Any]:
        return {"user_id": uid, "sessions": 9, "counted": counted, "messages": 2, "bytes": size}

    rows = [row("usr_a", 9), row("usr_b", 0), row("usr_c", 9)]
    client = Played(
        {
            "/quotas": {"quotas": rows, "next_cursor": None},
            "/users/usr_a/storage": stored("usr_a", 5, 9),
            "/users/usr_c/storage": stored("usr_c", 7000, 3),
        }
    )
    table = show_storage(client).text
    assert isinstance(table, Table)
    first, second = ([cell.text for cell in row] for row in table.rows)
    assert first == ["c", "9", "2", "7,000", "of the 3 newest sessions"]
    assert second == ["a", "9", "2", "5", ""]


@pytest.mark.row("B60")
def test_names_and_purposes_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    token = {"id": "t", "kind": "token", "scopes": [], "created_at": 0, "expires_at": None}
    hostile = user(name=HOSTILE, group=HOSTILE, tokens=[{**token, "purpose": HOSTILE}])
    users_list([hostile]).show()
    shown = show_user(Played({"/users/usr_a": hostile}), "usr_a").text
    assert isinstance(shown, Table)
    shown.show()
    text = capsys.readouterr().out
    assert text.count("[bold]x[/]") == 4
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
