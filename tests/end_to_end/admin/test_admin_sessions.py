"""What admins see of sessions and do to them, through real doors, on two workers."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from server.api.admin import objects as admin_objects
from server.api.admin.manage.objects import UsedQuotas
from sessions.directory.finding.names import RENEW_SECONDS
from tests.end_to_end.clients.http_client import Http, admin_token, ask_and_follow, code_of
from tests.end_to_end.clients.operators import SETTINGS, answering, audit, new_user
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.wiring import at_both
from tests.helpers.tiny_model import oracle_word

UNKNOWN = "ses_" + "A" * 22


@pytest.mark.row("B61")
async def test_a_transcript_needs_its_scope_and_is_audited(
    two_workers: Server, admin: Http
) -> None:
    helper = await new_user(admin, roles=["admin"], scopes=["admin"])
    async with Client(two_workers) as client:
        session_id = await client.new_session()
        response_id = await client.ask(
            session_id, oracle_word(0), settings={"temperature": 0, "max_output_tokens": 5}
        )
        await client.done(response_id)
    path = f"/v1/admin/sessions/{session_id}"
    async with Http(two_workers, helper["token"]) as http:
        assert code_of(await http.get(f"{path}/messages")) == (403, "forbidden")
        assert oracle_word(0).strip() not in (await http.get(path)).text  # nor in the title
        assert (await http.get(path)).json()["session"]["title"] is None
    assert await audit(admin, session_id) == []
    messages = (await admin.get(f"{path}/messages")).json()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert await audit(admin, session_id) == ["session.read"]


async def test_an_admin_observes_a_session_read_only_and_audited(
    two_workers: Server, admin: Http
) -> None:
    helper = await new_user(admin, roles=["admin"], scopes=["admin"])
    async with (
        at_both(two_workers, token=admin_token(two_workers)) as watchers,
        Client(two_workers) as client,
    ):
        session_id, response_id = await answering(client)
        async with Client(two_workers, token=helper["token"]) as blind:
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


async def test_the_list_says_who_answers_what_where(two_workers: Server, admin: Http) -> None:
    user = await new_user(admin, name="Grace")
    async with Client(two_workers, token=user["token"]) as client:
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


async def test_a_stop_reaches_the_worker_that_answers(two_workers: Server, admin: Http) -> None:
    async with at_both(two_workers) as clients:
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


@pytest.mark.row("B36", "C11")
async def test_an_eviction_closes_every_viewer_and_ends_the_answers(
    two_workers: Server, admin: Http
) -> None:
    async with at_both(two_workers) as viewers, Client(two_workers) as bystander:
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
    async with Client(two_workers) as client:
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


@pytest.mark.row("C11")
async def test_an_eviction_ends_streams_over_http(two_workers: Server, admin: Http) -> None:
    async with Http(two_workers) as http:
        session_id = (await http.new_session())["id"]
    async with ask_and_follow(two_workers, session_id, oracle_word(0), settings=SETTINGS) as stream:
        await stream.next("response.output_text.delta")
        await admin.post(f"/v1/admin/sessions/{session_id}/evict", {"reason": "spam"})
        await stream.next("response.done", "error")


async def test_the_timeline_of_an_answer_outlives_its_run(two_workers: Server, admin: Http) -> None:
    async with Client(two_workers) as client:
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


@pytest.mark.row("B59")
@pytest.mark.parametrize("session_id", ["*", "ses_x", UNKNOWN, "{a}", "..", "%00", "A" * 5000])
async def test_an_admin_finds_nothing_under_a_malformed_id(admin: Http, session_id: str) -> None:
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


@pytest.mark.row("B59")
async def test_looking_while_a_session_is_deleted_gives_all_or_nothing(
    two_workers: Server, admin: Http
) -> None:
    async with Client(two_workers) as client:
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
        ("/quotas", UsedQuotas),
        ("/replicas", admin_objects.Replicas),
        ("/audit", admin_objects.AuditPage),
        ("/stats", admin_objects.Stats),
    ],
)
async def test_answers_are_what_the_openapi_document_says(
    two_workers: Server, admin: Http, path: str, kind: type[Any]
) -> None:
    user = await new_user(admin)
    async with Client(two_workers, token=user["token"]) as client:
        session_id, response_id = await answering(client)
        names = {"session_id": session_id, "response_id": response_id, "uid": user["id"]}
        answer = await admin.get("/v1/admin" + path.format(**names))
        msgspec.convert(answer.json(), kind)
        await client.reply("stop", response_id=response_id)
        await client.done(response_id)


async def test_sessions_are_found_by_name_id_and_with_the_scope_by_title(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin, name="Zoë <b>Halfpenny</b>")
    helper = await new_user(admin, roles=["admin"], scopes=["admin"])
    async with Http(two_workers, user["token"]) as http:
        session_id = (await http.new_session(title="Zephyrs & gales"))["id"]
        begun = await http.begin(session_id, oracle_word(0), settings=SETTINGS)

    async def found(http: Http, **query: str) -> Any:
        answer = await http.get("/v1/admin/sessions", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    by_name = await found(admin, find="halfpen")
    assert [one["id"] for one in by_name["sessions"]] == [session_id]
    assert by_name["users"] == [{"id": user["id"], "name": user["name"]}]
    assert by_name["sessions"][0]["user"]["name"] == user["name"]
    for known in (session_id, begun["id"], user["id"]):
        assert [one["id"] for one in (await found(admin, find=known))["sessions"]] == [session_id]
    live = await found(admin, find="halfpen", active="true")
    assert [one["id"] for one in live["sessions"]] == [session_id]
    assert (await found(admin, find="zephyrs"))["sessions"] == []  # titles are asked for as such
    by_title = await found(admin, title="ZEPHYRS &")
    assert [one["id"] for one in by_title["sessions"]] == [session_id]
    assert by_title["examined"] > 0
    async with Http(two_workers, helper["token"]) as http:
        assert (await found(http, find="halfpen"))["sessions"][0]["title"] is None
        refused = await http.get("/v1/admin/sessions", params={"title": "Zephyrs"})
        assert code_of(refused) == (403, "forbidden")
    async with Http(two_workers, user["token"]) as http:
        await http.post(f"/v1/responses/{begun['id']}/cancel")


async def test_a_new_name_is_found_at_once_whichever_worker_is_asked(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin, name="Old Tidewaiter")

    async def found(http: Http, name: str) -> list[str]:
        answer = await http.get("/v1/admin/sessions", params={"find": name})
        return [one["id"] for one in answer.json()["users"]]

    async with AsyncExitStack() as stack:
        token = admin_token(two_workers)
        connections = [await stack.enter_async_context(Http(two_workers, token)) for _ in range(8)]
        for http in connections:  # now both workers know the old name
            assert await found(http, "tidewaiter") == [user["id"]]
        path = f"/v1/admin/users/{user['id']}"
        await admin.ask("PATCH", path, json={"name": "New Harbourmaster"})
        async with asyncio.timeout(RENEW_SECONDS / 2):  # nobody is read again so soon
            for http in connections:
                while True:
                    if await found(http, "harbourm"):
                        break
                    await asyncio.sleep(0.05)
                assert await found(http, "tidewaiter") == []
