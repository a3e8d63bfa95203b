"""`House`: a worker, and somebody who asks it about conversations."""

import asyncio
from typing import Any

from server.worker.app import Worker
from tests.helpers.patience import PATIENCE
from tests.server.helpers.local_http import Http
from tests.server.helpers.scripted_engine import ScriptedEngine

PATH = "/v1/conversations"
HELLO = {"role": "user", "content": "Hello"}
GOOD = {"role": "assistant", "content": "Good morning"}


class House:
    """Each answer is its status and its body."""

    def __init__(self, worker: Worker, engine: ScriptedEngine) -> None:
        self.worker, self.engine = worker, engine
        self.store = worker.store

    async def ask(
        self, method: str, path: str, body: Any = None, *, query: str = "", **headers: str
    ) -> tuple[int, Any]:
        http = Http(self.worker, method, path, query, body, headers)
        async with asyncio.timeout(PATIENCE):
            answer = await http.body()
        return http.status, answer

    async def made(self, *items: Any, **fields: Any) -> str:
        """The id of a new conversation."""
        status, body = await self.ask("POST", PATH, {"items": list(items), **fields})
        assert status == 200, body
        return str(body["id"])

    async def added(self, conversation: str, *items: Any) -> list[dict[str, Any]]:
        status, body = await self.ask("POST", f"{PATH}/{conversation}/items", {"items": items})
        assert status == 200, body
        data: list[dict[str, Any]] = body["data"]
        return data

    async def page(self, conversation: str, query: str = "") -> Any:
        status, body = await self.ask("GET", f"{PATH}/{conversation}/items", query=query)
        assert status == 200, body
        return body

    async def refused(self, method: str, path: str, body: Any = None, query: str = "") -> Any:
        """Status, code and param of a refusal."""
        status, answer = await self.ask(method, path, body, query=query)
        error = answer["error"]
        return status, error["code"], error.get("param")


def session_of(conversation: str) -> str:
    return "ses_" + conversation.removeprefix("conv_")


def text_of(item: dict[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"])
