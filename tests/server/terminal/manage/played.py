"""A server that answers each path with what a test has given."""

from typing import Any

from server.terminal.admin_client import AdminClient, AdminError


class Played(AdminClient):
    """Pages of a path, one after the other, are a list; whatever is asked is kept."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.url = "http://server"
        self._answers = answers
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    def get(self, path: str, **query: str | int | bool | None) -> dict[str, Any]:
        self.asked.append(("GET", path, query))
        return self._answer(path)

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        self.asked.append((method, path, body or {}))
        return self._answer(f"{method} {path}")

    def _answer(self, what: str) -> dict[str, Any]:
        if what not in self._answers:
            raise AdminError(f"nobody has said what {what} is", 404)
        answer = self._answers[what]
        return dict(answer.pop(0) if isinstance(answer, list) else answer)
