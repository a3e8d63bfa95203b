"""No operation of admins is done without the right: all that the server declares are tried."""

import pytest

from server.access.identities import ADMIN_SCOPES
from server.api.rest.operation import Access, Operation
from tests.end_to_end.clients.http_client import LISTED, Http, code_of
from tests.end_to_end.clients.operators import new_user
from tests.end_to_end.site.harness import Server

OF_ADMINS = [one for one in LISTED if one.access is Access.ADMIN]
NAMES = {
    "session_id": "ses_" + "A" * 22,
    "response_id": "resp_" + "A" * 22,
    "uid": "usr_" + "A" * 22,
    "gid": "grp_" + "A" * 22,
    "token_id": "0" * 16,
    "replica": "nobody",
    "name": "nothing",
}


async def refusals(http: Http, asked: list[Operation]) -> set[tuple[int, str]]:
    return {code_of(await http.ask(one.method, one.path.format(**NAMES), json={})) for one in asked}


async def test_a_user_who_is_no_admin_does_and_sees_nothing_of_admins(
    two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)
    async with Http(two_workers, user["token"]) as http:
        assert await refusals(http, OF_ADMINS) == {(403, "forbidden")}


@pytest.mark.parametrize("lacking", ADMIN_SCOPES)
async def test_an_admin_without_the_scope_for_it_is_refused(
    two_workers: Server, admin: Http, lacking: str
) -> None:
    rest = [scope for scope in ADMIN_SCOPES if scope != lacking]
    other = await new_user(admin, roles=["admin"], scopes=rest)
    asked = [one for one in OF_ADMINS if one.scope == lacking]
    async with Http(two_workers, other["token"]) as http:
        assert asked and await refusals(http, asked) == {(403, "forbidden")}
        if lacking != "admin":
            assert (await http.get("/v1/admin/health")).json()["scopes"] == rest
