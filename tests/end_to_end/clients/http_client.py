"""HTTP as programs speak it: one user's requests, and answers followed as server-sent events.

A followed answer obeys the same rules as on a websocket, and its history is checked alike.
"""

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Self
from unittest.mock import MagicMock

import httpx2
import msgspec
from msgspec import Struct

from server.api.rest.objects import ErrorBody
from server.api.rest.operation import ApiContext
from server.worker.routes import operations
from tests.end_to_end.frames.raw import assert_discreet
from tests.end_to_end.site.client import ChatClient
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE

LISTED = operations(ApiContext(*(MagicMock() for _ in ApiContext._fields)))


def admin_token(server: Server) -> str:
    """The token of another user of the same server."""
    return (server.data_dir / "admin-token").read_text().strip()


class Http:
    """Requests of one user, from `source` if given. Use as an async context manager.

    `transport` is another way to the server, through a proxy.
    """

    def __init__(
        self,
        server: Server,
        token: str | None = None,
        *,
        source: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._server = server
        self._client = httpx2.AsyncClient(
            base_url=server.url,
            headers={"Authorization": f"Bearer {token or server.token}"},
            timeout=PATIENCE,
            trust_env=False,
            transport=transport or httpx2.AsyncHTTPTransport(local_address=source),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        answer = await self._client.request(method, path, **options)
        assert_discreet(self._server, answer.content)
        check_answer(answer)
        return answer

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        return await self.ask("POST", path, json={} if body is None else body, **options)

    async def new_session(self, **body: Any) -> dict[str, Any]:
        answer = await self.post("/v1/sessions", body, headers=fresh_key())
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def begin(self, session_id: str, text: str, **body: Any) -> dict[str, Any]:
        """Begin a response without following it."""
        path = f"/v1/sessions/{session_id}/responses"
        answer = await self.post(path, {"input": text, **body}, headers=fresh_key())
        assert answer.status_code == 202, answer.text
        return dict(answer.json())


def fresh_key() -> dict[str, str]:
    return {"Idempotency-Key": os.urandom(8).hex()}


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    """Status and error code."""
    return answer.status_code, answer.json()["error"]["code"]


def check_answer(answer: httpx2.Response) -> None:
    """Hold an answer against what its operation declares, and so against `/openapi.json`."""
    if answer.status_code >= 400:
        is_page = answer.headers.get("content-type", "").startswith("text/html")
        if is_page:
            assert "text/html" in answer.request.headers["accept"]
        elif answer.content and answer.request.method != "HEAD":
            msgspec.convert(answer.json(), ErrorBody)
        return
    for one in LISTED:
        pattern = re.sub(r"{\w+}", "[^/]+", one.path)
        if one.method == answer.request.method and re.fullmatch(pattern, answer.url.path):
            kind = one.answers.get(answer.status_code)
            assert not one.answers or answer.status_code in one.answers, (one.path, answer)
            if answer.headers.get("content-type", "").startswith("application/json"):
                _check_body(answer.json(), kind if isinstance(kind, tuple) else (kind,))
            return


def _check_body(body: Any, declared: tuple[Any, ...]) -> None:
    """It is what is declared, or one of it; any object where that is not said closely."""
    kinds = [one for one in declared if not isinstance(one, str)]  # media types are
    structs = [one for one in kinds if isinstance(one, type) and issubclass(one, Struct)]
    if len(structs) == len(kinds):
        for kind in structs[:-1]:
            with contextlib.suppress(msgspec.ValidationError):
                msgspec.convert(body, kind)
                return
        for kind in structs[-1:]:
            msgspec.convert(body, kind)


class Event(NamedTuple):
    """One server-sent event."""

    kind: str
    frame: dict[str, Any]
    id: str | None


class EventClient(ChatClient):
    """Follows one answer. Use as an async context manager; `answer` is the HTTP answer.

    `transport` is another way to the server, through a proxy.
    """

    answer: httpx2.Response

    def __init__(
        self,
        server: Server,
        method: str,
        path: str,
        *,
        token: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        **options: Any,
    ) -> None:
        super().__init__(server.history)
        self.events: list[Event] = []
        self.resumes: dict[str, Any] | None = None  # the frame that this request stands for
        self.num_heartbeats = 0
        self._transport = transport
        self._options = options
        headers = {
            "Authorization": f"Bearer {token or server.token}",
            "Accept": "text/event-stream",
            **options.pop("headers", {}),
        }
        self._request = (method, server.url + path, headers)

    async def __aenter__(self) -> Self:
        method, url, headers = self._request
        self._client = httpx2.AsyncClient(
            timeout=PATIENCE, trust_env=False, transport=self._transport
        )
        self._stream = self._client.stream(method, url, headers=headers, **self._options)
        self.answer = await self._stream.__aenter__()
        assert self.answer.status_code == 200, await self.answer.aread()
        self.open_record()
        if self.resumes is not None:
            self.record.sent({"type": "response.resume", **self.resumes})
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
        if self.broken is not None:
            raise self.broken

    async def leave(self) -> None:
        """Go away, whether the stream has ended or not."""
        if self._task.done():
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._close()

    async def _close(self) -> None:
        await self._stream.__aexit__(None, None, None)
        await self._client.aclose()
        await self.end(0)

    @property
    def last_event_id(self) -> str:
        return [event.id for event in self.events if event.id is not None][-1]

    async def _read(self) -> None:
        lines: list[str] = []
        try:
            async for line in self.answer.aiter_lines():
                if line:
                    lines.append(line)
                    continue
                for event in self._parse(lines):
                    self.events.append(event)
                    await self.take(event.frame)
                lines = []
        except AssertionError as broken:
            self.broken = broken
        await self._close()

    def _parse(self, lines: list[str]) -> Iterator[Event]:
        if lines == [": hb"]:
            self.num_heartbeats += 1
            return
        fields = dict(line.split(": ", 1) for line in lines)
        frame = json.loads(fields["data"])
        assert fields["event"] == frame["type"]
        if "id" in fields:
            assert fields["id"] == f"{frame['fence']}.{frame['sequence_number']}"
        yield Event(fields["event"], frame, fields.get("id"))


def follow(
    server: Server,
    response_id: str,
    *,
    last_event_id: str | None = None,
    starting_after: int | None = None,
) -> EventClient:
    """Follow a response that has begun, from a position or from the beginning."""
    path = f"/v1/responses/{response_id}?stream=true"
    fence, after = 1, starting_after or 0
    headers = {}
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
        fence, after = (int(part) for part in last_event_id.split("."))
    elif starting_after is not None:
        path += f"&starting_after={starting_after}"
    client = EventClient(server, "GET", path, headers=headers)
    client.resumes = {"response_id": response_id, "fence": fence, "after_sequence_number": after}
    return client


def ask_and_follow(server: Server, session_id: str, text: str, **body: Any) -> EventClient:
    """Begin a response and follow it; `key`, `token` and `transport` are those of the request."""
    headers = {"Idempotency-Key": body.pop("key", os.urandom(8).hex())}
    ways = {name: body.pop(name, None) for name in ("token", "transport")}
    path = f"/v1/sessions/{session_id}/responses"
    return EventClient(server, "POST", path, json={"input": text, **body}, headers=headers, **ways)
