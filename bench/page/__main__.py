"""`python -m bench.page`: requests, bytes and first paint of the chat page, bundled and as it is.

A wheel is built and unpacked, which needs npm; its server and one of this checkout are visited in
turns by a Chromium whose caches are empty.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.async_api import async_playwright

from bench.harness.report import Figure, report
from bench.harness.servers import running_server
from bench.page.first_visit import FirstVisit, first_visit
from tests.end_to_end.browser.test_browser import CHROMIUM, FLAGS
from tests.end_to_end.site.harness import Server
from tests.wheel.unpacked_wheel import unpacked_wheel

MAX_REQUESTS = 12
MAX_KB = 110.0
MAX_PAINT_MS = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--visits", type=int, default=9, help="of each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:

        class WheelServer(Server):
            root = unpacked_wheel(Path(folder))

        with running_server(kind=WheelServer) as bundles, running_server() as sources:
            visits = asyncio.run(measure([bundles, sources], arguments.visits))
    report("page", [*figures("bundles", visits[0], True), *figures("sources", visits[1], False)])


async def measure(servers: Sequence[Server], num_visits: int) -> list[list[FirstVisit]]:
    """The visits of each server; another one before them starts what a browser starts once."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, *sandbox]
        )
        rounds = [
            [await first_visit(browser, server) for server in servers]
            for _ in range(1 + num_visits)
        ]
        await browser.close()
    return [list(visits) for visits in zip(*rounds[1:], strict=True)]


def figures(what: str, visits: Sequence[FirstVisit], is_promised: bool) -> list[Figure]:
    num_requests = max(len(visit.addresses) for visit in visits)
    kilobytes = max(visit.num_bytes for visit in visits) / 1e3
    paint_ms = statistics.median(visit.first_paint_ms for visit in visits)
    rows = (
        ("requests, with the websocket", num_requests, MAX_REQUESTS, ""),
        ("transferred", kilobytes, MAX_KB, "kB"),
        ("first contentful paint, median", paint_ms, MAX_PAINT_MS, "ms"),
    )
    return [
        Figure(f"{what}: {name}", achieved, target if is_promised else None, unit)
        for name, achieved, target, unit in rows
    ]


if __name__ == "__main__":
    main()
