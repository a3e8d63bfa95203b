"""Each tab where admins manage something, and the sessions, as a function that brings a page there:
on a usual day, and with the worst words that anybody could choose.
"""

from functools import partial
from urllib.parse import urlsplit

import msgspec
from playwright.async_api import Route, expect

from server.api.admin.manage.objects import GroupList
from server.api.admin.objects import AdminEngineList, AdminModel, AdminModelList, ListedSessions
from server.config.models import ModelState
from tests.end_to_end.looks.admin_states import State, signed_in
from tests.end_to_end.looks.manage.answers import (
    HOSTILE,
    LONG_MODEL,
    NOTHING,
    OPEN_GROUP,
    OPEN_SESSION,
    OPEN_USER,
    USUAL,
    answers,
    engines,
)
from tests.end_to_end.looks.stage import Stage

PLACES = {  # name: what stands behind the `#`
    "users": "users",
    "user": f"users?open={OPEN_USER}",
    "groups": "groups",
    "group": f"groups?open={OPEN_GROUP}",
    "audit": "audit",
    "share-links": "shares",
    "notice": "notice",
    "settings": "settings",
}
SESSIONS = {"sessions": "sessions?show=all", "session": f"sessions?open={OPEN_SESSION}&show=all"}
SCROLLING = """all => all.filter(one => one.scrollWidth > one.clientWidth)
  .map(one => one.getAttribute("aria-label"))"""
EMPTY = ("users", "groups", "audit", "share-links", "notice")


async def _show(stage: Stage, place: str, told: dict[str, msgspec.Struct]) -> None:
    async def tell(route: Route) -> None:
        path = urlsplit(route.request.url).path.removeprefix("/v1/admin")
        await route.fulfill(body=msgspec.json.encode(told[path]), content_type="application/json")

    await signed_in(stage)
    for path in told:
        await stage.page.route(f"**/v1/admin{path}", tell)
        await stage.page.route(f"**/v1/admin{path}?*", tell)
    await stage.page.evaluate("place => { location.hash = place }", place)
    await expect(
        stage.page.locator("main :is(table, .shown-notice, .nothing)").last
    ).to_be_visible()
    await expect(stage.page.get_by_text("Loading …")).to_have_count(0)
    if "open=" in place:
        await expect(stage.page.locator(".drawer .facts")).to_be_visible()
    # Whatever was chosen, it is as wide as the screen and no markup.
    assert await stage.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert await stage.page.locator("main img, main marquee, main b, main i").count() == 0


async def _refused(stage: Stage) -> None:
    """A dialog whose request was refused says so, with what was typed."""
    await _show(stage, "users", answers(USUAL))

    async def refuse(route: Route) -> None:
        error = {"code": "forbidden", "message": "this needs the role admin and the scope admin"}
        await route.fulfill(status=403, json={"error": error})

    await stage.page.route("**/v1/admin/users", refuse)
    await stage.page.get_by_role("button", name="Add a user …").click()
    dialog = stage.page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("Ada")
    await dialog.get_by_role("button", name="Add").click()
    await expect(dialog.get_by_role("alert")).to_be_visible()
    await expect(dialog.get_by_label("Name")).to_have_value("Ada")


async def _choosing(stage: Stage, told: dict[str, msgspec.Struct]) -> None:
    """The group of a user, among more than are listed."""
    groups = told["/groups"]
    assert isinstance(groups, GroupList)
    found = msgspec.structs.replace(groups, found=42)
    await _show(stage, PLACES["user"], told | {"/groups": found})
    await stage.page.get_by_role("button", name="Group …").click()
    await expect(stage.page.get_by_role("dialog").get_by_role("status")).to_contain_text("of 42")


async def _engines(stage: Stage) -> None:
    """Of two models: one is drained, one is away and has much to say; no table scrolls."""
    models = [
        AdminModel("demo", True, ModelState.LOADED, memory_bytes=2_147_000_000),
        AdminModel(LONG_MODEL, False, ModelState.LOADED, memory_bytes=48_000_000_000),
    ]
    told = {"/engines": AdminEngineList(engines()), "/models": AdminModelList(models)}
    await _show(stage, "server", told)
    assert await stage.page.locator(".list-place").evaluate_all(SCROLLING) == []


async def _older(stage: Stage) -> None:
    """Nothing fits so far, and there are older chats."""
    await _show(
        stage, "sessions?model=gone&show=all", {"/sessions": ListedSessions([], "2", examined=500)}
    )
    await expect(stage.page.get_by_role("button", name="Look at older ones")).to_be_visible()


MANAGE_STATES: dict[str, State] = {
    **{
        f"admin-{name}": partial(_show, place=place, told=answers(USUAL))
        for name, place in (PLACES | SESSIONS).items()
    },
    **{
        f"hostile-{name}": partial(_show, place=place, told=answers(HOSTILE))
        for name, place in (PLACES | SESSIONS).items()
    },
    **{f"no-{name}": partial(_show, place=PLACES[name], told=NOTHING) for name in EMPTY},
    "admin-user-refused": _refused,
    "admin-choosing": partial(_choosing, told=answers(USUAL)),
    "hostile-choosing": partial(_choosing, told=answers(HOSTILE)),
    "admin-engines": _engines,
    "admin-older": _older,
}
