"""Calls of tools in an answer that another worker goes on with, seen by clients that resume."""

from collections.abc import Sequence
from typing import Any

import pytest

from server.engines.client import ParsedArguments, ParsedBegin
from server.generation.answers import AnswerReader, Part, Said, schemas_of
from server.generation.prompts import Prompt
from server.live.response_log import ResponseLog
from server.live.subscription import Subscription
from server.protocol.calls import CallLedger
from server.protocol.server_frames import ReasoningEntry
from server.runs.resuming import unsaid
from server.worker.app import Worker
from sessions.connection.embedded import EmbeddedRedis
from sessions.model.events import Event, ObjectEvent, TextEvent
from sessions.model.ids import new_response_id
from sessions.model.records import Message, utf16_length
from tests.helpers.redis_server import fresh_prefix
from tests.server.helpers.callers import TOOLS, CallingEngine
from tests.server.helpers.in_process import running_workers
from tests.server.helpers.scripted_engine import Dice
from tests.server.helpers.watching import Viewer
from tests.server.runs.test_takeover import CALM, Survivor
from tests.sessions.helpers.chat import Chat

SETTINGS = {"temperature": 0, "max_output_tokens": 500, "seed": 1, "top_p": 1.0, "tools": TOOLS}


class Ledger:
    """What a client holds of an answer by its frames."""

    def __init__(self) -> None:
        self.text = self.reasoning = ""
        self.items: dict[str, dict[str, Any]] = {}
        self.last = 0
        self._parts: list[dict[str, Any]] = []

    def apply(self, frame: dict[str, Any]) -> None:
        number = frame["sequence_number"]
        match frame["type"]:
            case "response.output_text.snapshot":
                return self._snapshot(frame)
            case "response.done":
                assert frame["response"]["text_length"] == utf16_length(self.text)
            case kind:
                assert frame.get("first_sequence_number", number) == self.last + 1, kind
        match frame["type"]:
            case "response.output_text.delta":
                assert frame["text_offset"] == utf16_length(self.text)
                self.text += frame["delta"]
            case "response.reasoning_text.delta":
                assert frame["text_offset"] == utf16_length(self.reasoning)
                self.reasoning += frame["delta"]
            case "response.output_item.added":
                assert frame["item"]["id"] not in self.items
                self.items[frame["item"]["id"]] = dict(frame["item"])
            case "response.output_item.done":
                held = self.items[frame["item"]["id"]]
                assert held["arguments"] == frame["item"]["arguments"]
                held |= frame["item"]
            case "response.function_call_arguments.delta":
                self.items[frame["item_id"]]["arguments"] += frame["delta"]
            case "response.function_call_arguments.done":
                assert self.items[frame["item_id"]]["arguments"] == frame["arguments"]
        self.last = number

    def _snapshot(self, frame: dict[str, Any]) -> None:
        self._parts.append(frame)
        if frame["part"] < frame["parts"]:
            return
        self.text = "".join(part["text"] for part in self._parts)
        self.reasoning = "".join(part.get("reasoning_text", "") for part in self._parts)
        items = [item for part in self._parts for item in part.get("output", ())]
        self.items = {item["id"]: item for item in items}
        self.last = frame["sequence_number"]

    def holds(self, message: Message) -> bool:
        return (self.text, self.reasoning or None, list(self.items.values()) or None) == (
            message.text,
            message.reasoning,
            message.tool_calls,
        )


def entries_of(engine: CallingEngine, response_id: str) -> list[tuple[Event, int]]:
    """Each entry that the answer may have, and how many tokens must be stored with it."""
    reader = AnswerReader(engine, [1], schemas_of(TOOLS))
    ledger = CallLedger(response_id)
    lengths = {False: 0, True: 0}
    entries: list[tuple[Event, int]] = []
    for num_tokens, word in enumerate(engine.first, 1):
        found: list[Event] = []
        for part in reader.feed(word):
            if isinstance(part, Part):
                offset = lengths[part.is_reasoning]
                lengths[part.is_reasoning] += utf16_length(part.text)
                if part.is_reasoning:
                    entry = ReasoningEntry(
                        response_id=response_id, text_offset=offset, delta=part.text
                    )
                    found.append(ObjectEvent(entry.wire()))
                else:
                    found.append(TextEvent(offset, part.text))
            elif isinstance(part, ParsedBegin):
                found.append(ObjectEvent(ledger.begin(part.name).wire()))
            elif isinstance(part, ParsedArguments):
                found.append(ObjectEvent(ledger.add(part.index, part.delta).wire()))
            else:
                ends = ledger.end(part.index, is_valid=part.is_valid)
                found += [ObjectEvent(entry.wire()) for entry in ends]
        entries += [(event, num_tokens) for event in found]
    return entries


async def orphan(
    worker: Worker, response_id: str, chat: Chat, stored: Sequence[tuple[Event, int]]
) -> None:
    """The answer of a dead worker, which had stored these entries."""
    num_tokens = stored[-1][1] if stored else 0
    response = {"id": response_id, "session_id": chat.session_id, "settings": SETTINGS}
    await chat.begin(
        "How is it?",
        response_id=response_id,
        owner="dead",
        model="oracle",
        settings=SETTINGS,
        created_event={"type": "response.created", "response": response},
    )
    begins = {"type": "response.in_progress", "prompt_tokens": 1, "cached_tokens": 0}
    await worker.store.runs.append(
        response_id,
        fence=1,
        first=2,
        events=[ObjectEvent(begins), *(event for event, _ in stored)],
        token_ids=[7] * num_tokens,
        text_length=sum(utf16_length(e.delta) for e, _ in stored if isinstance(e, TextEvent)),
        status="in_progress",
        fields={
            "prompt_hash": Prompt([1], None, 0, has_tools=True).hash,
            "model_fingerprint": worker.models.default.fingerprint,
        },
    )


async def resumed(response_id: str, log: ResponseLog, number: int) -> Ledger:
    """What a client holds that has the first entries, and asks for what follows them."""
    ledger, viewer = Ledger(), Viewer()
    for place, event in enumerate(log.events[:number], 1):
        if isinstance(event, TextEvent):
            frame = {
                "type": "response.output_text.delta",
                "text_offset": event.text_offset,
                "delta": event.delta,
            }
        else:
            frame = dict(event.data)
        ledger.apply({**frame, "sequence_number": place})
    subscription = Subscription(viewer, "ses")
    subscription.end_join(0)
    subscription.put_log(response_id, log, number)
    for sent in await viewer.sent():
        ledger.apply(sent)
    return ledger


@pytest.mark.parametrize("seed", range(4))
async def test_a_client_that_resumes_anywhere_holds_what_is_stored_after_any_death(
    redis_server: EmbeddedRedis, seed: int
) -> None:
    engine = CallingEngine(seed)
    url, prefix = redis_server.url, fresh_prefix()
    async with running_workers(url, prefix, engine, Dice(seed), 1, CALM) as (worker,):
        survivor = Survivor(worker, engine)
        num_entries = len(entries_of(engine, "resp_x"))
        assert num_entries > 10
        for num_stored in range(seed, num_entries + 1, 4):  # the seeds together: all
            chat = await Chat.create(worker.store, uid="local")
            response_id = new_response_id(chat.session_id)
            entries = entries_of(engine, response_id)
            await orphan(worker, response_id, chat, entries[:num_stored])
            record, _ = await survivor.adopted(response_id)
            assert (record.status, record.reason, record.fence) == ("completed", "tool_calls", 2)
            message = await worker.store.messages.get(None, record.session_id, record.message_id)
            assert [
                (call["name"], call["arguments"], call["status"])
                for call in message.tool_calls or ()
            ] == [
                ("weather", '{"city": "Brno é😀"}', "completed"),
                ("clock", "{}", "completed"),
            ]
            assert (message.text, message.reasoning) == ("I look.", "Hm: é😀.")
            stored = await worker.store.runs.events(response_id)
            assert [number for number, _ in stored] == list(range(1, len(stored) + 1))
            log = ResponseLog(2, [event for _, event in stored])
            for number in range(num_stored % 3, len(stored), 3):
                ledger = await resumed(response_id, log, number)
                assert ledger.holds(message), number


def test_what_is_known_of_calls_is_not_said_again() -> None:
    ledger = CallLedger("resp_x")
    ledger.begin("clock")
    ledger.add(0, '{"a"')
    parts: list[Said] = [ParsedBegin(0, "", "clock"), ParsedArguments(0, '{"a": 1}')]
    assert unsaid(parts, "", "", ledger.calls) == [ParsedArguments(0, ": 1}")]
    assert unsaid(parts[:1], "", "", ledger.calls) is None
    assert unsaid([ParsedBegin(0, "", "other")], "", "", ledger.calls) is None
    assert unsaid([parts[0], ParsedArguments(0, "{}")], "", "", ledger.calls) is None
    assert unsaid([Part("b"), *parts], "a", "", ledger.calls) is None
