"""The page in real Chromium when the server cannot do what was asked: nothing is shown as done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from playwright.async_api import Browser, Page, expect

from tests.end_to_end.harness import Server
from tests.end_to_end.http_client import Http
from tests.end_to_end.test_browser import browser as browser  # the fixture
from tests.end_to_end.test_browser import pytestmark as pytestmark
from tests.end_to_end.test_browser import signed_in


@contextmanager
def redis_away(server: Server) -> Iterator[None]:
    """Its Redis takes what it is sent and answers nothing."""
    (redis,) = server.children("redis-server")
    redis.suspend()
    server.history.fault("redis stop")
    try:
        yield
    finally:
        redis.resume()


async def choose(page: Page, title: str, item: str) -> None:
    """An item of the menu of a chat in the list."""
    await page.get_by_role("link", name=title, exact=True).hover()
    await page.get_by_role("button", name=f"Options for {title}", exact=True).click()
    await page.get_by_role("menuitem", name=item).click()


async def test_a_rename_and_a_deletion_while_redis_is_away_are_done_when_it_is_back(
    browser: Browser, new_server: Callable[..., Server]
) -> None:
    server = new_server(PARLEY_REDIS_TIMEOUT_SECONDS="1")
    async with Http(server) as http:
        for title in ("Tides", "Boats"):
            await http.new_session(title=title)
    async with signed_in(browser, server) as context:
        page = await context.new_page()
        await page.goto(server.url)
        titles = page.locator("nav .title")
        await expect(titles).to_have_text(["Boats", "Tides"])
        with redis_away(server):
            await choose(page, "Tides", "Rename")
            await page.get_by_label("Name of the chat").fill("Low tides")
            await page.keyboard.press("Enter")
            await choose(page, "Boats", "Delete")
            await expect(page.get_by_text("nothing new can be sent yet")).to_be_visible()
            await expect(page.get_by_text("Undo")).to_be_hidden()  # it is sent only now
        await expect(page.get_by_text("nothing new can be sent yet")).to_be_hidden()
        await expect(titles).to_have_text(["Low tides"])
        await page.reload()
        await expect(titles).to_have_text(["Low tides"])
