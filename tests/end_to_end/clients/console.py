"""The console in a browser, open and signed in; what it complains about fails the test."""

import contextlib
from collections.abc import AsyncIterator, Callable

from playwright.async_api import Browser, ConsoleMessage, Page

from tests.end_to_end.clients.http_client import admin_token
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE


async def sign_in(page: Page, token: str) -> None:
    await page.get_by_label("Admin token").fill(token)
    await page.keyboard.press("Enter")


@contextlib.asynccontextmanager
async def console(
    browser: Browser,
    server: Server,
    place: str = "",
    *,
    is_complaint: Callable[[ConsoleMessage], bool] = lambda message: False,
    owns_clock: bool = False,
) -> AsyncIterator[Page]:
    """The page, at a `place` such as `#server`.

    `is_complaint` says it of what the page logs; exceptions always are. With `owns_clock` the
    page's clock is the test's.
    """
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE * 1000)
    complaints: list[str] = []
    context.on("console", lambda m: complaints.append(m.text) if is_complaint(m) else None)
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    page = await context.new_page()
    if owns_clock:
        await page.clock.install()
    await page.goto(f"{server.url}/admin{place}")
    await sign_in(page, admin_token(server))
    yield page
    await context.close()
    assert complaints == []
