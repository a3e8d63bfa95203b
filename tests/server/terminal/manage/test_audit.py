"""`parley audit`: its filters, and the pages behind it."""

import re
from typing import Any

import pytest

from server.terminal.commands import print_result
from server.terminal.manage.audit import find_entries, show_audit
from tests.server.terminal.manage.played import Played
from tests.server.terminal.test_tables import HOSTILE


def entry(number: int = 0, **changed: Any) -> dict[str, Any]:
    names = ("actor", "action", "target", "reason", "address")
    named = {"actor_name": None, "target_name": None, "user": None}
    return {"id": str(number), "at": number, **dict.fromkeys(names, "x"), **named, **changed}


def page(*entries: dict[str, Any], cursor: str | None = None) -> dict[str, Any]:
    return {"entries": list(entries), "next_cursor": cursor}


def test_pages_are_read_until_enough_is_found_or_nothing_is_left() -> None:
    client = Played({"/audit": [page(cursor="a"), page(entry(2), cursor="b"), page(entry(1))]})
    assert [one["id"] for one in find_entries(client, 9, action="user.*")] == ["2", "1"]
    queries = [query for _, _, query in client.asked]
    assert [query["cursor"] for query in queries] == [None, "a", "b"]
    assert [query["limit"] for query in queries] == [9, 9, 8]
    assert all(query["action"] == "user.*" for query in queries)
    client = Played({"/audit": [page(entry(3), entry(2), cursor="a")]})
    assert len(find_entries(client, 2)) == 2


def test_who_did_it_is_found_by_name_and_what_is_built_in_as_it_is() -> None:
    users = {"users": [{"id": "usr_a", "name": "Ada"}], "next_cursor": None}
    client = Played({"/users": users, "/audit": page()})
    assert show_audit(client, actor="Ada", since="2026-11-27").text == "Nothing fits."
    _, _, query = client.asked[-1]
    assert (query["actor"], query["since"]) == ("usr_a", 1_795_737_600_000)
    show_audit(client, actor="admin")
    assert client.asked[-1][2]["actor"] == "admin"


def test_what_somebody_did_who_was_removed_is_found_by_their_id() -> None:
    client = Played({"/audit": page()})  # which knows no such user
    show_audit(client, actor="usr_gone")
    assert client.asked[-1][2]["actor"] == "usr_gone"


@pytest.mark.row("B60")
def test_reasons_and_addresses_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("actor", "action", "target", "reason", "address")
    hostile = {**entry(), **dict.fromkeys(names, HOSTILE)}
    print_result(show_audit(Played({"/audit": page(hostile)})), as_json=False)
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 2 and text.count("[bold]x[/]") == len(names)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_names_stand_behind_the_ids_and_can_feign_none(capsys: pytest.CaptureFixture[str]) -> None:
    member, gone = {"id": "usr_b", "name": "Grace (usr_z)"}, {"id": "usr_e", "name": None}
    entries = (
        entry(actor="usr_a", actor_name=HOSTILE, target="grp_c", target_name="Crew", user=member),
        entry(actor="admin", actor_name="admin", target="ses_d", user=gone),
        entry(actor="usr_e", target="ses_f", reason="usr_e", user=gone),
    )
    print_result(show_audit(Played({"/audit": page(*entries)})), as_json=False)
    first, second, third = capsys.readouterr().out.splitlines()[1:]
    assert re.search(r"usr_a \(.*\) +x +grp_c \(Crew\) · usr_b \(Grace \(usr_z\)\)", first)
    assert re.search(r" admin +x +ses_d · usr_e ", second)
    assert re.search(r" usr_e +x +ses_f +x$", third.rstrip())
