"""The admin page in real Chromium: sign in, find, watch, stop, evict; hostile words stay words."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, expect

from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as pytestmark
from tests.end_to_end.clients.console import console
from tests.end_to_end.clients.console import sign_in as sign_in  # for the tests beside it
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.clients.operators import SETTINGS, answering
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.tiny_model import oracle_word

HOSTILE = "<img src=x onerror=alert(1)> javascript:alert(1)"


@pytest.fixture
async def page(browser: Browser, two_workers: Server) -> AsyncIterator[Page]:
    """The page, signed in; what it complains about fails the test."""
    async with console(browser, two_workers, is_complaint=is_error) as page:
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        yield page


def is_error(message: ConsoleMessage) -> bool:
    return message.type == "error"


async def test_the_list_shows_who_is_answered_and_a_button_stops_it(
    page: Page, two_workers: Server
) -> None:
    async with Client(two_workers) as client:
        _, response_id = await answering(client)
        row = page.get_by_role("row").filter(has_text="local").first
        await expect(row).to_contain_text("answering")
        await row.get_by_role("button", name="Stop").click()
        answer = await client.done(response_id)
        assert answer.done is not None
        assert answer.done["response"]["status_details"]["by"] == "admin"
        await expect(page.get_by_text("Stopped.")).to_be_visible()


async def test_on_a_phone_a_long_row_keeps_its_stop_button_in_view(
    page: Page, two_workers: Server
) -> None:
    await page.set_viewport_size({"width": 360, "height": 740})
    async with Client(two_workers) as client:
        created = await client.reply("session.create", idempotency_key="long", title="long " * 30)
        session_id = created["session"]["id"]
        response_id = await client.ask(session_id, oracle_word(0), settings=SETTINGS)
        row = page.get_by_role("row").filter(has_text="long long").first
        await expect(row.get_by_role("button", name="Stop")).to_be_in_viewport(ratio=1)
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await row.get_by_role("button", name="Stop").click()
        await client.done(response_id)


async def test_a_session_is_watched_live_after_saying_that_it_is_audited(
    page: Page, two_workers: Server
) -> None:
    async with Client(two_workers) as client, Http(two_workers, admin_token(two_workers)) as admin:
        session_id, response_id = await answering(client)
        await (
            page.get_by_role("row").filter(has_text="answering").get_by_role("button").first.click()
        )
        drawer = page.get_by_role("complementary")
        await expect(drawer).to_contain_text("first token")
        await expect(drawer).to_contain_text("audit log")
        entries = (await admin.get("/v1/admin/audit")).json()["entries"]
        assert session_id not in [entry["target"] for entry in entries]
        await drawer.get_by_role("button", name="Watch live").click()
        await expect(drawer.get_by_role("log")).to_contain_text(oracle_word(120).strip())
        below = "e => e.scrollHeight > e.clientHeight && e.scrollTop + e.clientHeight + 40"
        await page.wait_for_function(
            f"({below} >= e.scrollHeight)(document.querySelector('.drawer-body'))"
        )
        entries = (await admin.get("/v1/admin/audit")).json()["entries"]
        assert ("session.observe", session_id) in [(e["action"], e["target"]) for e in entries]
        await client.reply("stop", response_id=response_id)
        await expect(drawer.get_by_role("log")).to_contain_text("stopped")
        done = await client.done(response_id)
        assert (await drawer.get_by_role("log").inner_text()).strip().endswith(done.final.strip())


@pytest.mark.row("B60")
async def test_an_eviction_gives_its_reason_and_markup_in_titles_is_only_words(
    page: Page, two_workers: Server
) -> None:
    async with Http(two_workers, admin_token(two_workers)) as admin:
        user = (await admin.post("/v1/admin/users", {"name": HOSTILE})).json()
    async with Client(two_workers, token=user["token"]) as client:
        created = await client.reply("session.create", idempotency_key="k1", title=HOSTILE)
        session_id = created["session"]["id"]
        await client.ask(session_id, oracle_word(0), settings=SETTINGS)
        await page.keyboard.press("/")
        await page.keyboard.type("javascript:alert")  # a part of the name
        await page.keyboard.press("Enter")
        await expect(page.locator(".found")).to_have_text(
            f"Sessions of {HOSTILE} Look in titles Clear"
        )
        row = page.get_by_role("row").filter(has_text=HOSTILE)
        await expect(row).to_have_count(1)
        assert await page.locator("img").count() == 0
        await row.get_by_role("button").first.click()
        await page.get_by_role("button", name="Evict …").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_role("button", name="Evict")).to_be_disabled()
        await dialog.get_by_label("Reason").fill("spam")
        await dialog.get_by_label("Lock").check()
        await dialog.get_by_role("button", name="Evict").click()
        assert await client.closed() == 4410
        assert client.socket.close_reason == "spam"
        await expect(page.get_by_text("Evicted and locked.")).to_be_visible()
        await page.get_by_role("button", name="Unlock").click()
        await expect(page.get_by_text("Unlocked.")).to_be_visible()


async def test_what_is_typed_into_a_filter_stays_while_the_figures_are_renewed(
    page: Page, two_workers: Server
) -> None:
    box = page.get_by_role("searchbox", name="Find")
    await box.fill("usr_nob")
    for _ in range(2):  # the first may have been drawn before
        async with page.expect_response("**/v1/admin/sessions*"):
            pass
    await expect(page.get_by_text("as of")).to_be_visible()
    await box.press_sequentially("ody")
    await expect(box).to_have_value("usr_nobody")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Nothing fits.")).to_be_visible()
    await box.fill("")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Nothing fits.")).to_have_count(0)


async def test_the_token_is_kept_by_the_tab_alone(page: Page, two_workers: Server) -> None:
    token = admin_token(two_workers)
    await page.reload()
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    assert token not in page.url
    assert await page.evaluate("JSON.stringify(localStorage)") == "{}"
    assert await page.context.cookies() == []
    other = await page.context.new_page()
    await other.goto(two_workers.url + "/admin")
    await expect(other.get_by_label("Admin token")).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    assert token not in await page.evaluate("JSON.stringify(sessionStorage)")


async def test_a_token_without_the_scope_is_refused_with_the_reason(
    browser: Browser, two_workers: Server
) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(two_workers.url + "/admin")
    await sign_in(page, two_workers.token)
    await expect(page.get_by_role("alert")).to_contain_text("needs the role admin")
    await context.close()


async def test_an_address_shows_what_was_found_in_which_order_and_what_was_open(
    page: Page, two_workers: Server
) -> None:
    async with Http(two_workers, admin_token(two_workers)) as admin:
        user = (await admin.post("/v1/admin/users", {"name": "Zoë Quartermaine"})).json()
    async with Http(two_workers, user["token"]) as http:
        made = [(await http.new_session(title=title))["id"] for title in ("Anchors", "Buoys")]
    titles = page.locator("td.col-title button")
    await page.get_by_role("searchbox", name="Find").fill("quartermaine")
    await page.keyboard.press("Enter")
    await expect(titles).to_have_text(["Buoys", "Anchors"])
    await page.get_by_role("button", name="Title", exact=True).click()
    await expect(titles).to_have_text(["Anchors", "Buoys"])
    await titles.first.press("Enter")
    drawer = page.get_by_role("complementary")
    await expect(drawer).to_contain_text(made[0])
    address = page.url
    assert address.endswith(f"#sessions?open={made[0]}&q=quartermaine&show=all&sort=title")
    await page.reload()
    await expect(titles).to_have_text(["Anchors", "Buoys"])
    await expect(drawer).to_contain_text(made[0])
    await page.keyboard.press("Escape")
    await expect(drawer).to_have_count(0)
    await page.go_back()
    await expect(drawer).to_contain_text(made[0])
    await page.get_by_role("link", name="Figures").click()
    await expect(page.get_by_role("img", name="Tokens per second")).to_be_visible()
    await page.get_by_role("link", name="Sessions").click()
    assert page.url == address  # a tab is as it was left
    await page.get_by_role("searchbox", name="Find").fill("buoy")  # nobody is called so
    await page.keyboard.press("Enter")
    await expect(page.locator(".found")).to_contain_text("Titles with buoy")
    await expect(titles.filter(has_text="Buoys")).to_be_visible()
