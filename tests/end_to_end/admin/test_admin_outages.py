"""The admin page in real Chromium while the engine, a worker or Redis is away: it says so.

Nothing old is shown as if it were of now.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.browser.test_browser_refusals import redis_away
from tests.end_to_end.clients.console import console, sign_in
from tests.end_to_end.clients.http_client import admin_token
from tests.end_to_end.clients.operators import answering
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.wiring import pid_of, replica_of
from tests.helpers.patience import PATIENCE

pytestmark = [*needs_browser, pytest.mark.slow]

SILENT = "The server does not answer."
READ_MS, DEED_MS = 4000, 15_000  # the page's limits
TIME = r"\d\d:\d\d:\d\d"


@pytest.fixture(scope="module")
def lone(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one worker, which leaves a halted engine alone."""
    data = tmp_path_factory.mktemp("outages") / "data"
    environment = {"PARLEY_PACE": "100", "PARLEY_WATCHDOG_SECONDS": "3600"}
    server = Server(data, oracle_model, None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


@contextlib.asynccontextmanager
async def all_well(browser: Browser, server: Server) -> AsyncIterator[Page]:
    """The page, signed in, its clock in our hands; it shows figures, and nothing is wrong."""
    async with console(browser, server, owns_clock=True) as page:
        await expect(page.locator(".as-of")).to_have_text(re.compile(f"^as of {TIME}$"))
        await expect(page.locator(".trouble")).to_have_count(0)
        yield page


@contextlib.contextmanager
def halted(server: Server, process: psutil.Process, what: str) -> Iterator[None]:
    process.suspend()
    server.history.fault(f"{what} stop")
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


async def next_core(server: Server, before: psutil.Process) -> psutil.Process:
    """The engine that is started in place of another one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for core in server.children("engine.core"):
                if core.pid != before.pid:
                    return core
            await asyncio.sleep(0.02)  # the supervisor tells nobody: there is no event to wait for


def figure(page: Page, name: str) -> Locator:
    return page.locator(".figures div").filter(has_text=name).locator("dd")


async def expect_paused(page: Page, server: Server, said: str) -> None:
    """The trouble names engine, worker and moment; the one running answer stands still."""
    (worker,) = server.children("server.worker")
    trouble = page.locator(".trouble")
    await expect(trouble).to_contain_text(re.compile(rf"The engine of \S+ · {worker.pid} {said}"))
    await expect(trouble).to_contain_text(re.compile(rf"since {TIME} \(\d+ s\)"))
    await expect(page.locator(".list .state")).to_have_text("paused")
    await expect(page.locator(".state.in_progress")).to_have_count(0)
    await expect(figure(page, "answering")).to_have_text("0")
    await expect(figure(page, "paused")).to_have_text("1")
    await expect(page.get_by_role("row").last).to_contain_text("–")  # no tokens per second


@pytest.mark.slow
async def test_an_engine_that_stands_still_or_is_gone_is_named_and_nothing_looks_alive(
    browser: Browser, lone: Server
) -> None:
    async with Client(lone) as client, all_well(browser, lone) as page:
        _, response_id = await answering(client)
        state = page.locator(".list .state")
        await expect(state).to_have_text("answering")
        (core,) = lone.children("engine.core")
        with halted(lone, core, "core"):
            await expect_paused(page, lone, "makes no progress")
        await expect(state).to_have_text("answering")
        await expect(page.locator(".trouble")).to_have_count(0)
        lone.kill_child("engine.core")
        with halted(lone, await next_core(lone, core), "core"):
            await expect_paused(page, lone, "is away")
        await expect(state).to_have_text("answering")
        await expect(page.locator(".trouble")).to_have_count(0)
        await client.reply("stop", response_id=response_id)
        await client.done(response_id)


async def test_a_worker_that_hangs_makes_figures_old_and_each_request_has_a_limit(
    browser: Browser, lone: Server
) -> None:
    async with Client(lone, ping_interval=None) as client, all_well(browser, lone) as page:
        _, response_id = await answering(client)
        await expect(page.locator(".list .state")).to_have_text("answering")
        given_up: list[str] = []
        page.on("requestfailed", lambda request: given_up.append(request.url))
        trouble, as_of = page.locator(".trouble"), page.locator(".as-of")
        color, connections = "e => getComputedStyle(e).color", figure(page, "connections")
        ink = await connections.evaluate(color)
        (worker,) = lone.children("server.worker")
        with halted(lone, worker, "worker"):
            await page.clock.run_for(READ_MS + 2000)
            await expect(trouble).to_contain_text(SILENT)
            assert given_up and "/v1/admin/" in given_up[0]
            await expect(as_of).to_have_text(re.compile(rf"^as of {TIME}, \d+ s ago$"))
            assert await connections.evaluate(color) != ink
            await expect(page.locator(".list .state")).to_have_text("paused")
            await expect(page.locator(".state.in_progress")).to_have_count(0)
            await page.clock.run_for(60_000)
            await expect(as_of).to_have_text(re.compile(rf"^as of {TIME}, 1 min \d\d s ago$"))
            assert len(given_up) > 8  # it goes on asking
            await page.get_by_role("row").last.get_by_role("button", name="Stop").click()
            await page.clock.run_for(DEED_MS)
            await expect(page.locator(".toast")).to_contain_text(
                "whether this was done is not known"
            )
        await expect(trouble).to_have_count(0)
        await expect(as_of).to_have_text(re.compile(f"^as of {TIME}$"))
        assert await connections.evaluate(color) == ink
        await client.send("stop", response_id=response_id)  # perhaps once more
        await client.done(response_id)


async def test_a_token_is_not_waited_for_when_the_server_hangs(
    browser: Browser, lone: Server
) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.clock.install()
    await page.goto(lone.url + "/admin")
    (worker,) = lone.children("server.worker")
    with halted(lone, worker, "worker"):
        await sign_in(page, admin_token(lone))
        await expect(page.get_by_role("button", name="Signing in …")).to_be_disabled()
        await page.clock.run_for(READ_MS)
        await expect(page.get_by_role("alert")).to_have_text(SILENT)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    await context.close()


@pytest.mark.slow
async def test_without_redis_the_lists_are_said_to_be_old_and_not_doubted_to_be_stored(
    browser: Browser, lone: Server
) -> None:
    async with all_well(browser, lone) as page:
        trouble = page.locator(".trouble")
        with redis_away(lone):
            await expect(trouble).to_contain_text("The session store does not answer.")
            await expect(trouble).to_contain_text("These lists may be out of date: they are of")
            as_of = page.locator(".as-of")
            await expect(as_of).to_have_text(re.compile(rf"^as of {TIME}, \d+ s ago$"))
            await expect(page.get_by_text("whether this was stored")).to_have_count(0)
        await expect(trouble).to_have_count(0)


async def test_another_worker_that_hangs_is_named_with_the_moment_since_when(
    browser: Browser, two_workers: Server
) -> None:
    async with all_well(browser, two_workers) as page:
        async with Client(two_workers) as client:
            pid = pid_of(await replica_of(client))
        (worker,) = [one for one in two_workers.children("server.worker") if one.pid == pid]
        trouble = page.locator(".trouble").filter(has_not_text=SILENT)
        with halted(two_workers, worker, "worker"):
            said = re.compile(rf"Worker \S+ · {pid} has not been seen since {TIME}\.")
            await expect(trouble).to_contain_text(said)
            await expect(page.locator(".trouble.lost")).to_have_count(0)  # the other one answers
        await expect(trouble).to_have_count(0)
