"""Open WebUI, unchanged and offline, in a real browser: it asks Parley, and its button stops it."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import Page, async_playwright, expect

from tests.end_to_end.browser.test_browser import CHROMIUM, FLAGS, needs_chromium
from tests.end_to_end.sdks.environment import clean_environment, open_webui_python
from tests.end_to_end.sdks.others.offline import OFFLINE
from tests.end_to_end.sdks.snippets import command_of, prepare, snippet
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

PICTURE = ROOT / "docs" / "images" / "open-webui.png"
QUIET = {  # questions of its own would make answers that nobody has asked for here
    "ENABLE_TITLE_GENERATION": "False",
    "ENABLE_TAGS_GENERATION": "False",
    "ENABLE_FOLLOW_UP_GENERATION": "False",
    "ENABLE_AUTOCOMPLETE_GENERATION": "False",
}
SHOWN_LETTERS = 700  # of a story, in the picture

pytestmark = [pytest.mark.slow, pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def paced(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its first model counts for five minutes; the other one tells stories."""
    data = tmp_path_factory.mktemp("paced") / "data"
    server = Server(data, f"counting={oracle_model},demo", PARLEY_PACE="20")
    server.history.engines.clear()  # which count requests of which nothing is stored
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope="module")
def open_webui(paced: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address, as the page of the docs starts it; signed in as any visitor."""
    folder = tmp_path_factory.mktemp("open-webui")
    prepare(paced, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = snippet("Open WebUI")
    assert "--port 8080" in command
    environment = {
        **OFFLINE,
        **QUIET,
        "PATH": f"{open_webui_python().parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "DATA_DIR": str(folder / "its-data"),
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "of nobody but this test, which is gone in a minute",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command_of(paced, command.replace("--port 8080", f"--host 127.0.0.1 --port {port}")),
            cwd=folder,
            env=clean_environment(environment),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_until_it_answers(f"http://127.0.0.1:{port}/health", process, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_it_answers(
    address: str, process: subprocess.Popen[bytes], log: Path, seconds: float = PATIENCE
) -> None:
    transport = httpx2.HTTPTransport(retries=5)
    with httpx2.Client(transport=transport, timeout=seconds) as client:
        for _ in range(int(seconds)):
            assert process.poll() is None, log.read_text()
            try:
                if client.get(address).status_code == 200:
                    return
            except httpx2.ConnectError:  # after some tries, which have taken a while
                continue
    raise AssertionError(log.read_text())


@pytest.fixture
async def page(open_webui: str) -> AsyncIterator[Page]:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, *sandbox], timeout=PATIENCE * 1000
        )
        expect.set_options(timeout=PATIENCE * 1000)
        context = await browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(PATIENCE * 1000)
        yield await context.new_page()
        await browser.close()


async def ask(page: Page, address: str, model: str, question: str) -> None:
    await page.goto(f"{address}/?models={model}")
    welcome = page.get_by_role("button", name="Okay, Let's Go!")
    field = page.locator("#chat-input")
    await expect(welcome.or_(field).first).to_be_visible()
    if await welcome.is_visible():  # once
        await welcome.click()
        await expect(welcome).to_be_hidden()
    await expect(page.get_by_role("button", name=f"Selected model: {model}")).to_be_visible()
    await field.fill(question)
    await page.get_by_role("button", name="Send message").click()


async def test_its_stop_button_ends_the_answer_in_the_engine(
    open_webui: str, paced: Server, page: Page
) -> None:
    at_rest = await asyncio.to_thread(paced.metric, "parley_kv_blocks_free")
    await ask(page, open_webui, "counting", "t00001 ")
    await expect(page.get_by_text("t00012").first).to_be_visible()
    assert await asyncio.to_thread(paced.metric, "parley_requests_running") == 1
    await page.get_by_role("button", name="Stop", exact=True).click()
    await expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    async with asyncio.timeout(PATIENCE):  # the answer itself would last longer
        while await asyncio.to_thread(paced.metric, "parley_requests_running"):
            pass  # asking takes its time
    assert await asyncio.to_thread(paced.metric, "parley_kv_blocks_free") == at_rest


async def test_a_chat_is_answered(open_webui: str, page: Page, pytestconfig: pytest.Config) -> None:
    await ask(page, open_webui, "parley-demo", "Tell me a story about the lighthouse cat.")
    answer = page.locator(".chat-assistant")
    async with asyncio.timeout(PATIENCE):
        while len(await answer.inner_text()) < SHOWN_LETTERS:
            pass  # asking takes its time
    if pytestconfig.getoption("--renew-looks"):
        await page.screenshot(path=PICTURE)
    await expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    assert "Tidewick" in await answer.inner_text()
