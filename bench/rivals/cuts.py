"""How soon text comes again after a cut, the death of a worker, and a reload of the page."""

import asyncio
import os
import shutil
import signal
import statistics
import time
from urllib.parse import urlsplit

from playwright.async_api import async_playwright

from bench.harness.report import Figure
from bench.rivals.questions import DELTA
from server.supervisor.supervisor import request_login_url
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.owned_answer import begin, owner_and_other
from tests.helpers.tiny_model import oracle_answer, oracle_word

CUT_SECONDS = 3.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ANSWER = "[role=log] article:last-of-type"


async def cut_figures(server: Server) -> list[Figure]:
    """The network holds everything for 3 s, then lets it pass."""
    seconds = []
    with FaultProxy(urlsplit(server.url).netloc) as way:
        for _ in range(3):
            async with Client(server, address=way.address) as client:
                session = await client.new_session()
                settings = {"temperature": 0, "max_output_tokens": 400}
                response = await client.ask(session, oracle_word(0), settings=settings)
                await client.deltas(response, 3)
                way.command("blackhole")
                await asyncio.sleep(CUT_SECONDS)
                held = client.answers[response].num_deltas
                healed = time.monotonic()
                way.command("pass")
                await client.deltas(response, held + 1)
                seconds.append(time.monotonic() - healed)
                assert (await client.done(response)).final == oracle_answer(0, 400)
    return [Figure("text again after a cut of 3 s, max", max(seconds), 1.5, "s")]


async def death_figures(server: Server) -> list[Figure]:
    """`kill -9` of the worker that writes the answer, watched from the other one."""
    seconds = []
    for word in range(0, 300, 100):
        async with owner_and_other(server) as (owner, other, pid):
            _, response = await begin(owner, other, word)
            server.history.fault("kill -9 of the owner")
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            await other.next("response.queued")
            await other.next(DELTA)
            seconds.append(time.monotonic() - killed)
            assert (await other.done(response)).final == oracle_answer(word, 250)
    return [Figure("text again after kill -9 of the worker, max", max(seconds), 2.0, "s")]


async def reload_figures(server: Server) -> list[Figure]:
    """A reload of the page in mid-answer, in Chromium: when its text grows again."""
    if CHROMIUM is None:
        return []
    seconds = []
    async with async_playwright() as playwright:
        flags = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = await browser.new_page()
        await page.goto(request_login_url(server.url, server.token))
        await page.wait_for_url(server.url + "/")
        await page.get_by_role("textbox", name="Message").fill(oracle_word(0))
        await page.keyboard.press("Enter")
        grown = f"held => (document.querySelector('{ANSWER}')?.innerText.length ?? 0) > held"
        await page.wait_for_function(grown, arg=200)
        for _ in range(5):
            held = await page.evaluate(f"document.querySelector('{ANSWER}').innerText.length")
            started = time.monotonic()
            await page.reload(wait_until="commit")
            await page.wait_for_function(grown, arg=held)
            seconds.append(time.monotonic() - started)
        await browser.close()
    return [
        Figure("live again after a reload, median", statistics.median(seconds), 0.5, "s"),
        Figure("live again after a reload, max", max(seconds), None, "s"),
    ]
