"""What the server's API is asked for from the command line of its own machine.

`AdminClient` has the routes of admins, `UserClient` those of the user `local`.
"""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from http import HTTPStatus
from typing import Any

from server.terminal.text import plain_limit

TIMEOUT_SECONDS = 10.0
PAGE = 200


class AdminError(Exception):
    """What went wrong, in one line. `status` is that of HTTP; None: there was no answer. `field` is
    the one of the API whose value the server does not take.
    """

    def __init__(self, message: str, status: int | None = None, field: str = "") -> None:
        super().__init__(message if field in message else f"{field}: {message}")
        self.message, self.status, self.field = message, status, field


class ServerClient:
    """Speaks to one server with a token. Every call may raise `AdminError`."""

    prefix = "/v1"

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.read_seconds = TIMEOUT_SECONDS
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        # Without the proxies of the environment: the token is for this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, **query: str | int | bool | None) -> dict[str, Any]:
        given = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in query.items()
            if value is not None
        }
        return self._ask("GET", f"{path}?{urllib.parse.urlencode(given)}" if given else path)

    def get_all(self, path: str, key: str) -> list[dict[str, Any]]:
        """What stands under `key` on each page."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = self.get(path, limit=PAGE, cursor=cursor)
            found += page[key]
            if (cursor := page["next_cursor"]) is None:
                return found

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        return self._ask("POST", path, {k: v for k, v in body.items() if v is not None})

    def post_once(self, path: str, **body: Any) -> dict[str, Any]:
        """The same, asked again if none can tell whether it was done; it is done once."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        try:
            return self._ask("POST", path, body, headers)
        except AdminError as error:
            if error.status is not None and error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            return self._ask("POST", path, body, headers)

    def put(self, path: str, **body: Any) -> dict[str, Any]:
        return self._ask("PUT", path, body)

    def patch(self, path: str, **body: Any) -> dict[str, Any]:
        return self._ask("PATCH", path, body)

    def delete(self, path: str) -> dict[str, Any]:
        return self._ask("DELETE", path)

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}{self.prefix}{path}", data, self._headers | (headers or {}), method=method
        )
        try:
            seconds = self.read_seconds if method == "GET" else TIMEOUT_SECONDS
            with self._opener.open(request, timeout=seconds) as answer:
                return dict(json.loads(answer.read() or b"{}"))
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AdminError(f"{self.url} does not answer: {_reason(error, method)}") from None


class AdminClient(ServerClient):
    prefix = "/v1/admin"


class UserClient(ServerClient):
    """What a user may do besides chatting: read stored messages, share them."""

    def messages(self, session_id: str) -> list[dict[str, Any]]:
        """The newest of the branch in use, with their whole text."""
        return list(self.get(f"/sessions/{quoted(session_id)}/messages", limit=50)["messages"])

    def share(self, session_id: str) -> str:
        """The address of the session's share link, made or brought up to date."""
        return self.url + str(self.post(f"/sessions/{quoted(session_id)}/share")["path"])

    def unshare(self, session_id: str) -> None:
        self.delete(f"/sessions/{quoted(session_id)}/share")


def quoted(name: str) -> str:
    """A name as one part of a path."""
    return urllib.parse.quote(name, safe="")


def _refusal(error: urllib.error.HTTPError) -> AdminError:
    """In the server's words; how much is allowed, in everybody's."""
    try:
        said = json.loads(error.read())["error"]
        message, field = str(said["message"]), str(said.get("param") or "")
    except (OSError, ValueError, KeyError, TypeError):
        return AdminError(f"the server answered {error.code}", error.code)
    if error.code != HTTPStatus.BAD_REQUEST:
        return AdminError(message, error.code)
    return AdminError(plain_limit(message, in_seconds=field.endswith("_s")), error.code, field)


def _reason(error: Exception, method: str) -> str:
    """Why there is no answer; what was asked may have been done all the same."""
    reason = getattr(error, "reason", error)
    words = getattr(reason, "strerror", None) or str(reason)
    if method == "GET" or isinstance(reason, ConnectionRefusedError):
        return words
    return f"{words}; whether it was done is unknown"
