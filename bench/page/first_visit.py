"""A first visit of the chat page in Chromium, with nothing in its caches, as DevTools sees it."""

from dataclasses import dataclass
from typing import Any

from playwright.async_api import Browser, CDPSession, Page

from tests.end_to_end.frames.raw import log_in
from tests.end_to_end.site.harness import Server

LAST_TO_COME = ".chips button"  # is drawn when the models have been answered


@dataclass(frozen=True, slots=True)
class FirstVisit:
    addresses: tuple[str, ...]  # of all requests, and of the websocket
    num_bytes: int  # that came, heads of the answers included; without what the websocket brings
    first_paint_ms: float


async def first_visit(browser: Browser, server: Server) -> FirstVisit:
    """By a user who is logged in. The page has loaded the lists of chats and models at its end."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    name, _, value = (await log_in(server)).partition("=")
    await context.add_cookies([{"name": name, "value": value, "url": server.url}])
    page = await context.new_page()
    network = Network(await context.new_cdp_session(page))
    await network.watch()
    await page.goto(server.url, wait_until="networkidle")
    await page.locator(LAST_TO_COME).first.wait_for()
    visit = FirstVisit(tuple(network.addresses), network.num_bytes, await first_paint_ms(page))
    await context.close()
    return visit


class Network:
    """What the browser says of a page's requests."""

    def __init__(self, session: CDPSession) -> None:
        self._session = session
        self.addresses: list[str] = []
        self.num_bytes = 0

    async def watch(self) -> None:
        self._session.on("Network.requestWillBeSent", self._asked)
        self._session.on("Network.webSocketCreated", lambda event: self._add(event["url"]))
        self._session.on("Network.loadingFinished", self._finished)
        await self._session.send("Network.enable")

    def _asked(self, event: dict[str, Any]) -> None:
        self._add(event["request"]["url"])

    def _add(self, address: str) -> None:
        self.addresses.append(address)

    def _finished(self, event: dict[str, Any]) -> None:
        self.num_bytes += int(event["encodedDataLength"])


async def first_paint_ms(page: Page) -> float:
    """From the start of the navigation."""
    return float(
        await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    )
