"""What admins manage: audit, share links, a notice to all, settings, workers; on two workers."""

import asyncio
from typing import Any

import httpx2
import pytest

from tests.end_to_end.clients.http_client import Http, ask_and_follow, code_of
from tests.end_to_end.clients.operators import answering, audit, for_new_user, new_user
from tests.end_to_end.frames.raw import RawSocket, request
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.wiring import at_both
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_word

HOSTILE = '<img src=x onerror="alert(1)">'
SHORT = {"temperature": 0, "max_output_tokens": 3}


# ---- the audit log ------------------------------------------------------------------------------


async def test_the_audit_log_is_filtered_and_paged(admin: Http) -> None:
    users = [await new_user(admin, name=f"user {number}") for number in range(3)]
    one = users[1]
    await admin.ask("PATCH", f"/v1/admin/users/{one['id']}", json={"disabled": True})

    async def entries(**query: Any) -> list[dict[str, Any]]:
        page = await admin.ask("GET", "/v1/admin/audit", params={"limit": 200, **query})
        assert page.status_code == 200, page.text
        found: list[dict[str, Any]] = page.json()["entries"]
        return found

    assert [e["action"] for e in await entries(target=one["id"])] == ["user.update", "user.create"]
    assert [e["action"] for e in await entries(target=one["id"], action="user.c*")] == [
        "user.create"
    ]
    assert await entries(target=one["id"], action="user.delete") == []
    assert await entries(actor="usr_" + "x" * 22) == []
    (created, *_) = await entries(target=users[0]["id"])
    assert created in await entries(since=created["at"], until=created["at"], action="user.create")
    assert created not in await entries(since=created["at"] + 1)
    assert created not in await entries(until=created["at"] - 1)
    page = (await admin.get("/v1/admin/audit?limit=1&action=user.create")).json()
    rest = (
        await admin.get(f"/v1/admin/audit?limit=1&action=user.create&cursor={page['next_cursor']}")
    ).json()
    assert page["entries"][0]["target"] == users[2]["id"]
    assert rest["entries"][0]["target"] == one["id"]


async def test_the_audit_log_says_what_is_called_how_now_and_what_changed_in_plain_json(
    two_workers: Server, admin: Http
) -> None:
    ada = await new_user(admin, name="Ada")
    group = (await admin.post("/v1/admin/groups", {"name": "Crew"})).json()
    member = f"/v1/admin/groups/{group['id']}/members/{ada['id']}"
    assert (await admin.ask("PUT", member)).status_code == 200
    async with Http(two_workers, ada["token"]) as http:
        session = (await http.new_session())["id"]
    await admin.post(f"/v1/admin/sessions/{session}/stop", {"reason": ada["id"]})
    change = {"name": HOSTILE, "roles": ["user", "admin"], "disabled": False}
    path = f"/v1/admin/users/{ada['id']}"
    await admin.ask("PATCH", path, json={**change, "quotas": {"sessions": 5}})

    async def newest(target: str) -> dict[str, Any]:
        page = await admin.get("/v1/admin/audit", params={"limit": 1, "target": target})
        entry: dict[str, Any] = page.json()["entries"][0]
        assert (entry["actor"], entry["actor_name"]) == ("admin", "admin")
        return entry

    of_user, of_group, of_session = [await newest(id) for id in (ada["id"], group["id"], session)]
    assert (of_user["target_name"], of_user["user"]) == (HOSTILE, None)
    assert of_user["reason"] == (
        r'name="<img src=x onerror=\"alert(1)\">" roles=["user","admin"] disabled=false '
        'quotas={"tokens_per_day":null,"sessions":5,"answers":null}'
    )
    assert (of_group["action"], of_group["target_name"]) == ("group.join", "Crew")
    assert of_group["user"] == {"id": ada["id"], "name": HOSTILE}
    assert (of_session["target_name"], of_session["user"]) == (None, of_group["user"])
    assert (await admin.ask("DELETE", path)).status_code == 204
    gone = [await newest(id) for id in (ada["id"], group["id"], session)]
    assert [one["target_name"] for one in gone] == [None, "Crew", None]
    assert [one["user"] for one in gone] == [None, {"id": ada["id"], "name": None}, None]


# ---- share links, storage -----------------------------------------------------------------------


async def test_share_links_are_listed_without_the_link_and_taken_back(
    two_workers: Server, admin: Http
) -> None:
    server = await for_new_user(two_workers)
    async with Http(server) as http:
        session = (await http.new_session(title=HOSTILE))["id"]
        async with ask_and_follow(server, session, oracle_word(1), settings=SHORT) as stream:
            await stream.next("response.done")
        share = (await http.post(f"/v1/sessions/{session}/share")).json()
        listed = await admin.get("/v1/admin/shares")
        (shown,) = [one for one in listed.json()["shares"] if one["session_id"] == session]
        assert (shown["title"], shown["user"]["name"]) == (HOSTILE, "Ada")
        assert share["id"] not in listed.text
        path = f"/v1/admin/shares/{session}"
        assert (await http.get(f"/s/{share['id']}")).status_code == 200
        assert (await admin.ask("DELETE", path)).status_code == 204
        assert (await http.get(f"/s/{share['id']}")).status_code == 404
        assert code_of(await admin.ask("DELETE", path)) == (404, "not_found")
        assert session not in (await admin.get("/v1/admin/shares")).text
        assert (await audit(admin, session))[-1] == "share.revoke"


async def test_titles_of_share_links_need_the_scope_for_transcripts(
    two_workers: Server, admin: Http
) -> None:
    server = await for_new_user(two_workers)
    async with Http(server) as http:
        session = (await http.new_session(title="My diary"))["id"]
        await http.post(f"/v1/sessions/{session}/share")
    other = await new_user(admin, roles=["admin"], scopes=["admin"])
    async with Http(two_workers, other["token"]) as http:
        listed = await http.get("/v1/admin/shares")
        assert session in listed.text and "diary" not in listed.text


async def test_what_a_user_stores_is_added_up(two_workers: Server, admin: Http) -> None:
    user = await new_user(admin)
    async with Http(two_workers, user["token"]) as http:
        for _ in range(2):
            session = (await http.new_session())["id"]
        server = await for_new_user(two_workers)
        server.token = user["token"]
        async with ask_and_follow(server, session, oracle_word(1), settings=SHORT) as stream:
            await stream.next("response.done")
        stored = (await admin.get(f"/v1/admin/users/{user['id']}/storage")).json()
    assert (stored["sessions"], stored["counted"], stored["messages"]) == (2, 2, 2)
    assert stored["bytes"] > 100 and stored["tokens_today"] >= SHORT["max_output_tokens"]
    unknown = f"/v1/admin/users/usr_{'A' * 22}/storage"
    assert code_of(await admin.get(unknown)) == (404, "not_found")
    assert (await admin.get("/v1/admin/users/local/storage")).status_code == 200


# ---- who floods ---------------------------------------------------------------------------------


async def test_who_asks_most_is_named_and_disabling_them_ends_all_of_it(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin, name=HOSTILE)
    async with at_both(two_workers, token=user["token"]) as sockets:
        asked = [await answering(socket) for socket in sockets]
        async with asyncio.timeout(PATIENCE):
            while True:
                told = (await admin.get("/v1/admin/busiest")).json()
                rows = [row for row in told["users"] if row["user"]["id"] == user["id"]]
                if rows and (rows[0]["connections"], rows[0]["answers"]) == (2, 2):
                    break
                await asyncio.sleep(0.05)  # workers say it twice a second
        assert rows[0]["user"]["name"] == HOSTILE
        assert sum(row["connections"] for row in told["addresses"]) >= 2
        path = f"/v1/admin/users/{user['id']}"
        assert (await admin.ask("PATCH", path, json={"disabled": True})).status_code == 200
        for _, response in asked:
            ended = (await admin.get(f"/v1/admin/responses/{response}")).json()
            assert (ended["status"], ended["reason"]) == ("cancelled", "admin_cancelled")
        assert {await socket.closed() for socket in sockets} == {4403}
    assert (await audit(admin, user["id"]))[:2] == ["user.update", "user.create"]


# ---- a notice to all users ----------------------------------------------------------------------


async def test_a_notice_is_shown_on_every_page_at_once_and_to_those_who_come_later(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)
    async with Client(two_workers) as first, Client(two_workers, token=user["token"]) as second:
        body = {"text": f"{HOSTILE}\u202e\n", "level": "warning", "expires_in_s": 600}
        shown = (await admin.ask("PUT", "/v1/admin/notice", json=body)).json()["notice"]
        assert (shown["text"], shown["level"], shown["by"]) == (HOSTILE, "warning", "admin")
        for client in (first, second):
            notice = (await client.next("notice.updated"))["notice"]
            assert notice == {name: value for name, value in shown.items() if name != "by"}
        assert (await admin.get("/v1/admin/notice")).json()["notice"] == shown
        async with asyncio.timeout(PATIENCE):
            async with Client(two_workers) as late:
                assert (await late.next("notice.updated"))["notice"]["id"] == shown["id"]
        assert (await admin.ask("DELETE", "/v1/admin/notice")).status_code == 204
        for client in (first, second):
            assert (await client.next("notice.updated"))["notice"] is None
    assert code_of(await admin.ask("DELETE", "/v1/admin/notice")) == (404, "not_found")
    assert (await audit(admin, ""))[:3] == ["notice.delete", "notice.delete", "notice.put"]


@pytest.mark.parametrize(
    "body",
    [
        {"text": "x"},
        {"text": " \n", "expires_in_s": 5},
        {"text": "x", "expires_in_s": 0},
        {"text": "x" * 501, "expires_in_s": 5},
        {"text": "x", "expires_in_s": 5, "level": "loud"},
    ],
)
async def test_a_notice_that_makes_no_sense_is_refused(admin: Http, body: dict[str, Any]) -> None:
    answer = await admin.ask("PUT", "/v1/admin/notice", json=body)
    assert code_of(answer) == (400, "invalid_field")


# ---- settings, workers --------------------------------------------------------------------------


async def test_the_settings_are_shown_as_they_run_without_secrets(
    two_workers: Server, admin: Http
) -> None:
    answer = await admin.get("/v1/admin/settings")
    shown = {one["name"]: one for one in answer.json()["settings"]}
    assert shown["PARLEY_WORKERS"]["value"] == "2"
    assert shown["PARLEY_WORKERS"]["origin"] in ("environment", "option")
    assert shown["PARLEY_LOG_LEVEL"]["about"] and shown["PARLEY_MAX_BYTES_PER_SESSION"]["value"]
    assert two_workers.token not in answer.text


async def test_a_worker_logs_more_until_it_is_told_otherwise(admin: Http) -> None:
    (replica, *_) = (await admin.get("/v1/admin/replicas")).json()["replicas"]
    path = f"/v1/admin/replicas/{replica['id']}/log-level"
    for level in ("debug", replica["log_level"]):
        answer = await admin.post(path, {"level": level, "reason": "to look"})
        assert (answer.status_code, answer.json()["level"]) == (202, level)
        await says(admin, replica["id"], level)
    assert (await audit(admin, replica["id"]))[:2] == ["replica.log_level"] * 2
    assert code_of(await admin.post(path, {"level": "loud"})) == (400, "invalid_field")
    unknown = "/v1/admin/replicas/nobody/log-level"
    assert code_of(await admin.post(unknown, {"level": "debug"})) == (404, "not_found")


async def says(admin: Http, replica: str, level: str) -> None:
    """Return when the worker says so of itself."""
    async with asyncio.timeout(PATIENCE):
        while True:
            listed = (await admin.get("/v1/admin/replicas")).json()["replicas"]
            if level in [one["log_level"] for one in listed if one["id"] == replica]:
                return
            await asyncio.sleep(0.05)  # it tells Redis, and nobody else


async def test_a_restart_whose_operator_loses_the_right_meanwhile_does_not_happen(
    two_workers: Server, admin: Http
) -> None:
    scopes = ["admin", "admin:operate"]
    operator = await new_user(admin, roles=["user", "admin"], scopes=scopes)
    (replica, *_) = (await admin.get("/v1/admin/replicas")).json()["replicas"]
    body = b'{"reason": "too late"}'
    headers = [
        *(("Authorization", f"Bearer {operator['token']}"), ("Content-Type", "application/json")),
        *(("Content-Length", str(len(body))), ("Expect", "100-continue")),
    ]
    path = f"/v1/admin/replicas/{replica['id']}/restart"
    async with (
        at_both(two_workers, token=operator["token"]) as sockets,
        RawSocket(two_workers) as socket,
    ):
        waiting = await socket.ask(request(two_workers, "POST", path, headers))
        assert waiting.status == 100  # let in, and its body is waited for
        await admin.ask("DELETE", f"/v1/admin/users/{operator['id']}/tokens")
        for other in sockets:  # by then each worker knows
            await other.closed()
        await socket.send(body)
        refused = await socket.answer()
    assert (refused.status, refused.error["code"]) == (401, "token_invalid")
    entries = (await admin.get(f"/v1/admin/audit?target={replica['id']}")).json()["entries"]
    assert "too late" not in [entry["reason"] for entry in entries]
    listed = (await admin.get("/v1/admin/replicas")).json()["replicas"]
    assert replica["pid"] in [one["pid"] for one in listed if not one["draining"]]


@pytest.mark.slow
async def test_a_restart_that_was_accepted_happens_once_although_its_operator_loses_the_right(
    two_workers: Server, admin: Http
) -> None:
    scopes = ["admin", "admin:operate"]
    operator = await new_user(admin, roles=["user", "admin"], scopes=scopes)
    before = (await admin.get("/v1/admin/replicas")).json()["replicas"]
    name = before[0]["id"]
    async with Http(two_workers, operator["token"]) as http:
        answer = await http.post(f"/v1/admin/replicas/{name}/restart", {"reason": "just in time"})
        assert answer.status_code == 202
    await admin.ask("DELETE", f"/v1/admin/users/{operator['id']}/tokens")
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                listed = (await admin.get("/v1/admin/replicas")).json()["replicas"]
            except httpx2.HTTPError:
                listed = before  # it was that worker's connection
            if len(listed) == 2 and name not in [one["id"] for one in listed]:
                break
            await asyncio.sleep(0.1)  # as an operator would
    assert before[1]["id"] in [one["id"] for one in listed]
    assert (await audit(admin, name)).count("replica.restart") == 1


async def test_an_engine_of_a_model_that_is_not_there_is_not_found_and_not_noted(
    admin: Http,
) -> None:
    (engine, *_) = (await admin.get("/v1/admin/health")).json()["engines"]
    path = f"/v1/admin/engines/{engine['name']}"
    before = len(await audit(admin, engine["name"]))
    for deed in ("restart", "drain", "resume"):
        refused = await admin.post(f"{path}/{deed}", {"model": "nobodys"})
        assert code_of(refused) == (404, "model_not_found")
        assert refused.json()["error"]["param"] == "model"
    refused = await admin.ask("DELETE", f"{path}?model=nobodys")
    assert code_of(refused) == (404, "model_not_found")
    assert len(await audit(admin, engine["name"])) == before
