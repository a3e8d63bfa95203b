"""Each deed of an admin while Redis is away: refused in words, and not done when Redis is back."""

import pytest

from tests.end_to_end.browser.test_browser_refusals import redis_away
from tests.end_to_end.clients.http_client import Http, admin_token, code_of
from tests.end_to_end.clients.operators import new_user
from tests.end_to_end.site.harness import Server

pytestmark = pytest.mark.slow


async def test_what_cannot_be_recorded_is_not_done(two_workers: Server, admin: Http) -> None:
    ada = await new_user(admin)
    group = (await admin.post("/v1/admin/groups", {"name": "team"})).json()
    async with Http(two_workers, ada["token"]) as http:
        session = (await http.new_session())["id"]
        await http.post(f"/v1/sessions/{session}/share")
    user, team = f"/v1/admin/users/{ada['id']}", f"/v1/admin/groups/{group['id']}"
    (replica, *_) = (await admin.get("/v1/admin/replicas")).json()["replicas"]
    worker = f"/v1/admin/replicas/{replica['id']}"
    deeds = [
        ("POST", "/v1/admin/users", {"name": "Bob"}),
        ("PATCH", user, {"quotas": {"sessions": 1}}),
        ("PATCH", user, {"disabled": True}),
        ("DELETE", user, {}),
        ("POST", f"{user}/tokens", {"purpose": "x"}),
        ("DELETE", f"{user}/tokens", {}),
        ("POST", f"{user}/login-codes", {}),
        ("POST", "/v1/admin/groups", {"name": "more"}),
        ("PATCH", team, {"name": "other"}),
        ("DELETE", team, {}),
        ("PUT", f"{team}/members/{ada['id']}", {}),
        ("DELETE", f"/v1/admin/shares/{session}", {}),
        ("PUT", "/v1/admin/notice", {"text": "x", "expires_in_s": 60}),
        ("DELETE", "/v1/admin/notice", {}),
        ("POST", f"{worker}/log-level", {"level": "debug"}),
        ("POST", f"{worker}/restart", {}),
    ]
    async with Http(two_workers, admin_token(two_workers)) as away:
        with redis_away(two_workers):
            for method, path, body in deeds:
                answer = await away.ask(method, path, json=body)
                assert code_of(answer) == (503, "store_unavailable"), (method, path)
        details = (await away.get(user)).json()
        assert (details["quotas"]["sessions"], details["disabled"]) == (None, False)
        assert details["group"] is None and len(details["tokens"]) == 1
        assert (await away.get(team)).json()["name"] == "team"
        assert session in (await away.get("/v1/admin/shares")).text
        assert (await away.get("/v1/admin/notice")).json()["notice"] is None
        replicas = (await away.get("/v1/admin/replicas")).json()["replicas"]
        (same,) = [one for one in replicas if one["id"] == replica["id"]]
        assert same["log_level"] == replica["log_level"]
