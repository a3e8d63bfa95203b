"""`parley sessions stop`: in a line what has come of it."""

from server.terminal.sessions.commands import stop_session
from tests.server.terminal.manage.played import Played


def stopped(*responses: dict[str, str]) -> Played:
    return Played({"POST /sessions/ses_a/stop": {"responses": list(responses)}})


def test_each_answer_is_said_with_how_it_stands() -> None:
    result = stop_session(stopped({"id": "resp_a", "status": "cancelled"}), "ses_a")
    assert result.text == ["resp_a cancelled"]


def test_where_nothing_was_being_answered_that_is_said() -> None:
    result = stop_session(stopped(), "ses_a")
    assert (result.text, result.data) == ("nothing was being answered", [])
