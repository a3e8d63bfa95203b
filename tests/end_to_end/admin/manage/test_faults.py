"""What may go wrong on the admin page, in real Chromium: what is gone, refused, blank or late."""

import pytest
from playwright.async_api import Page, Route, expect

from tests.end_to_end.admin.manage.test_page import page as page  # the fixture
from tests.end_to_end.admin.manage.test_page import press, tab, write
from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import answering, new_user, store_of
from tests.end_to_end.site.harness import Client, Server

pytestmark = [*needs_browser, pytest.mark.slow]

GO = "place => { location.hash = place }"
HELD_UP_MS = 4000  # so long nothing else runs in the page
HOLD_UP = """ms => {
    const looks = new MutationObserver(() => {
        const seen = document.querySelector(".vital.bad, .vitals.old, .trouble, .state.paused");
        if (seen) window.sawTrouble = seen.outerHTML;
    });
    looks.observe(document.body, { subtree: true, childList: true, attributes: true });
    for (const end = performance.now() + ms; performance.now() < end; );
}"""


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("users?open=usr_gone", "There is no such user."),
        ("groups?open=grp_gone", "There is no such group."),
        ("sessions?open=ses_gone", "There is no such chat."),
    ],
)
async def test_what_is_gone_is_closed_and_said(page: Page, place: str, said: str) -> None:
    await page.evaluate(GO, place)
    await expect(page.get_by_text(said)).to_be_visible()
    await expect(page.get_by_role("complementary")).to_have_count(0)
    assert "open=" not in page.url
    await expect(page.locator(".trouble")).to_have_count(0)


@pytest.mark.parametrize("place", ["users", "audit", "shares", "groups", "sessions?show=all"])
async def test_an_address_with_no_page_of_a_list_leads_to_the_first(page: Page, place: str) -> None:
    joined = "&" if "?" in place else "?"
    await page.evaluate(GO, f"{place}{joined}after=garbage")
    await expect(page.get_by_text("There is no such page: this is the first one.")).to_be_visible()
    await expect(page.locator("main :is(table, .nothing:not(.failed))")).to_be_visible()
    assert "after=" not in page.url


async def test_a_question_that_is_refused_is_not_asked_again(page: Page) -> None:
    asked: list[str] = []

    async def refuse(route: Route) -> None:
        asked.append(route.request.url)
        error = {"code": "forbidden", "message": "this needs another scope"}
        await route.fulfill(status=403, json={"error": error})

    await page.route("**/v1/admin/sessions?*", refuse)
    await page.evaluate(GO, "sessions?model=other")
    await expect(page.get_by_role("alert")).to_have_text("This needs another scope.")
    num_asked = len(asked)
    for _ in range(6):  # of the strip, which are not refused: three seconds
        async with page.expect_response("**/v1/admin/health"):
            pass
    assert len(asked) == num_asked
    await expect(page.locator(".trouble")).to_have_count(0)  # it is said where the list would be
    await page.unroute("**/v1/admin/sessions?*")
    await page.evaluate(GO, "sessions?model=another")
    await expect(page.get_by_text("Nothing fits.")).to_be_visible()


async def test_what_was_typed_for_a_request_that_is_refused_is_kept(page: Page) -> None:
    async def refuse(route: Route) -> None:
        if route.request.method == "GET":
            await route.fallback()
            return
        error = {"code": "forbidden", "message": "this needs the role admin"}
        await route.fulfill(status=403, json={"error": error})

    await tab(page, "Groups")
    await page.route("**/v1/admin/groups", refuse)
    await press(page, "Make a group …")
    await write(page, "Name", "Night shift")
    await write(page, "Tokens a day", "5000")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("alert")).to_have_text("This needs the role admin.")
    await expect(dialog.get_by_label("Name")).to_have_value("Night shift")
    await expect(dialog.get_by_label("Tokens a day")).to_have_value("5000")
    await page.unroute("**/v1/admin/groups")
    await press(page, "Make")
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_role("complementary")).to_contain_text("5,000 tokens a day")
    await press(page, "Remove …")
    await press(page, "Remove")
    await expect(page.get_by_role("complementary")).to_have_count(0)


async def test_a_title_that_nobody_can_see_can_be_pressed(
    page: Page, two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)
    async with (
        Http(two_workers, user["token"]) as http,
        store_of(two_workers) as store,  # older versions took such titles
    ):
        for title in ("\u2800", "\u3164"):
            session = (await http.new_session())["id"]
            await store.sessions.update(user["id"], session, title=title)
    await page.evaluate(GO, f"sessions?show=all&user={user['id']}")
    titles = page.locator("td.col-title button")
    await expect(titles).to_have_text([r"\u3164", "Untitled"])
    await titles.last.press("Enter")
    await expect(page.get_by_role("complementary").get_by_role("heading").first).to_have_text(
        "Untitled"
    )


async def test_nothing_looks_like_an_outage_when_the_page_itself_was_held_up(page: Page) -> None:
    await expect(page.locator(".vital.good")).to_have_count(4)  # Redis, engine, two workers
    await page.evaluate(HOLD_UP, HELD_UP_MS)
    for _ in range(4):
        async with page.expect_response("**/v1/admin/health"):
            pass
    assert await page.evaluate("window.sawTrouble ?? null") is None


async def test_a_dialog_that_was_open_gives_no_role_back_that_another_admin_took(
    page: Page, admin: Http
) -> None:
    user = await new_user(admin, roles=["user", "admin"])
    path = f"/v1/admin/users/{user['id']}"
    await page.evaluate(GO, f"users?open={user['id']}")
    await press(page, "Change …")
    assert (await admin.ask("PATCH", path, json={"roles": ["user"]})).status_code == 200
    await write(page, "Name", "Ada King")
    await press(page, "Save")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    changed = (await admin.get(path)).json()
    assert (changed["name"], changed["roles"]) == ("Ada King", ["user"])


async def test_a_new_admin_can_sign_in_with_the_token_that_is_shown(
    page: Page, two_workers: Server
) -> None:
    await tab(page, "Users")
    await press(page, "Add a user …")
    await write(page, "Name", "Grace")
    await page.get_by_role("dialog").get_by_label("May be an admin").check()
    await press(page, "Add")
    secret = page.get_by_role("dialog").get_by_role("textbox", name="The token of")
    async with Http(two_workers, await secret.input_value()) as http:
        assert (await http.get("/v1/admin/health")).json()["scopes"] == ["admin"]


async def test_a_stop_whose_worker_is_silent_is_not_said_to_be_done(
    page: Page, two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)

    async def silent(route: Route) -> None:
        response = await route.fetch()
        told = [one | {"status": "in_progress"} for one in (await response.json())["responses"]]
        await route.fulfill(status=202, json={"responses": told})

    await page.route("**/stop", silent)
    async with Client(two_workers, token=user["token"]) as client:
        session, _ = await answering(client)
        await page.evaluate(GO, f"sessions?open={session}")
        await press(page, "Stop")
        await expect(page.get_by_text("the worker of the answer is silent")).to_be_visible()
        await expect(page.get_by_text("Stopped.")).to_have_count(0)
