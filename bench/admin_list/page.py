"""What the console's scripts compute in a frame, in Chromium, while what it shows moves.

Each tab is open for some seconds. Twice a second all running answers get other numbers of tokens,
so that the list by tokens has another order each time: more than a server does.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from playwright.async_api import Page, async_playwright

from bench.admin_list.filling import Filling
from bench.harness.report import Figure, percentile
from tests.end_to_end.admin.test_admin_figures import CATEGORIES, MAX_SCRIPT_MS, script_ms_by_frame
from tests.end_to_end.browser.test_browser import CHROMIUM, FLAGS
from tests.end_to_end.clients.console import sign_in
from tests.end_to_end.clients.http_client import admin_token
from tests.end_to_end.site.harness import Server

TABS = {
    "sessions that are answered": "sessions",
    "by tokens, one open": "sessions?sort=-tokens&open={session}",
    "all sessions": "sessions?show=all",
    "figures of 15 minutes": "figures",
    "figures of 30 days": "figures?span=30d",
    "the server": "server",
    "users": "users",
    "the audit log": "audit",
}
FIRST_SECONDS = 3.0  # a tab is drawn for the first time
SECONDS_BETWEEN = 0.5


async def measure_page(server: Server, filling: Filling, seconds: float) -> list[Figure]:
    """Nothing where no Chromium is installed."""
    if CHROMIUM is None:
        return []
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, *sandbox]
        )
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        await page.goto(server.url + "/admin")
        await sign_in(page, admin_token(server))
        moving = asyncio.create_task(move_forever(filling))
        try:
            figures: list[Figure] = []
            for name, hash_ in TABS.items():
                place = hash_.format(session=next(iter(filling.live)))
                await page.goto(f"{server.url}/admin#{place}")
                figures += script_figures(name, await scripts_of(page, seconds))
            return figures
        finally:
            moving.cancel()
            await browser.close()


async def move_forever(filling: Filling) -> None:
    while True:
        await filling.stay_alive()
        await filling.move()
        await asyncio.sleep(SECONDS_BETWEEN)


async def scripts_of(page: Page, seconds: float) -> list[float]:
    """The milliseconds of each frame in which any script ran."""
    await asyncio.sleep(FIRST_SECONDS)
    session = await page.context.new_cdp_session(page)
    events: list[dict[str, Any]] = []
    session.on("Tracing.dataCollected", lambda data: events.extend(data["value"]))
    is_complete = asyncio.Event()
    session.on("Tracing.tracingComplete", lambda _: is_complete.set())
    await session.send("Tracing.start", {"transferMode": "ReportEvents", "categories": CATEGORIES})
    await asyncio.sleep(seconds)
    await session.send("Tracing.end")
    await is_complete.wait()
    await session.detach()
    return script_ms_by_frame(events)


def script_figures(name: str, milliseconds: Sequence[float]) -> list[Figure]:
    """One frame in twenty may hold a collection of garbage."""
    what = f"script in a frame, {name}"
    return [
        Figure(f"{what}, median", percentile(milliseconds, 50), None, "ms"),
        Figure(f"{what}, p95", percentile(milliseconds, 95), MAX_SCRIPT_MS, "ms"),
        Figure(f"{what}, max", max(milliseconds), None, "ms"),
    ]
