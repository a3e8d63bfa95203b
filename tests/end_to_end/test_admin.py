"""What admins may see and do, through real doors, on two workers."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from server import admin_objects
from tests.end_to_end.harness import Client, Server
from tests.end_to_end.http_client import Http, admin_token, ask_and_follow, code_of
from tests.end_to_end.raw import ask, log_in, request
from tests.tiny_model import oracle_word

SETTINGS = {"temperature": 0, "max_output_tokens": 2000}  # at 100 tokens/s: longer than any test
UNKNOWN = "ses_" + "A" * 22


@pytest.fixture
def pair(two_workers: Server) -> Server:
    """Two workers of one server."""
    return two_workers


@pytest.fixture
async def admin(pair: Server) -> AsyncIterator[Http]:
    async with Http(pair, admin_token(pair)) as http:
        yield http


async def new_user(admin: Http, **body: Any) -> dict[str, Any]:
    answer = await admin.post("/v1/admin/users", {"name": "Ada", **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def audit(admin: Http, target: str) -> list[str]:
    """The actions on this target, the newest first."""
    answer = await admin.get("/v1/admin/audit?limit=200")
    return [entry["action"] for entry in answer.json()["entries"] if entry["target"] == target]


@asynccontextmanager
async def on_both_workers(server: Server, token: str | None = None) -> AsyncIterator[list[Client]]:
    """One client on each worker: the kernel chooses, so it is asked until both have come up."""
    async with AsyncExitStack() as stack:
        found: dict[str, Client] = {}
        while len(found) < 2:
            client = await stack.enter_async_context(Client(server, token=token))
            replica = (await client.next("connection.ready"))["replica"]
            found.setdefault(replica, client)
        yield list(found.values())


async def answering(client: Client) -> tuple[str, str]:
    """A session with an answer that is being written."""
    session_id = await client.new_session()
    response_id = await client.ask(session_id, oracle_word(0), settings=SETTINGS)
    await client.deltas(response_id, 2)
    return session_id, response_id


# ---- users and tokens ---------------------------------------------------------------------------


async def test_a_new_users_token_opens_every_door_and_shows_only_their_own(
    pair: Server, admin: Http
) -> None:
    user = await new_user(admin, name=" Ada\u202e\n Lovelace ")
    assert user["name"] == "Ada Lovelace" and user["roles"] == ["user"]
    async with Client(pair, token=user["token"]) as client:
        ready = await client.next("connection.ready")
        assert ready["user"] == {"id": user["id"], "name": "Ada Lovelace", "roles": ["user"]}
        session_id = await client.new_session()
    async with Http(pair, user["token"]) as theirs, Http(pair) as local:
        assert (await theirs.get(f"/v1/sessions/{session_id}")).status_code == 200
        assert code_of(await local.get(f"/v1/sessions/{session_id}")) == (404, "session_not_found")


async def test_a_token_can_be_read_once_and_is_in_no_list(pair: Server, admin: Http) -> None:
    user = await new_user(admin)
    for path in ("/v1/admin/users", f"/v1/admin/users/{user['id']}", "/v1/admin/audit"):
        assert user["token"] not in (await admin.get(path)).text
    listed = (await admin.get(f"/v1/admin/users/{user['id']}")).json()
    assert [token["kind"] for token in listed["tokens"]] == ["token"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": ""}, "name"),
        ({"name": "\u200f \n"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": 1}, "name"),
        ({"roles": ["root"]}, "roles"),
        ({"roles": "admin"}, "roles"),
        ({"scopes": ["everything"]}, "scopes"),
        ({"scopes": ["admin"]}, "scopes"),
        ({"expires_in_s": 0}, "expires_in_s"),
        ({"expires_in_s": 1.5}, "expires_in_s"),
    ],
)
async def test_a_user_that_makes_no_sense_is_refused(
    admin: Http, body: dict[str, Any], param: str
) -> None:
    answer = await admin.post("/v1/admin/users", {"name": "Ada", **body})
    assert code_of(answer) == (400, "invalid_field")
    assert answer.json()["error"]["param"] == param


async def test_nobody_gives_a_scope_that_they_lack(pair: Server, admin: Http) -> None:
    helper = await new_user(admin, roles=["user", "admin"], scopes=["admin"])
    async with Http(pair, helper["token"]) as http:
        body = {"name": "Eve", "roles": ["admin"], "scopes": ["admin:transcripts"]}
        assert code_of(await http.post("/v1/admin/users", body)) == (403, "forbidden")
        path = f"/v1/admin/users/{helper['id']}/tokens"
        body = {"scopes": ["admin", "admin:transcripts"]}
        assert code_of(await http.post(path, body)) == (403, "forbidden")


async def test_an_admin_invites_a_user_by_a_login_link(pair: Server, admin: Http) -> None:
    user = await new_user(admin)
    answer = await admin.post(f"/v1/admin/users/{user['id']}/login-codes")
    login = await ask(pair, request(pair, path=answer.json()["path"]))
    cookie = (login.header("set-cookie") or "").partition(";")[0]
    shown = await ask(pair, request(pair, path="/v1/sessions", headers=[("Cookie", cookie)]))
    assert shown.status == 200
    kinds = (await admin.get(f"/v1/admin/users/{user['id']}")).json()["tokens"]
    assert {token["kind"] for token in kinds} == {"token", "cookie"}


async def test_p2_a_users_own_login_link_is_theirs_and_nobody_elses(
    pair: Server, admin: Http
) -> None:
    user = await new_user(admin)
    async with Http(pair, user["token"]) as theirs:
        session_id = (await theirs.new_session())["id"]
        code = (await theirs.post("/v1/login-codes")).json()
    login = await ask(pair, request(pair, path=code["path"]))
    set_cookie = login.header("set-cookie") or ""
    parts = {part.strip().lower() for part in set_cookie.split(";")[1:]}
    assert {"httponly", "samesite=lax", "path=/", f"max-age={7 * 86_400}"} <= parts
    cookie = [("Cookie", set_cookie.partition(";")[0])]
    listed = await ask(pair, request(pair, path="/v1/sessions", headers=cookie))
    assert [one["id"] for one in json.loads(listed.body)["sessions"]] == [session_id]
    again = await ask(pair, request(pair, path=code["path"]))
    assert again.status == 401


@pytest.mark.parametrize("change", ["revoke", "revoke_all", "disable", "role", "delete"])
async def test_c12_what_ends_a_users_rights_closes_their_sockets_on_every_worker(
    pair: Server, admin: Http, change: str
) -> None:
    user = await new_user(admin)
    one = f"/v1/admin/users/{user['id']}"
    async with on_both_workers(pair, user["token"]) as sockets:
        session_id, _ = await answering(sockets[0])
        await sockets[1].reply("session.subscribe", session_id=session_id)
        began = time.monotonic()
        match change:
            case "revoke":
                (token,) = (await admin.get(one)).json()["tokens"]
                answer = await admin.ask("DELETE", f"{one}/tokens/{token['id']}")
            case "revoke_all":
                answer = await admin.ask("DELETE", f"{one}/tokens")
            case "disable":
                answer = await admin.ask("PATCH", one, json={"disabled": True})
            case "role":
                answer = await admin.ask("PATCH", one, json={"roles": ["user", "admin"]})
            case "delete":
                answer = await admin.ask("DELETE", one)
        assert answer.status_code in (200, 204), answer.text
        assert [await socket.closed() for socket in sockets] == [4401, 4401]
        assert time.monotonic() - began < 5
    async with Http(pair, user["token"]) as http:
        status = (await http.get("/v1/sessions")).status_code
    assert status == (200 if change == "role" else 401)
    await admin.post(f"/v1/admin/sessions/{session_id}/stop")


async def test_c12_a_stream_over_http_ends_with_its_users_rights(pair: Server, admin: Http) -> None:
    user = await new_user(admin)
    async with Http(pair, user["token"]) as http:
        session_id = (await http.new_session())["id"]
    headers = {"Idempotency-Key": os.urandom(8).hex()}
    path = f"/v1/sessions/{session_id}/responses"
    async with Http(pair, user["token"]) as http:
        stream = http._client.stream(
            "POST",
            path,
            json={"input": oracle_word(0), "settings": SETTINGS},
            headers={**headers, "Accept": "text/event-stream"},
        )
        async with stream as answer, asyncio.timeout(10):
            lines = answer.aiter_lines()
            async for line in lines:
                if line == "event: response.output_text.delta":
                    break
            await admin.ask("DELETE", f"/v1/admin/users/{user['id']}/tokens")
            last = [line async for line in lines if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "token_invalid"
    await admin.post(f"/v1/admin/sessions/{session_id}/stop")


async def test_an_expired_token_is_told_apart_and_closes_open_sockets(
    pair: Server, admin: Http
) -> None:
    user = await new_user(admin, expires_in_s=3)
    async with Client(pair, token=user["token"]) as client:
        await client.send("ping", t=1)
        assert await client.closed() == 4401
        assert client.socket.close_reason == "token_expired"
    async with Client(pair, token=user["token"]) as late:
        assert await late.closed() == 4401
        assert late.socket.close_reason == "token_expired"
    async with Http(pair, user["token"]) as http:
        assert code_of(await http.get("/v1/sessions")) == (401, "token_expired")


async def test_p31_a_deleted_user_leaves_nothing(pair: Server, admin: Http) -> None:
    user = await new_user(admin)
    async with Client(pair, token=user["token"]) as client:
        session_id, response_id = await answering(client)
        idle = await client.new_session()
        assert (await admin.ask("DELETE", f"/v1/admin/users/{user['id']}")).status_code == 204
        assert await client.closed() == 4401
    assert (await admin.get(f"/v1/admin/users/{user['id']}")).status_code == 404
    for gone in (session_id, idle):
        assert (await admin.get(f"/v1/admin/sessions/{gone}")).status_code == 404
    assert (await admin.get(f"/v1/admin/responses/{response_id}")).status_code == 404
    listed = (await admin.get(f"/v1/admin/sessions?user={user['id']}")).json()
    assert listed["sessions"] == []
    assert (await audit(admin, user["id"]))[0] == "user.delete"


# ---- who may be an admin ------------------------------------------------------------------------


async def test_b58_the_admins_doors_open_to_an_admins_bearer_token_alone(
    pair: Server, admin: Http
) -> None:
    path = "/v1/admin/sessions"
    user = await new_user(admin, roles=["user", "admin"])  # the role, and no scope
    cookie = await log_in(pair)
    forbidden = [[("Authorization", f"Bearer {token}")] for token in (pair.token, user["token"])]
    for headers in forbidden:
        answer = await ask(pair, request(pair, path=path, headers=headers))
        assert (answer.status, answer.error["code"]) == (403, "forbidden")
    unknown = [[], [("Cookie", cookie)], [("Cookie", f"parley={admin_token(pair)}")]]
    for headers in unknown:
        answer = await ask(pair, request(pair, path=path, headers=headers))
        assert (answer.status, answer.error["code"]) == (401, "token_invalid")


async def test_b58_a_thousand_wrong_tokens_are_slowed_down_with_one_log_line(
    pair: Server, admin: Http
) -> None:
    elsewhere = httpx2.AsyncHTTPTransport(local_address="127.0.0.2")  # the other tests' is not it
    headers = {"Authorization": "Bearer " + "wrong" * 8}
    path = pair.url + "/v1/admin/stats"
    async with httpx2.AsyncClient(transport=elsewhere, headers=headers, timeout=30) as guesser:
        statuses = [(await guesser.get(path)).status_code for _ in range(30)]
        for _ in range(10):
            answers = await asyncio.gather(*(guesser.get(path) for _ in range(97)))
            statuses += [answer.status_code for answer in answers]
    assert len(statuses) == 1000 and set(statuses) == {401, 429}
    assert 10 <= statuses.count(401) <= 20  # ten for each worker
    assert 1 <= pair.log().count("wrong admin token") <= 2
    assert "wrong" * 8 not in pair.log()
    assert (await admin.get("/v1/admin/stats")).status_code == 200


async def test_b61_a_transcript_needs_its_scope_and_is_audited(pair: Server, admin: Http) -> None:
    helper = await new_user(admin, roles=["admin"], scopes=["admin"])
    async with Client(pair) as client:
        session_id = await client.new_session()
        response_id = await client.ask(
            session_id, oracle_word(0), settings={"temperature": 0, "max_output_tokens": 5}
        )
        await client.done(response_id)
    path = f"/v1/admin/sessions/{session_id}"
    async with Http(pair, helper["token"]) as http:
        assert code_of(await http.get(f"{path}/messages")) == (403, "forbidden")
        assert oracle_word(0).strip() not in (await http.get(path)).text  # nor in the title
        assert (await http.get(path)).json()["session"]["title"] is None
    assert await audit(admin, session_id) == []
    messages = (await admin.get(f"{path}/messages")).json()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert await audit(admin, session_id) == ["session.read"]


async def test_an_admin_observes_a_session_read_only_and_audited(pair: Server, admin: Http) -> None:
    helper = await new_user(admin, roles=["admin"], scopes=["admin"])
    async with on_both_workers(pair, admin_token(pair)) as watchers, Client(pair) as client:
        session_id, response_id = await answering(client)
        async with Client(pair, token=helper["token"]) as blind:
            refused = await blind.reply("session.subscribe", session_id=session_id, observe=True)
            assert refused["error"]["code"] == "forbidden"
        for watcher in watchers:
            subscribed = await watcher.reply(
                "session.subscribe", session_id=session_id, observe=True
            )
            assert subscribed["active_responses"] == [response_id]
            await watcher.deltas(response_id, 1)
            refused = await watcher.reply("stop", response_id=response_id)
            assert refused["error"]["code"] == "response_not_found"
        assert await audit(admin, session_id) == ["session.observe"] * 2
        await client.reply("stop", response_id=response_id)
        await client.done(response_id)


# ---- sessions -----------------------------------------------------------------------------------


async def test_the_list_says_who_answers_what_where(pair: Server, admin: Http) -> None:
    user = await new_user(admin, name="Grace")
    async with Client(pair, token=user["token"]) as client:
        replica = (await client.next("connection.ready"))["replica"]
        session_id, response_id = await answering(client)
        await client.deltas(response_id, 8)
        await asyncio.sleep(0)
        (row,) = (await admin.get(f"/v1/admin/sessions?user={user['id']}")).json()["sessions"]
        assert row["user"] == {"id": user["id"], "name": "Grace"}
        assert (row["id"], row["state"], row["viewers"]) == (session_id, "in_progress", 1)
        run = row["response"]
        assert (run["id"], run["replica"], run["fence"]) == (response_id, replica, 1)
        assert run["tokens"] > 0 and run["age_ms"] > 0
        for query in ("active=true", f"replica={replica}", f"id={session_id}", f"id={response_id}"):
            listed = (await admin.get(f"/v1/admin/sessions?{query}&user={user['id']}")).json()
            assert [one["id"] for one in listed["sessions"]] == [session_id], query
        assert (await admin.get("/v1/admin/sessions?replica=none")).json()["sessions"] == []
        stopped = await admin.post(f"/v1/admin/sessions/{session_id}/stop", {"reason": "enough"})
        assert stopped.json()["responses"] == [
            {"id": response_id, "status": "cancelled", "reason": "admin_cancelled"}
        ]
        answer = await client.done(response_id)
        assert answer.done is not None
        assert answer.done["response"]["status_details"] == {
            "reason": "admin_cancelled",
            "by": "admin",
        }
    assert await audit(admin, session_id) == ["session.stop"]
    (row,) = (await admin.get(f"/v1/admin/sessions?user={user['id']}")).json()["sessions"]
    assert (row["state"], row["response"]) == ("idle", None)


async def test_a_stop_reaches_the_worker_that_answers(pair: Server, admin: Http) -> None:
    async with on_both_workers(pair) as clients:
        for client in clients:  # whichever worker hears the admin, one of these is elsewhere
            session_id, response_id = await answering(client)
            queued = await client.ask(session_id, oracle_word(7), on_busy="queue")
            stopped = await admin.post(f"/v1/admin/sessions/{session_id}/stop")
            assert stopped.status_code == 200
            assert {one["id"] for one in stopped.json()["responses"]} == {response_id, queued}
            for one in (response_id, queued):
                answer = await client.done(one)
                assert answer.done is not None
                assert answer.done["response"]["status"] == "cancelled"


async def test_c11_an_eviction_closes_every_viewer_and_ends_the_answers(
    pair: Server, admin: Http
) -> None:
    async with on_both_workers(pair) as viewers, Client(pair) as bystander:
        session_id, response_id = await answering(viewers[0])
        await viewers[1].reply("session.subscribe", session_id=session_id)
        other, theirs = await answering(bystander)
        path = f"/v1/admin/sessions/{session_id}/evict"
        assert code_of(await admin.post(path)) == (400, "invalid_field")
        answer = await admin.post(path, {"reason": "spam\u202e", "lock": True})
        assert answer.status_code == 200, answer.text
        for viewer in viewers:
            assert await viewer.closed() == 4410
            assert viewer.socket.close_reason == "spam"
            evicted = next(f for f in viewer.frames if f["type"] == "session.evicted")
            assert (evicted["by"], evicted["reason"]) == ("admin", "spam")
        done = viewers[0].answers[response_id].done
        assert done is not None
        assert done["response"]["status_details"]["reason"] == "admin_cancelled"
        await bystander.deltas(theirs, bystander.answers[theirs].num_deltas + 2)
        await bystander.reply("stop", session_id=other)
        await bystander.done(theirs)
    async with Client(pair) as client:
        await client.reply("session.subscribe", session_id=session_id)
        refused = await client.reply(
            "response.create", session_id=session_id, idempotency_key="k1", input="again"
        )
        assert refused["error"]["code"] == "session_locked"
        assert (await admin.post(f"/v1/admin/sessions/{session_id}/unlock")).status_code == 204
        answered = await client.ask(session_id, oracle_word(0), settings={"max_output_tokens": 2})
        await client.done(answered)
    actions = ["session.unlock", "session.evict_and_lock"]
    assert await audit(admin, session_id) == actions


async def test_c11_an_eviction_ends_streams_over_http(pair: Server, admin: Http) -> None:
    async with Http(pair) as http:
        session_id = (await http.new_session())["id"]
    async with ask_and_follow(pair, session_id, oracle_word(0), settings=SETTINGS) as stream:
        await stream.next("response.output_text.delta")
        await admin.post(f"/v1/admin/sessions/{session_id}/evict", {"reason": "spam"})
        await stream.next("response.done", "error")


async def test_the_timeline_of_an_answer_outlives_its_run(pair: Server, admin: Http) -> None:
    async with Client(pair) as client:
        session_id, response_id = await answering(client)
        await client.reply("stop", response_id=response_id)
        await client.done(response_id)
    read = (await admin.get(f"/v1/admin/responses/{response_id}")).json()
    assert (read["status"], read["reason"], read["engine"]) == (
        "cancelled",
        "client_cancelled",
        "released",
    )
    moments = read["timeline"]
    assert list(moments) == [
        "created_at",
        "started_at",
        "first_token_at",
        "cancel_at",
        "aborted_at",
        "done_at",
    ]
    # The engine may be free before Redis has noted the wish: both happen at once.
    for stopped in ("cancel_at", "aborted_at"):
        assert moments["created_at"] <= moments["started_at"] <= moments["first_token_at"]
        assert moments["first_token_at"] <= moments[stopped] <= moments["done_at"]
    details = (await admin.get(f"/v1/admin/sessions/{session_id}")).json()
    assert [one["id"] for one in details["responses"]] == [response_id]


@pytest.mark.parametrize("session_id", ["*", "ses_x", UNKNOWN, "{a}", "..", "%00", "A" * 5000])
async def test_b59_an_id_that_is_none_is_not_found(admin: Http, session_id: str) -> None:
    path = f"/v1/admin/sessions/{session_id}"
    asked = [
        await admin.get(path),
        await admin.get(f"{path}/messages"),
        await admin.post(f"{path}/stop"),
        await admin.post(f"{path}/evict", {"reason": "spam"}),
        await admin.get(f"/v1/admin/responses/{session_id}"),
        await admin.get(f"/v1/admin/users/{session_id}"),
        await admin.post(f"/v1/admin/replicas/{session_id}/drain"),
    ]
    assert {answer.status_code for answer in asked} == {404}


async def test_b59_looking_while_a_session_is_deleted_gives_all_or_nothing(
    pair: Server, admin: Http
) -> None:
    async with Client(pair) as client:
        for _ in range(5):
            session_id, _ = await answering(client)
            looks = [
                asyncio.create_task(admin.get(f"/v1/admin/sessions/{session_id}"))
                for _ in range(10)
            ]
            await client.reply("session.delete", session_id=session_id)
            for answer in await asyncio.gather(*looks):
                assert answer.status_code in (200, 404)
                if answer.status_code == 200:
                    assert answer.json()["session"]["id"] == session_id


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", "cursor={}", "active=perhaps", "user=a&user=b"]
)
async def test_a_filter_that_makes_no_sense_is_refused(admin: Http, query: str) -> None:
    assert code_of(await admin.get(f"/v1/admin/sessions?{query}")) == (400, "invalid_field")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/sessions", admin_objects.ListedSessions),
        ("/sessions?active=true", admin_objects.ListedSessions),
        ("/sessions/{session_id}", admin_objects.SessionDetails),
        ("/responses/{response_id}", admin_objects.ResponseTimeline),
        ("/users", admin_objects.UserPage),
        ("/users/{uid}", admin_objects.UserDetails),
        ("/quotas", admin_objects.UsedQuotas),
        ("/replicas", admin_objects.Replicas),
        ("/audit", admin_objects.AuditPage),
        ("/stats", admin_objects.Stats),
    ],
)
async def test_answers_are_what_the_openapi_document_says(
    pair: Server, admin: Http, path: str, kind: type[Any]
) -> None:
    user = await new_user(admin)
    async with Client(pair, token=user["token"]) as client:
        session_id, response_id = await answering(client)
        names = {"session_id": session_id, "response_id": response_id, "uid": user["id"]}
        answer = await admin.get("/v1/admin" + path.format(**names))
        msgspec.convert(answer.json(), kind)
        await client.reply("stop", response_id=response_id)
        await client.done(response_id)


# ---- workers ------------------------------------------------------------------------------------


async def test_workers_are_listed_with_their_figures(pair: Server, admin: Http) -> None:
    async with on_both_workers(pair) as clients:
        served = {client.frames[0]["replica"] for client in clients}
    replicas = (await admin.get("/v1/admin/replicas")).json()["replicas"]
    assert {replica["id"] for replica in replicas} == served
    for replica in replicas:
        assert (replica["draining"], replica["engine"]) == (0, "ok")
        assert replica["pid"] > 0 and replica["host"] and replica["version"]
    stats = (await admin.get("/v1/admin/stats?range=24h")).json()
    assert stats["live"]["replicas"] == 2 and stats["range"] == "24h"
    assert code_of(await admin.get("/v1/admin/stats?range=1y")) == (400, "invalid_field")


async def test_a_worker_that_is_told_to_drain_restarts_and_its_answers_go_on(
    pair: Server, admin: Http
) -> None:
    async with on_both_workers(pair) as (client, other):
        replica = next(f for f in client.frames if f["type"] == "connection.ready")["replica"]
        session_id = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 60}
        response_id = await client.ask(session_id, oracle_word(0), settings=settings)
        await other.reply("session.subscribe", session_id=session_id)
        path = f"/v1/admin/replicas/{replica}/drain"
        assert (await admin.post(path, {"reason": "upgrade"})).status_code == 202
        await client.next("connection.draining")
        answer = await other.done(response_id)
        assert answer.done is not None and answer.done["response"]["status"] == "incomplete"
        assert await client.closed() == 1012
    assert await audit(admin, replica) == ["replica.drain"]
