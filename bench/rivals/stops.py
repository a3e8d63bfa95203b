"""Stops: at random moments, from a second tab, in a prefill and while queued."""

import asyncio
import random
import statistics
import time

from bench.harness.report import Figure
from bench.harness.socket_client import BenchSocket
from bench.rivals.questions import DELTA, ask, prompt_of
from tests.end_to_end.frames.client_model import utf16_prefix
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

LONG_PROMPT_WORDS = 7000


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
