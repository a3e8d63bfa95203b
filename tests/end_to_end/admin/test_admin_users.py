"""Whom admins let in, for how long, and who may be an admin, through real doors, on two workers."""

import asyncio
import json
import os
import re
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from redis import Redis

from sessions.model.keys import USER_KEY_MS
from tests.end_to_end.clients.http_client import Http, admin_token, code_of
from tests.end_to_end.clients.operators import SETTINGS, answering, audit, new_user
from tests.end_to_end.frames.raw import (
    RawSocket,
    ask,
    cookie_of,
    elsewhere,
    log_in,
    request,
    submit_login,
)
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.wiring import at_both
from tests.helpers.patience import PATIENCE
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_word

# A user is disabled first, and then deleted: a worker that looks in between says 4403.
GONE = {4401, 4403}


async def test_a_new_users_token_opens_every_door_and_shows_only_their_own(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin, name=" Ada\u202e\n Lovelace ")
    assert user["name"] == "Ada Lovelace" and user["roles"] == ["user"]
    async with Client(two_workers, token=user["token"]) as client:
        ready = await client.next("connection.ready")
        assert ready["user"] == {"id": user["id"], "name": "Ada Lovelace", "roles": ["user"]}
        session_id = await client.new_session()
    async with Http(two_workers, user["token"]) as theirs, Http(two_workers) as local:
        assert (await theirs.get(f"/v1/sessions/{session_id}")).status_code == 200
        assert code_of(await local.get(f"/v1/sessions/{session_id}")) == (404, "session_not_found")


async def test_a_token_can_be_read_once_and_is_in_no_list(two_workers: Server, admin: Http) -> None:
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
        ({"expires_in_s": 1e300}, "expires_in_s"),
    ],
)
async def test_a_user_that_makes_no_sense_is_refused(
    admin: Http, body: dict[str, Any], param: str
) -> None:
    answer = await admin.post("/v1/admin/users", {"name": "Ada", **body})
    assert code_of(answer) == (400, "invalid_field")
    assert answer.json()["error"]["param"] == param


async def test_an_integer_may_be_written_with_a_fraction_of_zero(admin: Http) -> None:
    headers = {"Content-Type": "application/json"}
    body = '{"name": "Ada 2.0", "expires_in_s": 60.0}'
    made = await admin.ask("POST", "/v1/admin/users", content=body, headers=headers)
    assert made.status_code == 201 and made.json()["name"] == "Ada 2.0"
    (token,) = (await admin.get(f"/v1/admin/users/{made.json()['id']}")).json()["tokens"]
    assert token["expires_at"] - token["created_at"] == 60_000


async def test_nobody_gives_a_scope_that_they_lack(two_workers: Server, admin: Http) -> None:
    helper = await new_user(admin, roles=["user", "admin"], scopes=["admin"])
    async with Http(two_workers, helper["token"]) as http:
        body = {"name": "Eve", "roles": ["admin"], "scopes": ["admin:transcripts"]}
        assert code_of(await http.post("/v1/admin/users", body)) == (403, "forbidden")
        path = f"/v1/admin/users/{helper['id']}/tokens"
        body = {"scopes": ["admin", "admin:transcripts"]}
        assert code_of(await http.post(path, body)) == (403, "forbidden")


@pytest.mark.row("B61")
async def test_without_the_scope_for_transcripts_no_admin_logs_in_as_a_user(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)
    helper = await new_user(admin, roles=["user", "admin"], scopes=["admin"])
    path = f"/v1/admin/users/{user['id']}"
    async with Http(two_workers, helper["token"]) as http:
        for door in ("tokens", "login-codes"):
            assert code_of(await http.post(f"{path}/{door}", {})) == (403, "forbidden")
    assert await audit(admin, user["id"]) == ["user.create"]


@pytest.mark.row("P31")
async def test_a_login_link_of_a_deleted_user_brings_nothing_back(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)
    code = (await admin.post(f"/v1/admin/users/{user['id']}/login-codes")).json()
    await admin.ask("DELETE", f"/v1/admin/users/{user['id']}")
    login = await submit_login(two_workers, code["path"], source=elsewhere())
    assert (login.status, login.header("set-cookie")) == (401, None)
    assert code_of(await admin.get(f"/v1/admin/users/{user['id']}")) == (404, "not_found")
    with Redis.from_url(two_workers.redis_url) as redis:
        (left,) = redis.keys(f"*{user['id']}*")
        assert left == b"parley:u:{%s}:i" % user["id"].encode()  # so that no repeat makes it again
        assert 0 < redis.pttl(left) <= USER_KEY_MS


async def test_an_admin_invites_a_user_by_a_login_link(two_workers: Server, admin: Http) -> None:
    user = await new_user(admin)
    answer = await admin.post(f"/v1/admin/users/{user['id']}/login-codes")
    login = await submit_login(two_workers, answer.json()["path"])
    cookie = (login.header("set-cookie") or "").partition(";")[0]
    shown = await ask(
        two_workers, request(two_workers, path="/v1/sessions", headers=[("Cookie", cookie)])
    )
    assert shown.status == 200
    kinds = (await admin.get(f"/v1/admin/users/{user['id']}")).json()["tokens"]
    assert {token["kind"] for token in kinds} == {"token", "cookie"}


@pytest.mark.row("P2")
async def test_a_users_own_login_link_is_theirs_and_nobody_elses(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)
    async with Http(two_workers, user["token"]) as theirs:
        session_id = (await theirs.new_session())["id"]
        code = (await theirs.post("/v1/login-codes")).json()
    login = await submit_login(two_workers, code["path"])
    set_cookie = login.header("set-cookie") or ""
    parts = {part.strip().lower() for part in set_cookie.split(";")[1:]}
    assert {"httponly", "samesite=lax", "path=/", f"max-age={7 * 86_400}"} <= parts
    cookie = [("Cookie", set_cookie.partition(";")[0])]
    listed = await ask(two_workers, request(two_workers, path="/v1/sessions", headers=cookie))
    assert [one["id"] for one in json.loads(listed.body)["sessions"]] == [session_id]
    again = await submit_login(two_workers, code["path"], source=elsewhere())
    assert again.status == 401


@pytest.mark.row("P2", "P6")
@pytest.mark.parametrize("change", ["revoke", "revoke_all", "disable", "delete", "expire"])
async def test_what_ends_a_users_rights_ends_their_login_codes_and_cookies(
    two_workers: Server, admin: Http, change: str
) -> None:
    user = await new_user(admin, expires_in_s=3 if change == "expire" else None)
    one = f"/v1/admin/users/{user['id']}"
    (token,) = (await admin.get(one)).json()["tokens"]
    async with Http(two_workers, user["token"]) as theirs:
        paths = [(await theirs.post("/v1/login-codes")).json()["path"] for _ in range(2)]
    login = await submit_login(two_workers, paths[0])
    lifetime = re.search(r"Max-Age=(\d+)", login.header("set-cookie") or "")
    assert lifetime is not None
    assert int(lifetime[1]) <= 3 if change == "expire" else int(lifetime[1]) == 7 * 86_400
    cookie = [("Cookie", cookie_of(login)), ("Origin", two_workers.url)]
    changed = {"Authorization": None, **dict(cookie)}
    async with RawSocket(two_workers) as socket:
        assert (await socket.upgrade(changed)).status == 101
        await socket.next("connection.ready")
        match change:
            case "revoke":
                await admin.ask("DELETE", f"{one}/tokens/{token['id']}")
            case "revoke_all":
                await admin.ask("DELETE", f"{one}/tokens")
            case "disable":
                await admin.ask("PATCH", one, json={"disabled": True})
            case "delete":
                await admin.ask("DELETE", one)
        await socket.send_frame("ping")
        code, _ = await socket.closed()
        assert code in {"disable": {4403}, "delete": GONE}.get(change, {4401})
    listed = await ask(two_workers, request(two_workers, path="/v1/sessions", headers=cookie))
    assert listed.status == (403 if change == "disable" else 401)
    late = await submit_login(two_workers, paths[1], source=elsewhere())
    assert (late.status, late.header("set-cookie")) == (401, None)


async def test_revoking_a_users_tokens_takes_an_invitation_back(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)
    path = f"/v1/admin/users/{user['id']}"
    invitation = (await admin.post(f"{path}/login-codes")).json()["path"]
    assert (await admin.ask("DELETE", f"{path}/tokens")).json() == {"revoked": 1}
    refused = await submit_login(two_workers, invitation, source=elsewhere())
    assert (refused.status, refused.error["code"]) == (401, "token_invalid")


async def test_a_share_link_shows_nothing_while_its_owner_is_disabled(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)
    one = f"/v1/admin/users/{user['id']}"
    async with Http(two_workers, user["token"]) as theirs:
        session_id = (await theirs.new_session())["id"]
        path = (await theirs.post(f"/v1/sessions/{session_id}/share")).json()["path"]
    shown = await admin.get(path)
    assert shown.status_code == 200
    await admin.ask("PATCH", one, json={"disabled": True})
    for accept in ("application/json", "text/html"):
        unknown = await admin.get("/s/shr_" + "A" * 44, headers={"Accept": accept})
        hidden = await admin.get(path, headers={"Accept": accept})
        assert (hidden.status_code, hidden.content) == (404, unknown.content)
    await admin.ask("PATCH", one, json={"disabled": False})
    assert (await admin.get(path)).json() == shown.json()


async def test_guesses_at_any_door_are_slowed_down_logged_once_and_lock_nobody_out(
    two_workers: Server, admin: Http
) -> None:
    source = elsewhere()
    paths = ("/metrics", "/v1/models", "/v1/sessions", "/v1/admin/stats", "/login?code=x")
    statuses = []
    for path in paths * 12:
        headers = [("Authorization", "Bearer " + "guess" * 8)]
        answer = await ask(two_workers, request(two_workers, path=path, headers=headers), source)
        statuses.append(answer.status)
    assert set(statuses) == {401, 429} and 10 <= statuses.count(401) <= 20  # ten for each worker
    logged = [line for line in two_workers.log(None).splitlines() if "wrong credential" in line]
    assert 1 <= sum(f'"{source}"' in line for line in logged) <= 2
    changed = {"Authorization": "Bearer " + "guess" * 8}
    async with RawSocket(two_workers, source) as socket:
        await socket.upgrade(changed)
        code, reason = await socket.closed()
        assert code == 4429 and reason.startswith("rate_limited;retry_after_ms=")
    # Who shares the address, and comes for the first time, is let in.
    user = await new_user(admin)
    for token in (user["token"], two_workers.token, admin_token(two_workers)):
        async with Http(two_workers, token, source=source) as theirs:
            assert (await theirs.get("/v1/sessions")).status_code == 200


@pytest.mark.row("C12")
@pytest.mark.parametrize("change", ["revoke", "revoke_all", "disable", "role", "delete"])
async def test_what_ends_a_users_rights_closes_their_sockets_on_every_worker(
    two_workers: Server, admin: Http, change: str
) -> None:
    user = await new_user(admin)
    one = f"/v1/admin/users/{user['id']}"
    async with at_both(two_workers, token=user["token"]) as sockets:
        session_id, _ = await answering(sockets[0])
        await sockets[1].reply("session.subscribe", session_id=session_id)
        began = running_time()
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
        codes = {"disable": {4403}, "delete": GONE}.get(change, {4401})
        assert {await socket.closed() for socket in sockets} <= codes
        assert running_time() - began < 5
    async with Http(two_workers, user["token"], source=elsewhere()) as http:
        status = (await http.get("/v1/sessions")).status_code
    assert status == {"role": 200, "disable": 403}.get(change, 401)
    await admin.post(f"/v1/admin/sessions/{session_id}/stop")


@pytest.mark.row("C12")
async def test_a_stream_over_http_ends_with_its_users_rights(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)
    async with Http(two_workers, user["token"]) as http:
        session_id = (await http.new_session())["id"]
    headers = {"Idempotency-Key": os.urandom(8).hex()}
    path = f"/v1/sessions/{session_id}/responses"
    async with Http(two_workers, user["token"]) as http:
        stream = http._client.stream(
            "POST",
            path,
            json={"input": oracle_word(0), "settings": SETTINGS},
            headers={**headers, "Accept": "text/event-stream"},
        )
        async with stream as answer, asyncio.timeout(PATIENCE):
            lines = answer.aiter_lines()
            async for line in lines:
                if line == "event: response.output_text.delta":
                    break
            await admin.ask("DELETE", f"/v1/admin/users/{user['id']}/tokens")
            last = [line async for line in lines if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "token_invalid"
    await admin.post(f"/v1/admin/sessions/{session_id}/stop")


@pytest.mark.row("C12")
@pytest.mark.parametrize("change", ["revoke_all", "disable", "demote", "delete"])
@pytest.mark.parametrize("path", ["/v1/admin/users", "/v1/sessions", "/v1/sessions/import"])
async def test_a_body_that_comes_after_its_senders_rights_ended_does_nothing(
    two_workers: Server, admin: Http, path: str, change: str
) -> None:
    user = await new_user(admin, roles=["user", "admin"], scopes=["admin"])
    one = f"/v1/admin/users/{user['id']}"
    name = os.urandom(8).hex()
    bodies = {
        "/v1/admin/users": {"name": name, "roles": ["user", "admin"], "scopes": ["admin"]},
        "/v1/sessions": {"title": name},
        "/v1/sessions/import": {"format": "parley.session", "version": 1, "messages": []},
    }
    body = json.dumps(bodies[path]).encode()
    headers = [
        *(("Authorization", f"Bearer {user['token']}"), ("Content-Type", "application/json")),
        *(("Content-Length", str(len(body))), ("Idempotency-Key", name)),
        ("Expect", "100-continue"),
    ]
    async with (
        at_both(two_workers, token=user["token"]) as sockets,
        RawSocket(two_workers) as socket,
    ):
        waiting = await socket.ask(request(two_workers, "POST", path, headers))
        assert waiting.status == 100  # let in, and its body is waited for
        match change:
            case "revoke_all":
                answer = await admin.ask("DELETE", f"{one}/tokens")
            case "disable":
                answer = await admin.ask("PATCH", one, json={"disabled": True})
            case "demote":
                answer = await admin.ask("PATCH", one, json={"roles": ["user"]})
            case "delete":
                answer = await admin.ask("DELETE", one)
        assert answer.status_code in (200, 204), answer.text
        for other in sockets:  # by then each worker knows
            await other.closed()
        await socket.send(body)
        refused = await socket.answer()
    assert refused.status in (401, 403), refused
    assert refused.error["code"] in ("token_invalid", "forbidden")
    users = (await admin.get("/v1/admin/users?limit=200")).json()["users"]
    assert name not in {user["name"] for user in users}
    listed = (await admin.get(f"/v1/admin/sessions?user={user['id']}")).json()
    assert listed["sessions"] == []


async def test_an_expired_token_is_told_apart_and_closes_open_sockets(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin, expires_in_s=3)
    async with Client(two_workers, token=user["token"]) as client:
        await client.send("ping", t=1)
        assert await client.closed() == 4401
        assert client.socket.close_reason == "token_expired"
    async with Client(two_workers, token=user["token"]) as late:
        assert await late.closed() == 4401
        assert late.socket.close_reason == "token_expired"
    async with Http(two_workers, user["token"]) as http:
        assert code_of(await http.get("/v1/sessions")) == (401, "token_expired")


@pytest.mark.row("P31")
async def test_a_deleted_user_leaves_nothing(two_workers: Server, admin: Http) -> None:
    user = await new_user(admin)
    async with Client(two_workers, token=user["token"]) as client:
        session_id, response_id = await answering(client)
        idle = await client.new_session()
        assert (await admin.ask("DELETE", f"/v1/admin/users/{user['id']}")).status_code == 204
        assert await client.closed() in GONE
    assert (await admin.get(f"/v1/admin/users/{user['id']}")).status_code == 404
    for gone in (session_id, idle):
        assert (await admin.get(f"/v1/admin/sessions/{gone}")).status_code == 404
    assert (await admin.get(f"/v1/admin/responses/{response_id}")).status_code == 404
    listed = (await admin.get(f"/v1/admin/sessions?user={user['id']}")).json()
    assert listed["sessions"] == []
    assert (await audit(admin, user["id"]))[0] == "user.delete"


@pytest.mark.row("B58")
async def test_the_admins_doors_open_to_an_admins_bearer_token_alone(
    two_workers: Server, admin: Http
) -> None:
    path = "/v1/admin/sessions"
    user = await new_user(admin, roles=["user", "admin"])  # the role, and no scope
    cookie = await log_in(two_workers)
    forbidden = [
        [("Authorization", f"Bearer {token}")] for token in (two_workers.token, user["token"])
    ]
    for headers in forbidden:
        answer = await ask(two_workers, request(two_workers, path=path, headers=headers))
        assert (answer.status, answer.error["code"]) == (403, "forbidden")
    unknown = [[], [("Cookie", cookie)], [("Cookie", f"parley={admin_token(two_workers)}")]]
    for headers in unknown:
        answer = await ask(two_workers, request(two_workers, path=path, headers=headers))
        assert (answer.status, answer.error["code"]) == (401, "token_invalid")


@pytest.mark.row("B58")
async def test_a_thousand_wrong_tokens_are_slowed_down_with_one_log_line(
    two_workers: Server, admin: Http
) -> None:
    address = elsewhere()
    transport = httpx2.AsyncHTTPTransport(local_address=address)
    headers = {"Authorization": "Bearer " + "wrong" * 8}
    path = two_workers.url + "/v1/admin/stats"
    async with httpx2.AsyncClient(
        transport=transport, headers=headers, timeout=PATIENCE
    ) as guesser:
        statuses = [(await guesser.get(path)).status_code for _ in range(30)]
        for _ in range(10):
            answers = await asyncio.gather(*(guesser.get(path) for _ in range(97)))
            statuses += [answer.status_code for answer in answers]
    assert len(statuses) == 1000 and set(statuses) == {401, 429}
    assert 10 <= statuses.count(401) <= 20  # ten for each worker
    logged = [line for line in two_workers.log(None).splitlines() if "wrong credential" in line]
    assert 1 <= sum(address in line for line in logged) <= 2
    assert "wrong" * 8 not in two_workers.log()
    assert (await admin.get("/v1/admin/stats")).status_code == 200


# ---- adding a user twice ------------------------------------------------------------------------


async def add(admin: Http, key: str, **body: Any) -> httpx2.Response:
    headers = {"Idempotency-Key": key}
    return await admin.ask("POST", "/v1/admin/users", json=body, headers=headers)


async def tokens_of(admin: Http, uid: str) -> list[str]:
    details = (await admin.get(f"/v1/admin/users/{uid}")).json()
    return [one["purpose"] for one in details["tokens"]]


async def test_a_user_is_added_once_for_each_key_and_a_repeat_gets_the_only_token(
    two_workers: Server, admin: Http
) -> None:
    key = uuid4().hex
    first = await add(admin, key, name="Twice Added", purpose="laptop")
    again = await add(admin, key, name="Twice Added", purpose="laptop")
    assert (first.status_code, again.status_code) == (201, 200)
    made, repeated = first.json(), again.json()
    assert repeated["id"] == made["id"] and repeated["token"] != made["token"]
    assert repeated["namesakes"] == made["namesakes"] == []
    assert await tokens_of(admin, made["id"]) == ["laptop"]
    async with Http(two_workers, repeated["token"]) as http:
        assert (await http.get("/v1/sessions")).status_code == 200
    async with Http(two_workers, made["token"]) as http:
        assert code_of(await http.get("/v1/sessions")) == (401, "token_invalid")
    other = await add(admin, key, name="Another")
    assert code_of(other) == (409, "idempotency_key_reused")
    assert await tokens_of(admin, made["id"]) == ["laptop"]
    assert code_of(await add(admin, "no key!", name="x")) == (400, "invalid_field")


async def test_twenty_at_once_with_one_key_add_one_user_with_one_token(
    two_workers: Server, admin: Http
) -> None:
    key = uuid4().hex
    answers = await asyncio.gather(*(add(admin, key, name="Raced") for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    (uid,) = {answer.json()["id"] for answer in answers}
    assert await tokens_of(admin, uid) == [""]
    users = (await admin.get("/v1/admin/users?limit=200")).json()["users"]
    assert [one["id"] for one in users if one["name"] == "Raced"] == [uid]


async def test_a_repeat_gives_no_token_to_whom_one_was_taken_and_brings_nobody_back(
    admin: Http,
) -> None:
    key = uuid4().hex
    made = (await add(admin, key, name="Revoked")).json()
    path = f"/v1/admin/users/{made['id']}"
    await admin.ask("DELETE", f"{path}/tokens")
    assert code_of(await add(admin, key, name="Revoked")) == (409, "idempotency_key_reused")
    assert await tokens_of(admin, made["id"]) == []
    await admin.ask("DELETE", path)
    assert code_of(await add(admin, key, name="Revoked")) == (404, "not_found")
    assert code_of(await admin.get(path)) == (404, "not_found")


async def test_keys_of_two_admins_are_not_the_same(two_workers: Server, admin: Http) -> None:
    helper = await new_user(admin, roles=["user", "admin"], scopes=["admin"])
    key = uuid4().hex
    mine = (await add(admin, key, name="Mine")).json()
    async with Http(two_workers, helper["token"]) as http:
        theirs = await add(http, key, name="Theirs")
    assert theirs.status_code == 201 and theirs.json()["id"] != mine["id"]


async def test_who_is_added_is_told_who_has_such_a_name(admin: Http) -> None:
    first = await new_user(admin, name="Namesake \ufb01eld")
    second = await new_user(admin, name="NAMESAKE FIELD")
    assert (first["namesakes"], second["namesakes"]) == ([], [first["id"]])
    feigned = await new_user(admin, name="Admin")
    assert "admin" in feigned["namesakes"]
    await admin.ask("DELETE", f"/v1/admin/users/{feigned['id']}")
