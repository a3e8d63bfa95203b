"""Each deed of an admin while Redis is away: refused in words, and not done when Redis is back."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.admin.manage.test_rights import OF_ADMINS
from tests.end_to_end.browser.test_browser_refusals import redis_away
from tests.end_to_end.clients.http_client import Http, admin_token, code_of
from tests.end_to_end.clients.operators import new_user
from tests.end_to_end.site.harness import TESTING, Server
from tests.helpers.patience import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with all that can be operated: two models, two engines each."""
    models = f"one={oracle_model},two={oracle_model}"
    environment = TESTING | {
        "PARLEY_WORKERS": "2",
        "PARLEY_ENGINES": "native*2",
        "PARLEY_PACE": "100",
    }
    server = Server(tmp_path_factory.mktemp("whole") / "data", models, None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


async def listed_again(admin: Http, replica_id: str) -> dict[str, Any]:
    """A worker, as it is once it has told Redis of itself again."""
    async with asyncio.timeout(PATIENCE):
        while True:
            replicas = (await admin.get("/v1/admin/replicas")).json()["replicas"]
            if found := [one for one in replicas if one["id"] == replica_id]:
                return dict(found[0])
            await asyncio.sleep(0.05)  # only the list tells


async def test_what_cannot_be_recorded_is_not_done(whole: Server) -> None:
    async with Http(whole, admin_token(whole)) as admin:
        ada = await new_user(admin)
        group = (await admin.post("/v1/admin/groups", {"name": "team"})).json()
        async with Http(whole, ada["token"]) as http:
            session = (await http.new_session())["id"]
            await http.post(f"/v1/sessions/{session}/share")
        details = (await admin.get(f"/v1/admin/users/{ada['id']}")).json()
        (replica, *_) = (await admin.get("/v1/admin/replicas")).json()["replicas"]
    names = {
        "session_id": session,
        "uid": ada["id"],
        "gid": group["id"],
        "token_id": details["tokens"][0]["id"],
        "replica": replica["id"],
        "name": "native-1",
    }
    user, team = "/v1/admin/users/{uid}", "/v1/admin/groups/{gid}"
    chat, worker = "/v1/admin/sessions/{session_id}", "/v1/admin/replicas/{replica}"
    engine, notice = "/v1/admin/engines/{name}", "/v1/admin/notice"
    deeds = [
        ("POST", chat + "/stop", {}),
        ("POST", chat + "/evict", {"reason": "x", "lock": True}),
        ("POST", chat + "/unlock", {}),
        ("POST", "/v1/admin/users", {"name": "Bob"}),
        ("PATCH", user, {"quotas": {"sessions": 1}}),
        ("PATCH", user, {"disabled": True}),
        ("DELETE", user, {}),
        ("POST", user + "/tokens", {"purpose": "x"}),
        ("DELETE", user + "/tokens", {}),
        ("DELETE", user + "/tokens/{token_id}", {}),
        ("POST", user + "/login-codes", {}),
        ("POST", "/v1/admin/groups", {"name": "more"}),
        ("PATCH", team, {"name": "other"}),
        ("DELETE", team, {}),
        ("PUT", team + "/members/{uid}", {}),
        ("DELETE", team + "/members/{uid}", {}),
        ("DELETE", "/v1/admin/shares/{session_id}", {}),
        ("PUT", notice, {"text": "x", "expires_in_s": 60}),
        ("DELETE", notice, {}),
        ("POST", worker + "/log-level", {"level": "debug"}),
        ("POST", worker + "/drain", {}),
        ("POST", worker + "/restart", {}),
        ("POST", "/v1/admin/engines", {"engine": "native;name=third"}),
        ("POST", engine + "/drain", {}),
        ("POST", engine + "/resume", {}),
        ("POST", engine + "/restart", {"model": "one"}),
        ("DELETE", engine, {}),
        ("POST", "/v1/admin/models/load", {"name": "two"}),
        ("POST", "/v1/admin/models/unload", {"name": "one"}),
    ]
    declared = {(one.method, one.path) for one in OF_ADMINS if "/adapters" not in one.path}
    assert {deed[:2] for deed in deeds} == {one for one in declared if one[0] != "GET"}
    async with Http(whole, admin_token(whole)) as away:
        engines = (await away.get("/v1/admin/health")).json()["engines"]
        with redis_away(whole):
            for method, path, body in deeds:
                answer = await away.ask(method, path.format(**names), json=body)
                assert code_of(answer) == (503, "store_unavailable"), (method, path)
        later = (await away.get(f"/v1/admin/users/{ada['id']}")).json()
        assert (later["quotas"], later["tokens"]) == (details["quotas"], details["tokens"])
        assert (later["disabled"], later["group"]) == (False, None)
        assert (await away.get(f"/v1/admin/groups/{group['id']}")).json()["name"] == "team"
        assert session in (await away.get("/v1/admin/shares")).text
        assert (await away.get(notice)).json()["notice"] is None
        same = await listed_again(away, replica["id"])
        assert (same["log_level"], same["draining"]) == (replica["log_level"], 0)
        assert [_lasting(one) for one in engines] == [
            _lasting(one) for one in (await away.get("/v1/admin/health")).json()["engines"]
        ]


def _lasting(engine: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in engine.items() if name != "heard_ms"}
