"""Each deed of the console in real Chromium while Redis is away, and when it is back.

Each is asked for without Redis: the console says what is away, and what was written stays there.
Then the same button does it. Whoever lacks a scope does not see the buttons that need it.
"""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.end_to_end.admin.manage.test_outage import whole as whole  # the fixture
from tests.end_to_end.admin.test_admin_page import sign_in
from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.browser.test_browser_refusals import redis_away
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.clients.operators import answering, new_user
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE

pytestmark = [*needs_browser, pytest.mark.slow]

AWAY = re.compile("session store (is unavailable|does not answer)", re.IGNORECASE)
DETACHED = re.compile(
    "Log level of|Restart|Watch live|Invite|Another token"
)  # by a scope of its own


@dataclass
class Deed:
    """A button, what is written in its dialog, and the button there; "": it has no dialog."""

    opens: str
    deed: str
    done: str
    texts: dict[str, str] = field(default_factory=dict)
    choice: str = ""
    checks: bool = False


USER = [
    Deed("Change …", "Save", "Saved.", {"Name": "Ada King"}),
    Deed("Quotas …", "Save", "Saved.", {"Tokens a day": "5000"}),
    Deed("Group …", "Save", "Saved.", choice="team"),
    Deed("Another token …", "Make a token", "Made.", {"What it is for": "backup"}),
    Deed("Revoke …", "Revoke", "Revoked."),
    Deed("Invite …", "", ""),
    Deed("Disable …", "Disable", "Disabled."),
    Deed("Enable", "", "Enabled."),
    Deed("Remove …", "Remove", "Removed.", checks=True),
]
GROUP = [
    Deed("Change …", "Save", "Saved.", {"Sessions": "9"}),
    Deed("Let go", "", "has left the group."),
    Deed("Remove …", "Remove", "Removed."),
]
NOTICE = [
    Deed("Tell all users …", "Show", "All users see it now.", {"What to say, in one line": "Hi"}),
    Deed("Take away …", "Take away", "Nobody sees it any more."),
]
SESSION = [
    Deed("Stop", "", "Stopped."),
    Deed("Evict …", "Evict", "Evicted and locked.", {"Reason, shown to them": "x"}, checks=True),
    Deed("Unlock", "", "Unlocked."),
]
WHY = {"Why, for the audit log": "a new version"}
ENGINES = [
    Deed("Drain native-1 of one", "Drain", "native-1 of one is draining."),
    Deed("Undrain native-1 of one", "", "native-1 of one takes new answers."),
    Deed("Restart native-1 of one", "Restart", "native-1 of one starts again.", WHY),
    Deed(
        "Add an engine …", "Add", "is being made ready.", {"As in PARLEY_ENGINES": "native;name=c"}
    ),
    Deed("Remove c", "Remove", "c is being removed."),
    Deed("Load two", "", "two is being loaded."),
]
WORKERS = [
    Deed("Log level of", "Set", "It logs debug", WHY, "debug"),
    Deed("Restart", "Restart", "It restarts.", WHY),
    Deed("Drain", "Drain", "It is draining.", WHY),
]


@dataclass
class World:
    """A user with a session that is shared, in a group; and another one who is answered."""

    user: str
    group: str
    session: str


PLACES: dict[str, tuple[Callable[[World], str], list[Deed]]] = {
    "users": (lambda _: "users", [Deed("Add a user …", "Add", "Added.", {"Name": "Bob"})]),
    "user": (lambda world: f"users?open={world.user}", USER),
    "groups": (lambda _: "groups", [Deed("Make a group …", "Make", "Made.", {"Name": "more"})]),
    "group": (lambda world: f"groups?open={world.group}", GROUP),
    "shares": (lambda _: "shares", [Deed("Take back …", "Take back", "Taken back.")]),
    "notice": (lambda _: "notice", NOTICE),
    "session": (lambda world: f"sessions?show=all&open={world.session}", SESSION),
    "engines": (lambda _: "server", ENGINES),
    "workers": (lambda _: "server", WORKERS),
}


@pytest.fixture
async def world(whole: Server) -> AsyncIterator[World]:
    async with Http(whole, admin_token(whole)) as admin:
        user = await new_user(admin)
        team = (await admin.post("/v1/admin/groups", {"name": "team"})).json()["id"]
        await admin.ask("PUT", f"/v1/admin/groups/{team}/members/{(await new_user(admin))['id']}")
        async with Client(whole, token=user["token"], ping_interval=None) as client:
            session, _ = await answering(client)
            async with Http(whole, user["token"]) as http:
                await http.post(f"/v1/sessions/{session}/share")
            yield World(user["id"], team, session)
        await admin.ask("DELETE", f"/v1/admin/users/{user['id']}")
        await admin.ask("DELETE", f"/v1/admin/groups/{team}")


@pytest.fixture
async def page(browser: Browser, whole: Server) -> AsyncIterator[Page]:
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE * 1000)
    errors: list[str] = []
    context.on("weberror", lambda error: errors.append(str(error.error)))
    page = await context.new_page()
    await page.goto(whole.url + "/admin")
    await sign_in(page, admin_token(whole))
    yield page
    await context.close()
    assert errors == []


def button(page: Page | Locator, name: str) -> Locator:
    """By its whole name."""
    return page.get_by_role("button", name=name, exact=True).first


async def button_of_worker(page: Page, name: str) -> Locator:
    """By the beginning of its name, of a worker that can be drained."""
    workers = page.get_by_role("table", name="Workers").get_by_role("row")
    row = workers.filter(has=page.get_by_role("button", name=re.compile("^Drain "))).first
    begun = row.get_by_role("button", name=re.compile(f"^{name} "))
    return button(page, await begun.get_attribute("aria-label") or "")


async def fill_in(dialog: Locator, deed: Deed) -> None:
    for label, text in deed.texts.items():
        await dialog.get_by_label(label, exact=True).fill(text)
    if deed in USER and deed.choice:
        await dialog.get_by_role("searchbox").fill(deed.choice)
        await dialog.get_by_role("radio", name=deed.choice).first.check()
    elif deed.choice:
        option = dialog.locator("option", has_text=deed.choice).first
        await dialog.get_by_role("combobox").select_option(await option.get_attribute("value"))
    if deed.checks:
        await dialog.get_by_role("checkbox").check()


async def expect_filled(dialog: Locator, deed: Deed) -> None:
    for label, text in deed.texts.items():
        await expect(dialog.get_by_label(label, exact=True)).to_have_value(text)
    if deed.checks:
        await expect(dialog.get_by_role("checkbox")).to_be_checked()


async def redis_is_back(page: Page) -> None:
    await expect(page.locator(".vital.good").filter(has_text="Redis")).to_be_visible()


async def do_it(page: Page, server: Server, deed: Deed) -> None:
    """Once without Redis, and once with it."""
    here = page.get_by_role("complementary") if deed in (*SESSION, *USER, *GROUP) else page
    opens, dialog = button(here, deed.opens), page.get_by_role("dialog")
    if deed in WORKERS:
        opens = await button_of_worker(page, deed.opens)
    said = page.locator(".toast")
    await expect(opens).to_be_enabled()
    if not deed.deed:
        with redis_away(server):
            await opens.press("Enter")
            await expect(said).to_contain_text(AWAY)
        await redis_is_back(page)
        await opens.press("Enter")
    else:
        await opens.press("Enter")
        await fill_in(dialog, deed)
        does = dialog.get_by_role("button", name=deed.deed, exact=True)
        with redis_away(server):
            await does.press("Enter")
            await expect(dialog.get_by_role("alert")).to_contain_text(AWAY)
        await expect_filled(dialog, deed)
        await redis_is_back(page)
        await does.press("Enter")
    if deed.done:
        await expect(said).to_contain_text(deed.done)
    if deed.opens in ("Add a user …", "Another token …", "Invite …"):  # what is shown this once
        await button(dialog, "Done").press("Enter")
    await expect(dialog).to_have_count(0)
    if deed.done == "It restarts.":
        await expect(opens).to_have_count(0)  # another one takes its place


@pytest.mark.parametrize("place", PLACES)
async def test_what_is_asked_for_without_redis_is_kept_and_done_when_it_is_back(
    page: Page, whole: Server, world: World, place: str
) -> None:
    address, deeds = PLACES[place]
    await page.evaluate("hash => location.hash = hash", address(world))
    for deed in deeds:
        await do_it(page, whole, deed)


async def test_a_conversation_that_is_watched_without_redis_is_shown_when_it_is_back(
    page: Page, whole: Server, world: World
) -> None:
    await page.evaluate("hash => location.hash = hash", f"sessions?show=all&open={world.session}")
    watch = page.get_by_role("button", name="Watch live")
    await expect(watch).to_be_visible()
    with redis_away(whole):
        await watch.press("Enter")
        await expect(page.locator(".transcript").get_by_role("status")).not_to_be_empty()
    await expect(page.get_by_role("log")).to_be_visible()


async def test_who_lacks_a_scope_does_not_see_the_buttons_that_need_it(
    page: Page, whole: Server, world: World
) -> None:
    async with Http(whole, admin_token(whole)) as admin:
        helper = await new_user(admin, roles=["admin"], scopes=["admin"])
    needed = page.get_by_role("button", name=DETACHED)
    places = {"engines": "Drain native-1 of one", "user": "Disable …", "session": "Evict …"}
    for num_scopes in (3, 1):
        for place, other in places.items():
            address, _ = PLACES[place]
            await page.evaluate("hash => location.hash = hash", address(world))
            await expect(button(page, other)).to_be_visible()
            await expect(needed).to_have_count(0) if num_scopes == 1 else await expect(
                needed.first
            ).to_be_visible()
        if num_scopes == 3:
            await page.get_by_role("button", name="Sign out").click()
            await sign_in(page, helper["token"])
            await expect(page.locator(".vital.good").first).to_be_visible()
