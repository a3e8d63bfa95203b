"""The console's strip in real Chromium: each part that is halted or killed is red within 3 seconds.

The processes are the real ones, and so are the clocks. What a busy machine adds to a try is not the
console's: the best of three tries counts.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.end_to_end.admin.test_admin_outages import halted, next_core
from tests.end_to_end.admin.test_incidents import fill, redis_on
from tests.end_to_end.admin.test_incidents import small_disk as small_disk  # the fixture
from tests.end_to_end.admin.test_incidents import start as start  # the fixture
from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.clients.console import console, sign_in
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.clients.operators import answering
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE

pytestmark = [*needs_browser, pytest.mark.slow]

FULL = re.compile(r"^Redis away for \d+ s: MISCONF .*No space left on device")
SEEN_SECONDS = 3.0
TRIES = 3


@pytest.fixture(scope="module")
def pair(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers with the intervals of a real server, which leaves a halted engine alone."""
    data = tmp_path_factory.mktemp("vitals") / "data"
    environment = {"PARLEY_WORKERS": "2", "PARLEY_WATCHDOG_SECONDS": "3600"}
    server = Server(data, oracle_model, None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


@contextlib.asynccontextmanager
async def all_well(browser: Browser, server: Server) -> AsyncIterator[Page]:
    """The page, signed in, with all parts green."""
    async with console(browser, server) as page:
        await all_green(page)
        yield page


async def all_green(page: Page) -> None:
    await expect(page.locator(".vital.good")).to_have_count(4)  # Redis, engine, two workers
    await expect(page.locator(".vital:not(.good)")).to_have_count(0)


def vital(page: Page, name: str) -> Locator:
    return page.locator(".vital").filter(has_text=re.compile(f"^{name}"))


async def answering_worker(page: Page, server: Server) -> psutil.Process:
    """The one that the page's requests reach."""
    async with page.expect_response("**/v1/admin/health") as waited:
        pass
    replica = (await (await waited.value).json())["replica"]
    return next(one for one in server.children("server.worker") if f"-{one.pid}-" in replica)


async def best_of_tries(
    page: Page, break_it: Callable[[], contextlib.AbstractContextManager[Locator]]
) -> float:
    """Break a part, see it red, let it go on, until it was seen soon enough: how long that took."""
    best = float("inf")
    for _ in range(TRIES):
        began = time.monotonic()
        with break_it() as red:
            await expect(red).to_have_count(1)
            best = min(best, time.monotonic() - began)
        await all_green(page)
        if best <= SEEN_SECONDS:
            break
    return best


async def test_an_engine_that_is_halted_is_seen(browser: Browser, pair: Server) -> None:
    async with all_well(browser, pair) as page:

        @contextlib.contextmanager
        def broken() -> Iterator[Locator]:
            (core,) = pair.children("engine.core")
            with halted(pair, core, "core"):
                yield page.locator(".vital.bad").filter(has_text="Engine")

        assert await best_of_tries(page, broken) <= SEEN_SECONDS


async def test_an_engine_that_is_killed_is_seen(browser: Browser, pair: Server) -> None:
    async with all_well(browser, pair) as page:
        (core,) = pair.children("engine.core")
        began = time.monotonic()
        pair.kill_child("engine.core")
        await expect(vital(page, "Engine")).to_have_class(re.compile(r"\b(bad|warn)\b"))
        assert time.monotonic() - began <= SEEN_SECONDS
        await next_core(pair, core)
        await all_green(page)


async def test_redis_that_is_halted_is_seen_and_the_server_is_not_blamed(
    browser: Browser, pair: Server
) -> None:
    async with all_well(browser, pair) as page:

        @contextlib.contextmanager
        def broken() -> Iterator[Locator]:
            (redis,) = pair.children("redis-server")
            with halted(pair, redis, "redis"):
                yield page.locator(".vital.bad").filter(has_text="Redis")

        assert await best_of_tries(page, broken) <= SEEN_SECONDS
        await expect(vital(page, "Engine")).to_have_class(re.compile("good"))


async def test_redis_that_is_killed_is_seen(browser: Browser, pair: Server) -> None:
    """The supervisor has another one there in a moment, which is halted so that it is not."""
    async with all_well(browser, pair) as page:
        (redis,) = pair.children("redis-server")
        began = time.monotonic()
        pair.kill_child("redis-server")
        with halted(pair, await next_redis(pair, redis), "redis"):
            await expect(page.locator(".vital.bad").filter(has_text="Redis")).to_have_count(1)
            assert time.monotonic() - began <= SEEN_SECONDS
        await all_green(page)


async def next_redis(server: Server, before: psutil.Process) -> psutil.Process:
    async with asyncio.timeout(PATIENCE):
        while True:
            for redis in server.children("redis-server"):
                if redis.pid != before.pid:
                    return redis
            await asyncio.sleep(0.02)  # the supervisor tells nobody: there is no event to wait for


async def test_a_worker_that_is_halted_is_seen_by_another_one(
    browser: Browser, pair: Server
) -> None:
    async with all_well(browser, pair) as page:

        @contextlib.contextmanager
        def broken() -> Iterator[Locator]:
            with halted(pair, other, "worker"):
                yield page.locator(".vital.bad").filter(has_text=str(other.pid))

        asked = await answering_worker(page, pair)
        (other,) = [one for one in pair.children("server.worker") if one.pid != asked.pid]
        assert await best_of_tries(page, broken) <= SEEN_SECONDS


async def test_when_the_worker_that_is_asked_is_halted_nothing_stays_green(
    browser: Browser, pair: Server
) -> None:
    async with all_well(browser, pair) as page:
        workers = pair.children("server.worker")

        @contextlib.contextmanager
        def broken() -> Iterator[Locator]:
            with contextlib.ExitStack() as stack:
                for worker in workers:
                    stack.enter_context(halted(pair, worker, "worker"))
                yield page.locator(".vitals.old")

        assert await best_of_tries(page, broken) <= SEEN_SECONDS


async def test_a_worker_that_is_killed_is_gone_and_its_successor_is_there(
    browser: Browser, pair: Server
) -> None:
    async with all_well(browser, pair) as page:
        victim = pair.children("server.worker")[0]
        began = time.monotonic()
        victim.kill()
        pair.history.fault("worker kill")
        await expect(page.locator(".vital.good").filter(has_text=str(victim.pid))).to_have_count(0)
        assert time.monotonic() - began <= SEEN_SECONDS
        await all_green(page)


async def test_an_admin_without_the_right_sees_no_titles_and_adds_no_engine_at_an_address(
    browser: Browser, pair: Server
) -> None:
    async with Http(pair, admin_token(pair)) as admin:
        body = {"name": "Helper", "roles": ["admin"], "scopes": ["admin"]}
        helper = (await admin.post("/v1/admin/users", body)).json()
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(pair.url + "/admin#sessions?q=zephyr&show=all")
    await sign_in(page, helper["token"])
    await expect(page.locator(".found")).to_contain_text("Nobody, and no id, for zephyr")
    await context.close()


async def test_of_a_redis_without_room_on_its_disk_the_strip_says_what_redis_says(
    browser: Browser, start: Callable[..., Server], small_disk: Path
) -> None:
    server = start(redis_on(small_disk))
    async with console(browser, server) as page, Client(server) as client:
        redis = vital(page, "Redis")
        await expect(redis).to_have_class("vital good")
        await answering(client)  # what it stores has no room soon
        filler = fill(small_disk, spare=1 << 20)
        await expect(redis).to_have_text("Redis the disk of the data directory is nearly full")
        await expect(redis).to_have_class("vital warn")
        fill(small_disk)
        await expect(redis).to_have_text(FULL)
        await expect(redis).to_have_class("vital bad")
        await expect(page.locator(".strip").get_by_role("status")).to_contain_text(
            "Not well: Redis."
        )
        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate("document.documentElement.scrollWidth") == width
        filler.unlink()
        await expect(redis).to_have_class("vital good")
