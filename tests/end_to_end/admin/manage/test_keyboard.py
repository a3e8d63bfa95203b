"""The console without a mouse, in real Chromium: search, lists, what is open, dialogs, each tab."""

import asyncio

import pytest
from playwright.async_api import Page, expect

from tests.end_to_end.admin.manage.test_page import page as page  # the fixture
from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import new_user
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE

pytestmark = [*needs_browser, pytest.mark.slow]

MAX_STOPS = 90  # of the whole page
FOCUSED = """() => {
    const it = document.activeElement;
    return (it.ariaLabel ?? it.labels?.[0]?.innerText ?? it.innerText ?? "").trim();
}"""
HAS_RING = "getComputedStyle(document.activeElement).outlineStyle !== 'none'"


async def reach(page: Page, name: str) -> None:
    """By Tab alone; where the keyboard is can be seen."""
    for _ in range(MAX_STOPS):
        await page.keyboard.press("Tab")
        if await page.evaluate(FOCUSED) == name:
            assert await page.evaluate(HAS_RING), name
            return
    raise AssertionError(f"Tab does not lead to {name!r}")


async def press(page: Page, name: str) -> None:
    await reach(page, name)
    await page.keyboard.press("Enter")


async def is_at(page: Page, name: str) -> None:
    await page.wait_for_function(f"name => ({FOCUSED})() === name", arg=name)


async def test_a_session_is_found_opened_and_closed(
    page: Page, two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin, name="Kay Board")
    async with Http(two_workers, user["token"]) as http:
        await http.new_session(title="Without a mouse")
    await page.keyboard.press("/")
    await page.keyboard.type("kay board")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("row")).to_have_count(2)
    await press(page, "Without a mouse")
    drawer = page.get_by_role("complementary")
    await expect(drawer).to_contain_text("Kay Board")
    await is_at(page, "Without a mouse")  # the heading of what is open
    await press(page, "Evict …")
    await is_at(page, "Reason, shown to them")
    await page.keyboard.press("Escape")
    await is_at(page, "Evict …")
    await page.keyboard.press("Escape")
    await expect(drawer).to_have_count(0)
    await is_at(page, "Without a mouse")  # the row


async def test_a_user_is_added_limited_and_left(page: Page) -> None:
    await press(page, "Users")
    await expect(page.get_by_role("table", name="Users")).to_be_visible()
    await press(page, "Add a user …")
    await reach(page, "Name")
    await page.keyboard.type("Kay Board")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("Nobody can read it again.")
    await press(page, "Done")
    drawer = page.get_by_role("complementary")
    await expect(drawer).to_contain_text("Tokens and browsers")
    await press(page, "Quotas …")
    await reach(page, "Sessions")
    await page.keyboard.type("1")
    await page.keyboard.press("Enter")
    await expect(drawer).to_contain_text("1 session")
    await is_at(page, "Quotas …")
    await press(page, "Remove …")
    await page.keyboard.press("Escape")
    await is_at(page, "Remove …")
    await page.keyboard.press("Escape")
    await expect(drawer).to_have_count(0)


async def test_every_tab_is_reached_and_its_list_is_scrolled(page: Page) -> None:
    tabs = ["Figures", "Server", "Users", "Groups", "Audit", "Share links", "Notice", "Settings"]
    for name in tabs:
        await press(page, name)
        await expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute(
            "aria-current", "page"
        )
        await is_at(page, name)  # the next Tab goes on from there
    await reach(page, "Find a setting")
    await page.keyboard.type("workers")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("row").filter(has_text="PARLEY_MODEL")).to_have_count(0)
    await reach(page, "Settings")
    await page.evaluate("location.hash = 'settings'")
    await expect(page.get_by_role("row").filter(has_text="PARLEY_MODEL").first).to_be_visible()
    await page.keyboard.press("End")
    async with asyncio.timeout(PATIENCE):
        while await page.evaluate("document.activeElement.scrollTop") == 0:  # noqa: ASYNC110  (no event)
            await asyncio.sleep(0.01)  # the page's policy forbids Playwright to wait by itself
