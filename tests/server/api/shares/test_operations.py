"""Share links for anybody: how often and how much at once, and what a reader holds."""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient
from starlette.types import Message

from server.access import rates
from server.access.rates import Places
from server.api.rest.operation import ApiContext, Call, routes_of
from server.api.shares import operations as share_operations
from server.api.shares.operations import HeldStream, ShareOperations
from sessions.model.errors import ShareNotFound
from sessions.store.shares import Share
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

pytestmark = pytest.mark.row("B63")


LINE = b'{"role":"user","content":[{"type":"text","text":"<b>"}],"status":"failed"}'
SHARE = Share("shr_x", "<i>", 7, zlib.compress(LINE + b"\n" + LINE + b"\n"), "ada")


@pytest.fixture
def client() -> TestClient:
    context: Any = ApiContext(*(MagicMock() for _ in ApiContext._fields))
    context = context._replace(static=StaticFiles(directory=ROOT / "static"))
    context.services.store.shares.get = AsyncMock(return_value=SHARE)
    context.authenticator.identities.is_known = AsyncMock(return_value=True)
    context.authenticator.renamed_cookie = MagicMock(return_value=[])
    shares = ShareOperations(context)
    return TestClient(Starlette(routes=routes_of(shares.operations(), context)))


def test_programs_get_json_and_browsers_a_page(client: TestClient) -> None:
    body = client.get("/s/x").json()
    assert (body["id"], body["title"], body["shared_at"]) == ("shr_x", "<i>", 7)
    assert [message["content"][0]["text"] for message in body["messages"]] == ["<b>"] * 2
    page = client.get("/s/x", headers={"Accept": "text/html"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text.count("&lt;b&gt;") == 2


def test_a_link_that_shows_nothing_is_a_page_for_people_and_an_error_for_programs(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Call, "path", MagicMock(side_effect=ShareNotFound))
    assert client.get("/s/x").json()["error"]["code"] == "not_found"
    page = client.get("/s/x", headers={"Accept": "text/html"})
    assert page.status_code == 404 and "This link shows no chat" in page.text
    assert page.headers["x-robots-tag"] == "noindex, nofollow"


def test_an_address_reads_so_often(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "time", SimpleNamespace(monotonic=lambda: 1000.0))  # it stands
    answers = [client.get("/s/x") for _ in range(50)]  # a burst of two seconds
    statuses = [answer.status_code for answer in answers]
    assert statuses[:20] == [200] * 20 and 429 in statuses
    refused = answers[statuses.index(429)]
    assert refused.json()["error"]["code"] == "rate_limited"
    assert refused.headers["retry-after"] == "1"
    page = client.get("/s/x", headers={"Accept": "text/html"})
    assert page.status_code == 429 and page.headers["retry-after"] == "1"
    assert "Try again in a moment" in page.text


async def read(places: Places, how: str) -> None:
    """Have a place and read a stream that never ends, until it does."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x"

    async def receive() -> Message:
        if how != "leaves":
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    with contextlib.ExitStack() as place:
        place.enter_context(places.one("somewhere"))
        stream = HeldStream(endless(), place=place.pop_all())
    await stream({"type": "http"}, receive, send)


async def test_who_reads_too_slowly_is_cut_and_the_place_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_operations, "READ_SECONDS", 0.05)
    places = Places("readers", per_owner=1, in_all=1)
    with pytest.raises(ClientDisconnect):
        await read(places, "waits")
    with places.one("somewhere"):
        pass


async def test_who_leaves_gives_the_place_back() -> None:
    places = Places("readers", per_owner=1, in_all=1)
    async with asyncio.timeout(PATIENCE):
        await read(places, "leaves")
    with places.one("somewhere"):
        pass
