"""What an operator looks for, as the API's filters of sessions."""

from server.terminal.admin_client import AdminClient
from server.terminal.manage.finding import find_user


def filters_of(client: AdminClient, wanted: str) -> dict[str, str]:
    """An id of a session, a response or a user, or a user's name.

    Raises `AdminError` if nobody has that name.
    """
    wanted = wanted.strip()
    if not wanted:
        return {}
    if wanted.startswith(("ses_", "resp_")):
        return {"id": wanted}
    return {"user": find_user(client, wanted)["id"]}
