"""Stops, the wish, in one packet with subscribe, resume and delete: in any order, at either worker.

Who comes back after a cut sends `session.subscribe` with positions and all that had no answer, all
at once. The server has read all of it before it has answered any of it, so what is asked for first
may be answered last. A failure prints its seed; `PARLEY_PACKET_SEED=N` draws the same packets.
"""

import asyncio
import itertools
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sessions.model.ids import session_of
from tests.end_to_end.frames import raw
from tests.end_to_end.frames.client_model import Answer, Frame
from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.wiring import at_both, two_workers_serve
from tests.helpers.tiny_model import oracle_answer, oracle_word

NUM_TOKENS = 40
AT_ONCE = 8
TEXTS = ("response.output_text.delta", "response.output_text.snapshot")
KINDS = ("subscribe", "resume", "stop", "delete")
# Every order of every choice of them, and of some the same thing twice.
ORDERS = [
    *itertools.chain.from_iterable(itertools.permutations(KINDS, size) for size in range(1, 5)),
    ("stop", "stop", "subscribe"),
    ("subscribe", "stop", "subscribe"),
    ("stop", "subscribe", "subscribe"),
    ("resume", "stop", "resume"),
    ("subscribe", "resume", "resume", "stop"),
    ("stop", "resume", "stop", "subscribe"),
    ("subscribe", "subscribe"),
    ("resume", "subscribe", "resume"),
]


class Returning(Client):
    """A connection that sends several frames in one packet, and only keeps what comes."""

    def _apply(self, frame: Frame) -> None:
        """Positions of several requests are no single place in the log: the history knows them."""

    async def send_packet(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.record.sent(frame)
        packet = b"".join(raw.frame(raw.TEXT, json.dumps(frame).encode()) for frame in frames)
        self.socket.transport.write(packet)

    async def has_handled_all(self) -> None:
        """All that was sent so far; what it brings may come later."""
        reply = await self.reply("session.unsubscribe", session_id="ses_" + "A" * 22)
        assert reply["error"]["code"] == "not_subscribed"


@dataclass
class Return:
    """One answer, and one client that comes back to it with a packet."""

    order: tuple[str, ...]
    dice: random.Random
    session: str
    response: str
    first: int  # the number of the answer's first word
    key: str
    last: int = 0  # where the client had come to when it was cut off
    text: str = ""

    def packet(self) -> list[Frame]:
        return [{**self._frame(kind), "event_id": f"{n}"} for n, kind in enumerate(self.order)]

    def _frame(self, kind: str) -> Frame:
        position = {
            "response_id": self.response,
            "fence": 1,
            "after_sequence_number": self.dice.choice((self.last, self.last, 0)),
        }
        if kind == "subscribe":
            listed = [position] if self.dice.random() < 0.8 else []
            return {"type": "session.subscribe", "session_id": self.session, "responses": listed}
        if kind == "resume":
            return {"type": "response.resume", **position}
        if kind == "delete":
            return {"type": "session.delete", "session_id": self.session}
        names: list[Frame] = [
            {"response_id": self.response},
            {"session_id": self.session},
            {"session_id": self.session, "idempotency_key": self.key},
            {},
        ]
        name = self.dice.choice(names[:3] * 3 + names)
        seen = {"seen_sequence_number": self.last} if self.dice.random() < 0.5 else {}
        return {"type": "stop", **name, **seen}

    def violations(self, frames: list[Frame]) -> Iterator[str]:
        """What the connection must not have been sent, frame by frame."""
        held, dones, deleted = self.text, [], 0
        is_stopped = is_ended = is_viewer = False
        whole = oracle_answer(self.first, NUM_TOKENS)
        for frame in frames:
            kind = frame["type"]
            if kind in TEXTS and frame["response_id"] == self.response:
                if is_stopped or is_ended:
                    yield f"text after {'the end' if is_ended else 'response.cancelling'}"
                if kind == TEXTS[1]:
                    held = frame["text"]
                    continue
                if frame["text_offset"] > len(held):
                    held = self.text  # a replay for another of the requests
                if frame["text_offset"] > len(held):
                    yield f"a delta at {frame['text_offset']} after {len(held)}"
                held = held[: frame["text_offset"]] + frame["delta"]
            elif kind == "response.cancelling":
                is_stopped |= frame["response_id"] == self.response
            elif kind == "session.subscribed":
                is_viewer = True
            elif kind == "response.done":
                is_ended |= frame["durable"]
                dones.append(frame)
                held = frame.get("text", held)
                length = frame["response"]["text_length"]
                if len(held) < length or not whole.startswith(held[:length]):
                    yield f"an end at {length} of {held!r}"
            elif kind == "session.deleted":
                deleted += 1
                if is_viewer and is_stopped and not dones:
                    yield "session.deleted before response.done"
        if sum(done["durable"] for done in dones) > 1:
            yield "a second end"
        if deleted > 1:
            yield "session.deleted twice"


async def come_back(
    server: Server, watchers: tuple[Client, Client], dice: random.Random, order: tuple[str, ...]
) -> list[str]:
    """One packet to whichever worker the kernel chooses; returns what was wrong."""
    first, key = dice.randrange(1, 9_000), os.urandom(8).hex()
    asker, other = dice.sample(watchers, 2)
    session = await asker.new_session()
    await other.reply("session.subscribe", session_id=session)
    async with Returning(server) as client:
        settings = {"temperature": 0, "max_output_tokens": NUM_TOKENS}
        response = await asker.ask(
            session, oracle_word(first), idempotency_key=key, settings=settings
        )
        returned = Return(order, dice, session, response, first, key)
        known = await deltas_or_end(asker, response, dice.choice((1, 2, 5)))
        returned.last, returned.text = known.last, known.text
        packet = returned.packet()
        await client.send_packet(packet)
        await client.has_handled_all()
        if "delete" in order:
            for watcher in watchers:
                # mypy infers no type for a lambda's default, which holds this turn's watcher.
                await watcher.wait(lambda w=watcher: sent_to(w, session, "session.deleted"))  # type: ignore[misc]
        for watcher in watchers:
            await watcher.done(response)
        if is_owed_an_end(client.frames, response, "delete" in order):
            await client.wait(lambda: sent_to(client, session, "response.done"), str(packet))
        await client.has_handled_all()
        about = [frame for frame in client.frames if session_in(frame) == session]
        wrong = list(returned.violations(about))
    for watcher in watchers if "delete" in order else ():
        wanted = ["response.done", "session.deleted"]
        if (kinds := [f["type"] for f in sent_to(watcher, session, *wanted)]) != wanted:
            wrong.append(f"a viewer was sent {kinds}")
    frames = "\n".join(str(frame)[:200] for frame in about)
    return [f"{what}: {packet}\n{frames}" for what in wrong]


async def deltas_or_end(client: Client, response: str, count: int) -> Answer:
    """Where the machine is busy, an answer comes in fewer deltas than it has tokens."""
    answer: Answer = await client.wait(
        lambda: (a := client.answers.get(response)) and (a.num_deltas >= count or a.done) and a,
        f"{count} deltas, or the end",
    )
    return answer


def sent_to(client: Client, session: str, *kinds: str) -> list[Frame]:
    """Frames of these types about the session; of ends only those that count."""
    return [
        frame
        for frame in client.frames
        if frame["type"] in kinds and session == session_in(frame) and frame.get("durable", True)
    ]


def session_in(frame: Frame) -> str | None:
    """Which session the frame is about."""
    response = frame.get("response_id") or frame.get("response", {}).get("id")
    session: str | None = session_of(response) if response else frame.get("session_id")
    return session


def is_owed_an_end(frames: list[Frame], response: str, is_deleted: bool) -> bool:
    """All who watch the answer, and who has stopped it where there is an end to be read."""
    for frame in frames:
        if frame["type"] == "session.subscribed" and response in frame["active_responses"]:
            return True
        if frame["type"] == "response.cancelling" and frame["response_id"] == response:
            return not is_deleted
    return False


async def come_back_often(server: Server, num_rounds: int) -> None:
    """All orders, so many times each."""
    seed = int(os.environ.get("PARLEY_PACKET_SEED") or random.SystemRandom().randrange(2**32))
    print(f"PARLEY_PACKET_SEED={seed}")
    dice = random.Random(seed)
    todo = ORDERS * num_rounds
    dice.shuffle(todo)
    wrong: list[str] = []
    for start in range(0, len(todo), AT_ONCE):
        async with at_both(server) as watchers:
            tries = [
                come_back(server, watchers, dice, order) for order in todo[start : start + AT_ONCE]
            ]
            for found in await asyncio.gather(*tries):
                wrong += found
    assert not wrong, f"{len(wrong)} of {len(todo)}:\n" + "\n\n".join(wrong[:5])


@pytest.mark.row("C19")
async def test_a_stop_and_an_end_are_the_last_of_the_text_in_any_packet(
    two_workers: Server,
) -> None:
    await come_back_often(two_workers, 1)


@pytest.mark.slow
async def test_three_thousand_packets_in_any_order_bring_no_text_after_a_stop_or_an_end(
    new_server: Any,
) -> None:
    server = new_server(PARLEY_WORKERS="2", PARLEY_PACE="200")
    await two_workers_serve(server)
    await come_back_often(server, 3_000 // len(ORDERS) + 1)
