"""The sessions that an operator looks at, or for, asked for as the console's search box asks."""

from http import HTTPStatus
from typing import Any, NamedTuple

from server.terminal.admin_client import AdminClient, AdminError

MAX_ROWS = 50

Row = dict[str, Any]


class Found(NamedTuple):
    """A page of sessions, and which of them these are; or what there is not."""

    rows: list[Row]
    words: str
    is_known: bool = True

    @property
    def title(self) -> str:
        if not self.is_known:
            return self.words
        return f"{len(self.rows)} session{'' if len(self.rows) == 1 else 's'}{self.words}"


def find_sessions(client: AdminClient, wanted: str, *, everything: bool) -> Found:
    """Those that are being answered, or all. With `wanted`: of users with that in their names, or
    by its id; where nobody has such a name, those that have it in their titles.

    Raises `AdminError`.
    """
    wanted = wanted.strip()
    page = client.get("/sessions", limit=MAX_ROWS, active=not everything, find=wanted or None)
    being = "" if everything else " being answered"
    if not wanted:
        return Found(page["sessions"], being)
    if users := page.get("users"):
        return Found(page["sessions"], f" of {_names(users, wanted)}{being}")
    if page["sessions"]:
        return Found(page["sessions"], " by its id")
    return _titled(client, wanted)


def _names(users: list[dict[str, Any]], wanted: str) -> str:
    if len(users) == 1:
        return str(users[0]["name"])
    return f"{len(users)} users with “{wanted}” in their names"


def _titled(client: AdminClient, wanted: str) -> Found:
    """Among the newest alone: no index holds titles. Some tokens may not see them."""
    try:
        page = client.get("/sessions", limit=MAX_ROWS, title=wanted)
    except AdminError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return Found([], f"nobody's name, and no id, has “{wanted}”", is_known=False)
    among = f" among the {page['examined']:,} newest" if page["next_cursor"] else ""
    if page["sessions"]:
        return Found(page["sessions"], f" with “{wanted}” in their titles{among}")
    words = f"nobody's name, no id, and no title{among} has “{wanted}”"
    return Found([], words, is_known=False)
