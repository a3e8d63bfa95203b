"""Thousands of bodies with something wrong in them: each is refused or taken, and nobody notices.

No answer of 5xx, none that is not what its route declares, no traceback in the log, and somebody
else's answer beside them stays whole and exact.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.end_to_end.bodies.families import FAMILIES, Known, Sent
from tests.end_to_end.clients.bystander import streaming_bystander
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.site.harness import Server

AT_ONCE = 6
ROUND = 150  # bodies beside one answer
LEAVES_SECONDS = 5.0  # who waits longer for an answer goes away
SHOWN_BYTES = 1500


async def known_ids(http: Http) -> Known:
    """Something of everything that a body may name."""
    model = (await http.get("/v1/models")).json()["data"][0]["id"]
    known: Known = {"model": [model], "conversation": [], "item": [], "response": []}
    items = [{"role": "user", "content": "t00001 "}, {"role": "assistant", "content": "t00002 "}]
    for _ in range(4):
        made = (await http.post("/v1/conversations", {"items": items})).json()
        page = (await http.get(f"/v1/conversations/{made['id']}/items")).json()
        known["conversation"].append(made["id"])
        known["item"] += [item["id"] for item in page["data"]]
    body = {"model": model, "input": "t00001 ", "max_output_tokens": 2}
    for _ in range(3):
        known["response"].append((await http.post("/v1/responses", body)).json()["id"])
    return known


async def send(http: Http, sent: Sent) -> str:
    """The status, or that the client went away. Raises AssertionError with what was sent."""
    headers = {"Content-Type": "application/json", **sent.headers} if sent.body else sent.headers
    path = quote(sent.path, safe="/%")
    try:
        async with asyncio.timeout(LEAVES_SECONDS):
            answer = await http.ask(
                sent.method, path, content=sent.body, params=sent.query, headers=headers
            )
    except TimeoutError:
        return "left"
    except (AssertionError, ValueError) as error:
        raise AssertionError(f"{error!r} of {_shown(sent)}") from error
    assert answer.status_code < 500, f"{answer.status_code} {answer.text} of {_shown(sent)}"
    assert '"code":"internal"' not in answer.text, f"{answer.text} of {_shown(sent)}"
    return str(answer.status_code)


def _shown(sent: Sent) -> str:
    shown = f"{sent.method} {sent.path} {sent.query} {sent.headers}"
    return f"{shown}, {len(sent.body)} bytes: {sent.body[:SHOWN_BYTES]!r}"


async def attack(server: Server, family: str, count: int, seed: int) -> Counter[str]:
    """So many requests, a few at once, each round beside somebody else's answer."""
    found: Counter[str] = Counter()
    async with Http(server) as http:
        for first in range(0, count, ROUND):
            known = await known_ids(http)  # others are deleted by now
            numbers = iter(range(first, min(count, first + ROUND)))
            async with streaming_bystander(server), asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(_attack(http, family, known, seed, numbers, found))
    return found


async def _attack(
    http: Http, family: str, known: Known, seed: int, numbers: Iterator[int], found: Counter[str]
) -> None:
    for number in numbers:  # each is somebody's
        rng = random.Random(f"{seed}/{family}/{number}")
        found[await send(http, FAMILIES[family](rng, known))] += 1


async def checked(server: Server, family: str, count: int, seed: int) -> None:
    begin = time.monotonic()
    before = len(server.log(None))
    found = await attack(server, family, count, seed)
    log = server.log(None)[before:]
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
    assert sum(found.values()) == count and found["200"] > count / 50, found
    assert found["left"] < count / 50, found  # long answers, and nothing that hangs
    seconds = time.monotonic() - begin
    print(f"{family}: {count} bodies from seed {seed} in {seconds:.0f} s: {dict(found)}")


async def test_bodies_with_something_wrong_in_them_harm_nobody(bodies_server: Server) -> None:
    for family in FAMILIES:
        await checked(bodies_server, family, 40, 1)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
async def test_five_thousand_of_a_family_harm_nobody(bodies_server: Server, family: str) -> None:
    await checked(bodies_server, family, 5000, random.randrange(2**32))
