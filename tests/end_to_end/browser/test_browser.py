"""The page in real Chromium against the real server: ask, watch, stop, reload, second tab."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from server.supervisor.supervisor import request_login_url
from tests.end_to_end.frames.raw import log_in
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_answer, oracle_word

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP chat.example 127.0.0.1",  # where tests of proxies have it
)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true",
    reason="Chromium is not installed (apt install chromium)",
)
pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, *sandbox], timeout=PATIENCE * 1000
        )
        expect.set_options(timeout=PATIENCE * 1000)
        yield browser
        await browser.close()


@pytest.fixture
async def context(browser: Browser, server: Server) -> AsyncIterator[BrowserContext]:
    async with signed_in(browser, server) as context:
        yield context


@asynccontextmanager
async def signed_in(
    browser: Browser, server: Server, **options: Any
) -> AsyncIterator[BrowserContext]:
    """A logged-in browser; what its pages complain about fails the test."""
    options = {"viewport": {"width": 1280, "height": 800}, **options}
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE * 1000)
    complaints: list[str] = []
    context.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    name, _, value = (await log_in(server)).partition("=")
    await context.add_cookies([{"name": name, "value": value, "url": server.url}])
    yield context
    await context.close()
    assert complaints == []


@pytest.fixture
def foreign_page(tmp_path: Path) -> Iterator[str]:
    """A page on another port of this machine: same site, so it gets our cookie; other origin."""
    (tmp_path / "index.html").write_text("<!doctype html><title>Foreign</title>")
    handler = partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as foreign:
        Thread(target=foreign.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{foreign.server_port}/"
        foreign.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


def login_url(server: Server) -> str:
    """What `parley login` prints."""
    return request_login_url(server.url, server.token)


async def ask(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")


def answers(page: Page) -> Any:
    return page.get_by_role("log").get_by_role("article")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again, where nothing tells of it; each answer takes its time."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            pass


async def test_the_whole_journey_ask_stop_reload_second_tab(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await page.goto(server.url)
    await ask(page, oracle_word(0))
    answer = answers(page).last
    await expect(answer).to_contain_text(oracle_word(20).strip())

    # A second tab opens the same chat and follows it live.
    second = await context.new_page()
    await second.goto(server.url)
    session = page.url.partition("#")[2]
    await second.locator(f'nav a[href="#{session}"]').click()
    await expect(answers(second).last).to_contain_text(oracle_word(40).strip())

    # A reload in the middle goes on where the answer is by now.
    await page.reload()
    await expect(answers(page).last).to_contain_text(oracle_word(80).strip())

    await page.get_by_role("textbox", name="Message").focus()
    await page.keyboard.press("Escape")
    await expect(answers(page).last).to_contain_text("Stopped")
    await expect(answers(second).last).to_contain_text("Stopped")

    sessions = server.get_json("/v1/sessions?limit=1")["sessions"]
    stored = server.get_json(f"/v1/sessions/{sessions[0]['id']}/messages")["messages"][-1]
    text = stored["content"][0]["text"]
    assert oracle_answer(0, 3000).startswith(text)
    for tab in (page, second):
        shown = await answers(tab).last.inner_text()
        words = [word for word in shown.split() if word.startswith("t0")]
        assert words == text.split()


async def test_the_stop_button_stands_where_send_was(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await page.goto(server.url)
    await ask(page, oracle_word(0))
    stop = page.get_by_role("button", name="Stop", exact=True)
    await stop.click()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(answers(page).last).to_contain_text("Stopped")


async def test_a_stranger_reads_how_to_log_in(browser: Browser, server: Server) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(server.url)
    await expect(page.get_by_text("parley login")).to_be_visible()
    await context.close()


async def test_a_page_of_another_origin_opens_no_socket(
    browser: Browser, server: Server, foreign_page: str
) -> None:
    context = await browser.new_context()  # of its own: a refusal is an error on the console
    page = await context.new_page()
    await page.goto(login_url(server))  # the cookie is there, and the browser sends it along
    await page.wait_for_url(server.url + "/")
    await page.goto(foreign_page)
    outcome = await page.evaluate(
        """(url) => new Promise((resolve) => {
            const socket = new WebSocket(url, "chat.v1");
            socket.onopen = () => resolve("open");
            socket.onerror = () => resolve("refused");
        })""",
        server.url.replace("http", "ws", 1) + "/v1/ws",
    )
    assert outcome == "refused"
    await context.close()
