"""The page in real Chromium behind a network that is cut: it is back one try after the network.

The page's clock stands still but for the steps that a test lets it take, so that tries can be
counted; the network, the server and the sockets are real.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, WebSocket, expect

from tests.end_to_end.browser.test_browser import answers, ask, login_url
from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as pytestmark
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_word

QUICK_MS = 500  # quick tries are never further apart


class Sockets:
    """The websockets of a page, as they are opened and closed."""

    def __init__(self, page: Page) -> None:
        self.num_opened = self.num_closed = 0
        self._changed = asyncio.Condition()
        page.on("websocket", self._opened)

    async def _opened(self, websocket: WebSocket) -> None:
        websocket.on("close", self._closed)
        await self._count(opened=1)

    async def _closed(self, _: WebSocket) -> None:
        await self._count(closed=1)

    async def _count(self, *, opened: int = 0, closed: int = 0) -> None:
        async with self._changed:
            self.num_opened += opened
            self.num_closed += closed
            self._changed.notify_all()

    async def until(self, *, opened: int = 0, closed: int = 0) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            while self.num_opened < opened or self.num_closed < closed:
                await self._changed.wait()


@contextlib.asynccontextmanager
async def asked(browser: Browser, server: Server, proxy: FaultProxy) -> AsyncIterator[Page]:
    """A page that reaches the server through the proxy, with an answer that has begun."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE * 1000)
    page = await context.new_page()
    await page.clock.install()
    await page.goto(login_url(server).replace(urlsplit(server.url).netloc, proxy.address))
    await page.wait_for_url(f"http://{proxy.address}/")
    await ask(page, oracle_word(0))
    await expect(answers(page).last).to_contain_text(oracle_word(10).strip())
    yield page
    await context.close()


async def stop_clock(page: Page) -> None:
    await page.clock.pause_at(await page.evaluate("Date.now() + 1000"))


async def finish(page: Page) -> None:
    """The answer goes on, whole, and is stopped."""
    await page.clock.resume()
    await expect(answers(page).last).to_contain_text(oracle_word(80).strip())
    words = (await answers(page).last.inner_text()).split()
    text = [word for word in words if word.startswith("t0")][:-1]  # the last may be half of one
    assert text == [oracle_word(n).strip() for n in range(1, len(text) + 1)]
    await page.get_by_role("button", name="Stop", exact=True).click()
    await expect(answers(page).last).to_contain_text("Stopped")


async def test_the_page_is_back_half_a_second_after_a_cut_in_which_tries_fail_at_once(
    browser: Browser, server: Server
) -> None:
    target = urlsplit(server.url).netloc
    with FaultProxy(target) as proxy, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and never listens
        async with asked(browser, server, proxy) as page:
            sockets = Sockets(page)
            await stop_clock(page)
            proxy.command(f"target 127.0.0.1:{deaf.getsockname()[1]}")
            proxy.command("rst")
            for n in range(1, 7):  # 3 s
                await page.clock.run_for(QUICK_MS)
                await sockets.until(opened=n, closed=n)
            during = sockets.num_opened
            assert during <= 13
            proxy.command(f"target {target}")
            await page.clock.run_for(QUICK_MS)
            await sockets.until(opened=during + 1)
            await finish(page)
            assert sockets.num_opened - during <= 2  # one may have been on its way in the cut


async def test_a_try_that_nobody_answers_gives_way_to_another(
    browser: Browser, server: Server
) -> None:
    with FaultProxy(urlsplit(server.url).netloc) as proxy:
        async with asked(browser, server, proxy) as page:
            sockets = Sockets(page)
            await stop_clock(page)
            proxy.command("blackhole")
            proxy.command("rst")
            async with asyncio.timeout(PATIENCE):
                while sockets.num_opened < 4:  # how long a try may last depends on the machine
                    await page.clock.run_for(QUICK_MS)
            during = sockets.num_opened
            proxy.command("pass")
            await finish(page)
            assert sockets.num_opened - during <= 2
