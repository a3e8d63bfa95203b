"""What admins set and see of quotas: groups, users' own, tokens with a purpose; on two workers."""

import asyncio
from typing import Any

import pytest

from tests.end_to_end.clients.http_client import Http, code_of, fresh_key
from tests.end_to_end.clients.operators import answering, audit, new_user
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_word

HOSTILE = '<img src=x onerror="alert(1)">'
UNKNOWN_GROUP = "grp_" + "A" * 22
SHORT = {"on_busy": "queue", "settings": {"max_output_tokens": 1}}
ANY = {"tokens_per_day": None, "sessions": None, "answers": None}


async def new_group(admin: Http, **quotas: int) -> dict[str, Any]:
    answer = await admin.post("/v1/admin/groups", {"name": "Physics", "quotas": quotas})
    assert answer.status_code == 201, answer.text
    group: dict[str, Any] = answer.json()
    return group


async def join(admin: Http, group: dict[str, Any], user: dict[str, Any]) -> None:
    answer = await admin.ask("PUT", f"/v1/admin/groups/{group['id']}/members/{user['id']}")
    assert answer.status_code == 200, answer.text


async def test_a_group_is_made_changed_listed_and_removed_and_each_is_audited(
    two_workers: Server, admin: Http
) -> None:
    group = await new_group(admin, tokens_per_day=50)
    assert group["quotas"] == {**ANY, "tokens_per_day": 50}
    path = f"/v1/admin/groups/{group['id']}"
    body = {"name": f" {HOSTILE}\u202e\n", "quotas": {"answers": 2}}
    changed = (await admin.ask("PATCH", path, json=body)).json()
    assert (changed["name"], changed["quotas"]) == (HOSTILE, {**ANY, "answers": 2})
    assert (await admin.get(path)).json() == changed
    assert changed in (await admin.get("/v1/admin/groups")).json()["groups"]
    ada = await new_user(admin)
    await join(admin, group, ada)
    (member,) = (await admin.get(f"{path}/members")).json()["users"]
    assert (member["id"], member["group"]) == (ada["id"], group["id"])
    assert (await admin.ask("DELETE", f"{path}/members/{ada['id']}")).status_code == 204
    assert code_of(await admin.ask("DELETE", f"{path}/members/{ada['id']}")) == (404, "not_found")
    await join(admin, group, ada)
    assert (await admin.ask("DELETE", path)).status_code == 204
    assert code_of(await admin.get(path)) == (404, "not_found")
    assert (await admin.get(f"/v1/admin/users/{ada['id']}")).json()["group"] is None
    assert await audit(admin, group["id"]) == [
        "group.delete",
        "group.join",
        "group.leave",
        "group.join",
        "group.update",
        "group.create",
    ]


async def test_a_group_is_found_by_a_part_of_its_name_or_its_id(admin: Http) -> None:
    made = [(await admin.post("/v1/admin/groups", {"name": f"Sought {n}"})).json() for n in "123"]
    found = (await admin.get("/v1/admin/groups", params={"find": "ought", "limit": 2})).json()
    assert (found["groups"], found["found"], found["next_cursor"]) == (made[:2], 3, None)
    for text, groups in ((made[2]["id"], [made[2]]), (UNKNOWN_GROUP, []), (HOSTILE * 3, [])):
        found = (await admin.get("/v1/admin/groups", params={"find": text})).json()
        assert (found["groups"], found["found"]) == (groups, len(groups))
    refused = await admin.get("/v1/admin/groups", params={"find": "x" * 201})
    assert code_of(refused) == (400, "invalid_field")
    for group in made:
        await admin.ask("DELETE", f"/v1/admin/groups/{group['id']}")


async def test_a_group_without_a_name_is_refused_as_such(two_workers: Server, admin: Http) -> None:
    refused = await admin.post("/v1/admin/groups", {"name": " "})
    assert code_of(refused) == (400, "invalid_field")
    assert refused.json()["error"]["message"] == "a name is needed"


async def test_members_are_refused_by_name_of_the_quota(two_workers: Server, admin: Http) -> None:
    group = await new_group(admin, tokens_per_day=1, sessions=1)
    ada = await new_user(admin)
    await join(admin, group, ada)
    async with Http(two_workers, ada["token"]) as http:
        session = (await http.new_session())["id"]
        refused = await http.post("/v1/sessions", headers=fresh_key())
        assert code_of(refused) == (429, "quota_exceeded")
        assert refused.json()["error"]["quota"] == "group.sessions"
        path = f"/v1/sessions/{session}/responses"
        refused = await http.post(path, {"input": oracle_word(1)}, headers=fresh_key())
        assert code_of(refused) == (429, "quota_exceeded")
        assert refused.json()["error"]["quota"] == "group.tokens_per_day"
        chat = {"messages": [{"role": "user", "content": oracle_word(1)}], "max_tokens": 2}
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        refused = await http.post("/v1/chat/completions", {"model": model, **chat})
        assert refused.status_code == 429
    shown = (await admin.get(f"/v1/admin/groups/{group['id']}")).json()
    assert (shown["members"], shown["sessions"], shown["tokens_today"]) == (1, 1, 0)
    assert shown["tokens_held"] == 0


async def test_a_users_own_quotas_are_set_and_taken_back(two_workers: Server, admin: Http) -> None:
    ada = await new_user(admin)
    assert ada["quotas"] == ANY and ada["group"] is None
    path = f"/v1/admin/users/{ada['id']}"
    limited = (await admin.ask("PATCH", path, json={"quotas": {"sessions": 1}})).json()
    assert limited["quotas"] == {**ANY, "sessions": 1}
    async with Http(two_workers, ada["token"]) as http:
        await http.new_session()
        refused = await http.post("/v1/sessions", headers=fresh_key())
        assert refused.json()["error"]["quota"] == "user.sessions"
    freed = (await admin.ask("PATCH", path, json={"quotas": {}})).json()
    assert freed["quotas"] == ANY
    assert (await audit(admin, ada["id"]))[:2] == ["user.update", "user.update"]


@pytest.mark.parametrize("whose", ["user", "group"])
async def test_a_quota_that_is_new_counts_the_answers_that_run_already(
    two_workers: Server, admin: Http, whose: str
) -> None:
    ada, group = await new_user(admin), await new_group(admin, answers=1)
    async with Client(two_workers, token=ada["token"]) as client:
        _, response = await answering(client)
        if whose == "user":
            path = f"/v1/admin/users/{ada['id']}"
            await admin.ask("PATCH", path, json={"quotas": {"answers": 1}})
        else:
            await join(admin, group, ada)
        async with Http(two_workers, ada["token"]) as http:
            session = (await http.new_session())["id"]
            path = f"/v1/sessions/{session}/responses"
            async with asyncio.timeout(PATIENCE):
                while True:  # within seconds at the worker that has not made the change
                    refused = await http.post(path, {"input": "5", **SHORT}, headers=fresh_key())
                    if refused.status_code != 202:
                        break
                    await asyncio.sleep(0.1)
            assert refused.json()["error"]["quota"] == f"{whose}.answers"
        await client.send("stop", response_id=response)
        await client.done(response)


async def test_the_list_of_quotas_has_a_users_own_and_those_of_the_group(admin: Http) -> None:
    ada, group = await new_user(admin), await new_group(admin, tokens_per_day=50, sessions=3)
    await join(admin, group, ada)
    path = f"/v1/admin/users/{ada['id']}"
    await admin.ask("PATCH", path, json={"quotas": {"tokens_per_day": 40, "answers": 0}})
    (row, *_) = (
        one
        for one in (await admin.get("/v1/admin/quotas")).json()["quotas"]
        if one["user"]["id"] == ada["id"]
    )
    settings = {one["name"]: one["value"] for one in await settings_of(admin)}
    most = int(settings["PARLEY_MAX_SESSIONS_PER_USER"])
    assert row["limits"] == {"tokens_per_day": 40, "sessions": most, "answers": None}
    assert row["group"] == {
        "id": group["id"],
        "name": "Physics",
        "limits": {"tokens_per_day": 50, "sessions": 3, "answers": None},
        "sessions": 0,
        "tokens_today": 0,
        "tokens_held": 0,
    }
    (local, *_) = (await admin.get("/v1/admin/quotas")).json()["quotas"]
    assert (local["user"]["id"], local["group"]) == ("local", None)
    assert local["limits"]["sessions"] == most


async def settings_of(admin: Http) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await admin.get("/v1/admin/settings")).json()["settings"]
    return listed


async def test_a_token_says_what_it_is_for(admin: Http) -> None:
    ada = await new_user(admin, purpose="her laptop")
    path = f"/v1/admin/users/{ada['id']}"
    made = (
        await admin.post(f"{path}/tokens", {"purpose": f"{HOSTILE}\n", "expires_in_s": 60})
    ).json()
    assert made["purpose"] == HOSTILE and made["expires_at"] > ada["created_at"]
    purposes = [one["purpose"] for one in (await admin.get(path)).json()["tokens"]]
    assert sorted(purposes) == sorted([HOSTILE, "her laptop"])


@pytest.mark.parametrize(
    "body",
    [
        {"name": " "},
        {"name": "x", "quotas": {"answers": -1}},
        {"name": "x", "quotas": {"answers": "2"}},
        {"name": "x" * 101},
        {},
    ],
)
async def test_a_group_that_makes_no_sense_is_refused(admin: Http, body: dict[str, Any]) -> None:
    assert code_of(await admin.post("/v1/admin/groups", body)) == (400, "invalid_field")


async def test_what_does_not_exist_is_not_found(admin: Http) -> None:
    ada = await new_user(admin)
    path = f"/v1/admin/groups/{UNKNOWN_GROUP}/members/{ada['id']}"
    assert code_of(await admin.ask("PUT", path)) == (404, "not_found")
    group = await new_group(admin)
    path = f"/v1/admin/groups/{group['id']}/members/usr_{'A' * 22}"
    assert code_of(await admin.ask("PUT", path)) == (404, "not_found")
