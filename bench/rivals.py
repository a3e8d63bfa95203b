"""`python -m bench.rivals`: what users of chat servers feel, measured as it was on others.

The model has about 100 million weights and counts, so each text can be checked. The clients are
websockets, and headless Chromium for the reload. "Direct" is the same engine without a server, in
the same run and taking turns. Each target is what docs/reliability.md says that Parley must show.
"""

import argparse
import asyncio
import itertools
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from playwright.async_api import async_playwright

from bench.report import Figure, report
from bench.servers import running_server, user_tokens
from bench.socket_client import BenchSocket
from engine import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams
from server.supervisor.supervisor import request_login_url
from tests.end_to_end.clients.client_model import utf16_prefix
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.owned_answer import begin, owner_and_other
from tests.helpers.tiny_model import build_oracle_model, oracle_answer, oracle_word

NUM_LAYERS, MLP_WIDTH = 40, 2816  # with 17,000 words of width 256: 96 million weights
LOADS = (8, 16)  # chats at once
PROMPT_WORDS = 32
LONG_PROMPT_WORDS = 7000
NUM_IDLE = 1000
CUT_SECONDS = 3.0
DELTA = "response.output_text.delta"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ANSWER = "[role=log] article:last-of-type"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rivals", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side under load")
    parser.add_argument("--tokens", type=int, default=96, help="length of each answer under load")
    parser.add_argument("--stops", type=int, default=100, help="stops at random moments")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"num_layers": NUM_LAYERS, "mlp_width": MLP_WIDTH}
        model = build_oracle_model(Path(folder) / "model", **sizes)
        with running_server(model) as server:
            figures = idle_figures(server)
            figures += asyncio.run(stop_figures(server, arguments.stops))
            figures += asyncio.run(cut_figures(server))
            figures += load_figures(server, model, arguments.rounds, arguments.tokens)
            figures += asyncio.run(reload_figures(server))
        with running_server(model, PARLEY_WORKERS="2") as server:
            figures += asyncio.run(death_figures(server))
    report("rivals", figures)


# ---- at rest ------------------------------------------------------------------------------------


def the_worker(server: Server) -> psutil.Process:
    (worker,) = server.children("server.worker")
    return worker


def idle_figures(server: Server) -> list[Figure]:
    """Memory of a worker that nobody has used yet, and of connections that say nothing."""
    worker = the_worker(server)
    base = worker.memory_info().rss

    async def connect() -> float:
        warm = [await BenchSocket.open(server) for _ in range(20)]
        before = worker.memory_info().rss
        sockets = [await BenchSocket.open(server) for _ in range(NUM_IDLE)]
        grown = worker.memory_info().rss - before
        for socket in [*warm, *sockets]:
            socket.close()
        return float(grown) / NUM_IDLE

    return [
        Figure("memory of an unused worker", base / 2**20, 80.0, "MiB"),
        Figure("memory of an idle connection", asyncio.run(connect()) / 1024, 40.0, "KiB"),
    ]


# ---- stops --------------------------------------------------------------------------------------


async def stop_figures(server: Server, num_stops: int) -> list[Figure]:
    """From sending a stop to `response.done`, which says that the engine has released it."""
    step_ms = 1e3 * (await decode_step(server))
    random_ms, num_lost, num_different = await stop_at_random(server, num_stops)
    second_ms = [await stop_from_second_tab(server) for _ in range(10)]
    prefill_ms = [await stop_in_prefill(server) for _ in range(3)]
    queued_ms = await stop_while_queued(server)
    return [
        Figure("decode step of one chat", step_ms, None, "ms"),
        Figure("stop: engine released, median", statistics.median(random_ms), None, "ms"),
        Figure("stop: engine released, max", max(random_ms), step_ms + 10, "ms"),
        Figure(f"stops of {num_stops} that the engine never got", num_lost, 0, ""),
        Figure(f"stops of {num_stops} whose stored text is not the seen one", num_different, 0, ""),
        Figure("stop by a second tab, max", max(second_ms), step_ms + 10, "ms"),
        Figure(
            f"stop in a prefill of {LONG_PROMPT_WORDS} tokens, max", max(prefill_ms), None, "ms"
        ),
        Figure("stop while queued", queued_ms, step_ms + 10, "ms"),
    ]


async def decode_step(server: Server) -> float:
    """Seconds of a step, from one undisturbed answer."""
    socket = await BenchSocket.open(server)
    started = await ask(socket, 0, 64)
    await socket.next("response.done")
    deltas = [one.at for one in socket.received if f'"type":"{DELTA}"'.encode() in one.payload]
    socket.close()
    assert started < deltas[0]
    return (deltas[-1] - deltas[0]) / 63


async def ask(socket: BenchSocket, word: int, num_tokens: int) -> float:
    """Begin an answer in a session of its own; when it was asked for (`time.monotonic()`)."""
    session = await socket.new_session()
    started = time.monotonic()
    await socket.ask(session, prompt_of(word), temperature=0, max_output_tokens=num_tokens)
    return started


def prompt_of(word: int, num_words: int = PROMPT_WORDS) -> str:
    """A prompt that ends in that word of the model, so that its answer is known."""
    return "".join(oracle_word(16_000 - n % 6000) for n in range(num_words - 1)) + oracle_word(word)


async def stop_at_random(server: Server, num_stops: int) -> tuple[list[float], int, int]:
    """Milliseconds of each, how many answers ran to their end, how many stored another text."""
    chance = random.Random(0)
    took, num_lost, num_different = [], 0, 0
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 1000}
        for number in range(num_stops):
            response = await client.ask(session, oracle_word(0), settings=settings)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            known = client.answers[response]
            seen = known.text
            started = time.monotonic()
            place = {"response_id": response, "seen_sequence_number": max(1, known.last)}
            await client.send("stop", **place)
            answer = await client.done(response)
            took.append(1e3 * (time.monotonic() - started))
            assert answer.done is not None
            num_lost += answer.done["response"]["status"] != "cancelled"
            num_different += answer.final != seen
            assert oracle_answer(0, 1000).startswith(utf16_prefix(answer.text, len(seen)))
            stored = server.get_json(f"/v1/sessions/{session}/messages?limit=1")["messages"][-1]
            num_different += "".join(part["text"] for part in stored["content"]) != seen
            print(f"\rstop {number + 1}", end="", flush=True)
    print()
    return took, num_lost, num_different


async def stop_from_second_tab(server: Server) -> float:
    first, second = [await BenchSocket.open(server) for _ in range(2)]
    session = await first.new_session()
    second.send("session.subscribe", session_id=session)
    await second.next("session.subscribed")
    response = await first.ask(session, prompt_of(0), temperature=0, max_output_tokens=1000)
    await second.next(DELTA)  # it sees the text live
    started = time.monotonic()
    second.send("stop", response_id=response)
    ends = [(await socket.next("response.done")).at for socket in (first, second)]
    first.close()
    second.close()
    return 1e3 * (max(ends) - started)


async def stop_in_prefill(server: Server) -> float:
    socket = await BenchSocket.open(server)
    session = await socket.new_session()
    text = prompt_of(random.randrange(9000), LONG_PROMPT_WORDS)
    response = await socket.ask(session, text, temperature=0, max_output_tokens=10)
    await socket.next("response.in_progress")
    started = time.monotonic()
    socket.send("stop", response_id=response)
    done = await socket.next("response.done")
    socket.close()
    assert done.body["response"]["status"] == "cancelled" and done.body["engine"] == "released"
    return 1e3 * (done.at - started)


async def stop_while_queued(server: Server) -> float:
    """Behind another answer of its session."""
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 1000}
        first = await client.ask(session, oracle_word(0), settings=settings)
        queued = await client.ask(session, oracle_word(1), settings=settings, on_busy="queue")
        started = time.monotonic()
        await client.send("stop", response_id=queued)
        await client.done(queued)
        seconds = time.monotonic() - started
        await client.send("stop", response_id=first)
        await client.done(first)
    return 1e3 * seconds


# ---- cuts, deaths, reloads ----------------------------------------------------------------------


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


# ---- load ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Side:
    """One number per round."""

    rates: list[float] = field(default_factory=list)  # tokens/s of all chats together
    first_ms: list[float] = field(default_factory=list)  # median over the chats


def load_figures(server: Server, model: Path, rounds: int, num_tokens: int) -> list[Figure]:
    """Parley and the engine alone take turns; the first turn warms both up."""
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(model)))
    sides = {(num_chats, side): Side() for num_chats in LOADS for side in ("app", "direct")}
    words = itertools.count(0, 50)
    spent: dict[int, list[float]] = {num_chats: [] for num_chats in LOADS}

    async def measure() -> None:
        tokens = await user_tokens(server, max(LOADS))
        for number, num_chats in itertools.product(range(rounds + 1), LOADS):
            chats = [next(words) % 9000 for _ in range(num_chats)]
            others = [next(words) % 9000 for _ in range(num_chats)]
            before = sum(the_worker(server).cpu_times()[:2])
            app = await through_app(server, tokens, chats, num_tokens)
            cpu_ms = 1e3 * (sum(the_worker(server).cpu_times()[:2]) - before)
            direct = await at_engine(engine, others, num_tokens)
            if number:
                spent[num_chats].append(cpu_ms / num_chats / num_tokens)
                for side, (seconds, first) in (("app", app), ("direct", direct)):
                    sides[num_chats, side].rates.append(num_chats * num_tokens / seconds)
                    sides[num_chats, side].first_ms.append(1e3 * statistics.median(first))

    try:
        asyncio.run(measure())
    finally:
        engine.shutdown()
    figures = []
    for num_chats in LOADS:
        app, direct = sides[num_chats, "app"], sides[num_chats, "direct"]
        share = statistics.median(a / b for a, b in zip(app.rates, direct.rates, strict=True))
        later = [a - b for a, b in zip(app.first_ms, direct.first_ms, strict=True)]
        title = f"{num_chats} chats: "
        figures += [
            Figure(title + "tokens/s, app", statistics.median(app.rates), None, ""),
            Figure(title + "tokens/s, direct", statistics.median(direct.rates), None, ""),
            Figure(title + "tokens/s lost of direct", 100 * (1 - share), 5.0, "%"),
            Figure(title + "first token, app", statistics.median(app.first_ms), None, "ms"),
            Figure(title + "first token, behind direct", statistics.median(later), 10.0, "ms"),
            Figure(title + "worker CPU per token", statistics.median(spent[num_chats]), 0.15, "ms"),
        ]
    return figures


async def through_app(
    server: Server, tokens: list[str], words: list[int], num_tokens: int
) -> tuple[float, list[float]]:
    """Seconds for all answers, each of another user, and until the first text of each."""
    sockets = [await BenchSocket.open(server, tokens[n]) for n in range(len(words))]

    async def chat(socket: BenchSocket, word: int) -> tuple[float, float]:
        asked = await ask(socket, word, num_tokens)
        first = (await socket.next(DELTA)).at - asked
        return first, (await socket.next("response.done")).at

    started = time.monotonic()
    ends = await asyncio.gather(*map(chat, sockets, words))
    for socket in sockets:
        socket.close()
    return max(end for _, end in ends) - started, [first for first, _ in ends]


async def at_engine(
    engine: AsyncLLM, words: list[int], num_tokens: int
) -> tuple[float, list[float]]:
    """The same without a server."""
    params = SamplingParams(
        temperature=0, max_tokens=num_tokens, output_kind=RequestOutputKind.DELTA
    )

    async def chat(word: int) -> float:
        asked, first = time.monotonic(), 0.0
        async with answer(engine, word, params) as outputs:
            async for _ in outputs:
                first = first or time.monotonic() - asked
        return first

    started = time.monotonic()
    first = await asyncio.gather(*map(chat, words))
    return time.monotonic() - started, list(first)


@asynccontextmanager
async def answer(
    engine: AsyncLLM, word: int, params: SamplingParams
) -> AsyncIterator[AsyncIterator[Any]]:
    outputs = engine.generate(prompt_of(word), params, f"{word}-{time.monotonic_ns()}")
    try:
        yield outputs
    finally:
        await outputs.aclose()


if __name__ == "__main__":
    main()
