"""What users did with an older version, so that its data has something of everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.end_to_end.clients.http_client import Http, admin_token, fresh_key
from tests.end_to_end.frames.raw import log_in, login_path
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.owned_answer import run_of
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import oracle_word

GREEDY = {"temperature": 0, "max_output_tokens": 12}
LONG = {"temperature": 0, "max_output_tokens": 400}  # its text is stored compressed
STOPPED = {"temperature": 0, "max_output_tokens": 2000}
INTERRUPTED = {"temperature": 0, "max_output_tokens": 200}
RUNNING = {"temperature": 0, "max_output_tokens": 600}
SEEDED = {"temperature": 1.5, "seed": 7, "max_output_tokens": 8, "logprobs": 2, "stop": ["t99"]}
ADAPTER = "calm"


# ---- what 0.1.0 had already ----------------------------------------------------------------------


async def use(server: Server) -> dict[str, Any]:
    """Chats with branches, a stopped answer, a fork, an import, a share link, users, a cookie."""
    admin = admin_token(server)
    async with Http(server) as http, Http(server, admin) as operator, Client(server) as client:
        branched = await client.new_session()
        first = await answer_id(client, await client.ask(branched, oracle_word(1), settings=GREEDY))
        again = await client.reply(
            "response.create",
            session_id=branched,
            idempotency_key="again",
            regenerate_of=first,
            settings=GREEDY,
        )
        await answer_id(client, again["response"]["id"])
        edited = await client.ask(branched, oracle_word(60), settings=GREEDY, parent_id=None)
        await answer_id(client, edited)
        await client.reply("session.update", session_id=branched, title="Drei Äste", pinned=True)

        stopped = await client.new_session()
        cut = await stopped_answer(client, stopped, 5)

        long = await client.new_session()
        await answer_id(client, await client.ask(long, oracle_word(9), settings=LONG))
        shared = await http.post(f"/v1/sessions/{long}/share")
        fork = await http.post(
            f"/v1/sessions/{branched}/fork", {"message_id": first}, headers=fresh_key()
        )
        export = (await http.get(f"/v1/sessions/{branched}/export?format=json")).json()
        imported = await http.post("/v1/sessions/import", export, headers=fresh_key())
        assert shared.status_code in (200, 201) and imported.status_code == 201
        created = await operator.post("/v1/admin/users", {"name": "Ada"})
        assert created.status_code == 201, created.text
        async with Http(server, created.json()["token"]) as ada:
            await ada.new_session(title="Ada's")
            her_sessions = (await ada.get("/v1/sessions")).json()
        share_path = shared.json()["path"]
        sessions = {branched, stopped, long, fork.json()["id"], imported.json()["id"]}
        return {
            "her_token": created.json()["token"],
            "her_sessions": her_sessions,
            "cookie": await log_in(server),
            "login_path": await login_path(server),
            "share_path": share_path,
            "logs": logs(server, (cut, edited)),
            "answers": answers(server, ("/v1/sessions", share_path), sessions),
            **await seen_by_admins(operator),
        }


async def answer_id(client: Client, response_id: str) -> str:
    """Wait for the end of a response; the id of its message."""
    answer = await client.done(response_id)
    assert answer.done is not None
    await client.next("message.updated")
    return str(answer.done["response"]["message_id"])


async def stopped_answer(client: Client, session: str, word: int) -> str:
    """An answer that its user stopped: its id."""
    response = await client.ask(session, oracle_word(word), settings=STOPPED)
    await client.deltas(response, 5)
    await client.send("stop", response_id=response)
    await client.done(response)
    return response


def logs(server: Server, responses: Iterable[str]) -> dict[str, str]:
    """The events of these answers, by their ids."""
    return {
        each: server.get(f"/v1/responses/{each}?stream=true&starting_after=0")[1].decode()
        for each in responses
    }


def answers(server: Server, paths: Iterable[str], sessions: Iterable[str]) -> dict[str, Any]:
    """What these paths and sessions show now, by path."""
    sessions = sorted(sessions)
    of_sessions = ("", "/messages", "/export?format=json")
    return {
        path: server.get_json(path)
        for path in (
            *paths,
            *(f"/v1/sessions/{each}{what}" for what in of_sessions for each in sessions),
        )
    }


async def seen_by_admins(operator: Http) -> dict[str, Any]:
    return {
        "users": (await operator.get("/v1/admin/users")).json(),
        "audit": (await operator.get("/v1/admin/audit")).json(),
    }


# ---- what came after 0.1.0 -----------------------------------------------------------------------


async def use_what_came_later(server: Server, expected: dict[str, Any]) -> dict[str, Any]:
    """Presets, queues, an adapter, answers that were steered, continued or outlived a core, users
    who are gone: added to what `use` found.
    """
    admin = admin_token(server)
    async with Http(server) as http, Http(server, admin) as operator, Client(server) as client:
        for name, settings in (("Precise", {"temperature": 0}), ("Würfel", SEEDED)):
            body = {"name": name, "settings": settings, "default": name == "Würfel"}
            assert (await http.ask("PUT", "/v1/presets", json=body)).status_code == 200
        seeded, seeded_answer = await answered(client, 3, **SEEDED)
        settings = {"system": "Count.", "temperature": 0.5, "seed": 11, "on_no_viewers": "continue"}
        await client.reply("session.update", session_id=seeded, settings=settings)
        continued = await continued_answer(client)
        waiting = await paused_queue(client)
        refused = await refused_queue(client)
        steered = await steered_answer(client)
        restarted = await answer_that_outlived_a_core(server, client)
        loaded = await operator.post("/v1/admin/adapters", {"name": ADAPTER})
        assert loaded.status_code == 201, loaded.text
        adapted, _ = await answered(client, 40, temperature=0, max_output_tokens=9, model=ADAPTER)
        asked_again = {"session_id": adapted, "input": oracle_word(41), "idempotency_key": "twice"}
        kept = await client.reply("response.create", **asked_again, settings=GREEDY)
        await answer_id(client, kept["response"]["id"])
        locked, _ = await answered(client, 45, **GREEDY)
        reason = {"reason": "spam", "lock": True}
        evicted = await operator.post(f"/v1/admin/sessions/{locked}/evict", reason)
        assert evicted.status_code == 200, evicted.text
        gone = await people_who_are_gone(operator)
        sessions = (seeded, continued, waiting, refused, steered, restarted, adapted, locked)
        await asyncio.to_thread(settle, server, sessions)
        listed = ("/v1/sessions", "/v1/presets", "/v1/models")
        queues = [f"/v1/sessions/{each}/queue" for each in (waiting, refused)]
        invited = await operator.post(f"/v1/admin/users/{gone.pop('guest')}/login-codes")
        return {
            **expected,
            "invitation": invited.json()["path"],
            "logs": expected["logs"] | logs(server, [seeded_answer]),
            "answers": expected["answers"] | answers(server, (*listed, *queues), sessions),
            "waiting": waiting,
            "refused": refused,
            "asked_again": {"frame": asked_again, "response": kept["response"]["id"]},
            "adapted": adapted,
            "refused_tokens": gone,
        }


async def answered(client: Client, word: int, **settings: object) -> tuple[str, str]:
    """A session of one question and its answer: both ids."""
    session = await client.new_session()
    response = await client.ask(session, oracle_word(word), settings=settings)
    await answer_id(client, response)
    return session, response


async def continued_answer(client: Client) -> str:
    """A session whose answer was cut by its length, and went on."""
    session = await client.new_session()
    cut = await answer_id(client, await client.ask(session, oracle_word(20), settings=GREEDY))
    more = await client.reply(
        "response.create",
        session_id=session,
        idempotency_key="more",
        continue_of=cut,
        settings=GREEDY,
    )
    await answer_id(client, more["response"]["id"])
    return session


async def paused_queue(client: Client) -> str:
    """A session in which two questions wait since a stop."""
    session = await client.new_session()
    response = await client.ask(session, oracle_word(50), settings=STOPPED)
    await client.deltas(response, 3)
    for word in (51, 52):
        await wait_in_queue(client, session, word, GREEDY)
    await client.send("stop", response_id=response)
    await client.done(response)
    await client.wait(
        lambda: any(f["type"] == "queue.updated" and f["queue"]["paused"] for f in client.frames),
        "a pause",
    )
    return session


async def refused_queue(client: Client) -> str:
    """A session with a question that cannot be asked."""
    session = await client.new_session()
    await wait_in_queue(client, session, 55, {"model": "unknown"})
    await client.wait(
        lambda: any(
            frame["type"] == "queue.updated" and "error" in item
            for frame in client.frames
            for item in frame.get("queue", {}).get("items", ())
        ),
        "a refusal",
    )
    return session


async def wait_in_queue(client: Client, session: str, word: int, settings: object) -> None:
    reply = await client.reply(
        "queue.add",
        session_id=session,
        idempotency_key=f"queued-{word}",
        input=oracle_word(word),
        settings=settings,
    )
    assert reply["type"] == "queue.accepted" and reply["status"] == "waiting", reply


async def steered_answer(client: Client) -> str:
    """A session whose answer was given more words while it was written."""
    session = await client.new_session()
    response = await client.ask(session, oracle_word(70), settings=STOPPED)
    await client.deltas(response, 3)
    await client.reply(
        "response.steer",
        previous_response_id=response,
        idempotency_key="steer",
        input=oracle_word(80),
        settings=GREEDY,
    )
    await client.done(await begun_by(client, "steer"))
    return session


async def begun_by(client: Client, key: str) -> str:
    """Wait for the response that this key has begun: its id."""

    def find() -> str | None:
        for frame in client.frames:
            if frame["type"] == "response.created" and frame["idempotency_key"] == key:
                return str(frame["response"]["id"])
        return None

    return str(await client.wait(find, f"the answer to {key}"))


async def answer_that_outlived_a_core(server: Server, client: Client) -> str:
    """A session whose answer says that it was interrupted."""
    session = await client.new_session()
    response = await client.ask(session, oracle_word(30), settings=INTERRUPTED)
    await client.deltas(response, 3)
    server.kill_child("engine.core")
    answer = await client.done(response)
    assert answer.done is not None and answer.done["response"]["restarts"] == 1
    return session


def settle(server: Server, sessions: Iterable[str]) -> None:
    """Wait until no answer is written in any of them, and all is stored."""

    def is_busy(session: str) -> bool:
        return server.get_json(f"/v1/sessions/{session}")["active_response_id"] is not None

    wait_for(lambda: not any(map(is_busy, sessions)))


async def people_who_are_gone(operator: Http) -> dict[str, int | str]:
    """Tokens that are refused, with the status; and the id of a guest who is yet to come."""
    tokens = {}
    people = {}
    for name in ("Disabled", "Revoked", "Guest"):
        created = (await operator.post("/v1/admin/users", {"name": name})).json()
        people[name], tokens[name] = created["id"], created["token"]
    path = "/v1/admin/users/"
    disabled = await operator.ask("PATCH", path + people["Disabled"], json={"disabled": True})
    revoked = await operator.ask("DELETE", f"{path}{people['Revoked']}/tokens")
    assert disabled.status_code == 200 and revoked.status_code in (200, 204)
    return {tokens["Disabled"]: 403, tokens["Revoked"]: 401, "guest": people["Guest"]}


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[dict[str, Any]]:
    """While an answer is written, one waits for it in the session and one in its queue: what is to
    be found again of them, and what admins see by then.

    They are another user's, so that nothing that `answers` holds changes when they go on.
    """
    async with Http(server, admin_token(server)) as operator:
        created = (await operator.post("/v1/admin/users", {"name": "Grace"})).json()
        seen = await seen_by_admins(operator)
    async with Client(server, token=created["token"]) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(100), settings=RUNNING)
        await client.deltas(response, 10)
        await client.ask(session, oracle_word(101), settings=GREEDY, on_busy="queue")
        await wait_in_queue(client, session, 102, GREEDY)
        fields = await run_of(server, response)
        left = {
            "token": created["token"],
            "session": session,
            "response": response,
            "text": client.answers[response].text,
            "fingerprint": fields["model_fingerprint"],
        }
        yield {**seen, "running": left}
        assert client.answers[response].done is None
