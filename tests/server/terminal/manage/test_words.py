"""Groups, share links, the notice and the settings in the terminal, when strangers wrote them."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from server.terminal.commands import Result, print_result
from server.terminal.manage.groups import list_groups, list_members, remove_group
from server.terminal.manage.notice import show_notice
from server.terminal.manage.settings import show_settings
from server.terminal.manage.shares import list_shares
from server.terminal.tables import Table
from tests.server.terminal.manage.played import Played
from tests.server.terminal.manage.test_users import user
from tests.server.terminal.test_tables import HOSTILE

GROUP = {
    "id": "grp_a",
    "name": HOSTILE,
    "members": 1,
    "quotas": {"tokens_per_day": None, "sessions": 1, "answers": None},
    **{"sessions": 1, "tokens_today": 0, "tokens_held": 0},
}
SHARE = {"session_id": "ses_a", "shared_at": 0, "title": HOSTILE}
NOTICE = {"level": "info", "text": HOSTILE, "by": HOSTILE, "until": 0}
SETTING = {"name": "PARLEY_MODEL", "value": HOSTILE, "origin": "option", "about": ""}
PLAYED: dict[str, Any] = {
    "/groups": {"groups": [GROUP], "next_cursor": None},
    "/groups/grp_a": GROUP,
    "/groups/grp_a/members": {"users": [user(name=HOSTILE)], "next_cursor": None},
    "DELETE /groups/grp_a": {},
    "/shares": {
        "shares": [{**SHARE, "user": {"id": "usr_a", "name": HOSTILE}}],
        "next_cursor": None,
    },
    "/notice": {"notice": NOTICE},
    "/settings": {"settings": [SETTING]},
}


@pytest.mark.row("B60")
@pytest.mark.parametrize(
    "command",
    [
        list_groups,
        lambda client: list_members(client, "grp_a"),
        lambda client: remove_group(client, "grp_a"),
        list_shares,
        show_notice,
        show_settings,
    ],
    ids=["groups", "members", "removal", "shares", "notice", "settings"],
)
def test_words_of_strangers_command_no_terminal(
    command: Callable[[Played], Result], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(command(Played(dict(PLAYED))), as_json=False)
    text = capsys.readouterr().out
    assert "[bold]x[/]" in text and len(text.splitlines()) <= 2
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_a_title_that_this_admin_may_not_read_is_hidden() -> None:
    hidden = {**SHARE, "title": None, "user": {"id": "usr_a", "name": None}}
    result = list_shares(Played({"/shares": {"shares": [hidden], "next_cursor": None}}))
    assert isinstance(result.text, Table)
    assert [cell.text for cell in result.text.rows[0]] == [
        "ses_a",
        "usr_a",
        "1970-01-01",
        "(hidden)",
    ]


def test_settings_that_were_changed_are_those_without_their_default() -> None:
    settings = [SETTING, {**SETTING, "origin": "default"}]
    client = Played({"/settings": {"settings": settings}})
    assert show_settings(client, changed=True).data == [SETTING]
    assert show_settings(client).data == settings
