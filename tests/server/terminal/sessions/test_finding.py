"""What `--find` finds, in which way, and how it says so."""

from typing import Any

import pytest

from server.terminal.admin_client import AdminClient, AdminError
from server.terminal.sessions.finding import find_sessions
from tests.server.terminal.sessions.test_table import row

ADA, ADAM = {"id": "usr_1", "name": "Ada King"}, {"id": "usr_2", "name": "Adam"}


class Asked(AdminClient):
    """Answers one request after the other; an error is raised."""

    def __init__(self, *answers: dict[str, Any] | AdminError) -> None:
        self._answers = list(answers)
        self.queries: list[dict[str, Any]] = []

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        assert path == "/sessions"
        self.queries.append(query)
        answer = self._answers.pop(0)
        if isinstance(answer, AdminError):
            raise answer
        return answer


def page(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"sessions": list(rows), "next_cursor": None, **more}


def test_without_a_wish_the_list_is_as_it_is() -> None:
    client = Asked(page(row()), page(row(), row()))
    assert find_sessions(client, "", everything=False).title == "1 session being answered"
    assert find_sessions(client, " ", everything=True).title == "2 sessions"
    assert [query["find"] for query in client.queries] == [None, None]


def test_a_part_of_a_name_is_enough() -> None:
    found = find_sessions(Asked(page(row(), users=[ADA])), "ada", everything=True)
    assert (found.title, len(found.rows)) == ("1 session of Ada King", 1)
    found = find_sessions(Asked(page(users=[ADA, ADAM])), "ada", everything=True)
    assert found.title == "0 sessions of 2 users with “ada” in their names"


def test_titles_are_looked_through_where_nobody_has_such_a_name() -> None:
    client = Asked(page(), page(row(), examined=2000, next_cursor="c"))
    found = find_sessions(client, "harb", everything=True)
    assert found.title == "1 session with “harb” in their titles among the 2,000 newest"
    assert client.queries[1]["title"] == "harb"


def test_what_nobody_and_nothing_is_called_is_said_to_be_unknown() -> None:
    found = find_sessions(Asked(page(), page(examined=9)), "zz", everything=True)
    assert (found.title, found.is_known) == ("nobody's name, no id, and no title has “zz”", False)


def test_who_may_not_see_titles_is_not_told_that_none_fits() -> None:
    found = find_sessions(Asked(page(), AdminError("no", 403)), "zz", everything=True)
    assert (found.title, found.is_known) == ("nobody's name, and no id, has “zz”", False)
    with pytest.raises(AdminError):
        find_sessions(Asked(page(), AdminError("away", 503)), "zz", everything=True)
