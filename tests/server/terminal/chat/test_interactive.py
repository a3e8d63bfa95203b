"""The keys of `parley chat`, pressed into a pipe, and what they have sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from server.terminal.chat import interactive
from server.terminal.chat.interactive import Interactive, last_rows
from server.terminal.chat.link import Link
from tests.helpers.patience import PATIENCE
from tests.server.terminal.chat.state.frames import (
    SESSION,
    Frame,
    answer,
    created,
    delta,
    done,
    message_event,
    question,
    subscribed,
)

ENTER, CTRL_C, CTRL_D, CTRL_S, ALT_ENTER = "\r", "\x03", "\x04", "\x13", "\x1b\r"
PASTE, PASTED = "\x1b[200~", "\x1b[201~"


class Desk:
    """A screen without a terminal, and a server that a test plays."""

    def __init__(self, screen: Interactive, keys: PipeInput, sent: asyncio.Queue[Frame]) -> None:
        self.screen, self._keys, self._sent = screen, keys, sent

    def press(self, keys: str) -> None:
        self._keys.send_text(keys)

    async def next_sent(self) -> Frame:
        async with asyncio.timeout(PATIENCE):
            return await self._sent.get()

    async def typed(self, text: str) -> None:
        """Wait until the field holds this."""
        drawn = asyncio.Event()
        self.screen.app.after_render += lambda _: drawn.set()
        async with asyncio.timeout(PATIENCE):
            while self.screen._buffer.text != text:
                drawn.clear()
                await drawn.wait()

    def receive(self, *frames: Frame) -> None:
        for frame in frames:
            self.screen.chat.client.receive(frame)


@asynccontextmanager
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    """`parley chat --session …`, which must leave by itself."""
    is_open = asyncio.Event()

    async def run(link: Link) -> int:
        link.is_open, link.lost_at = True, None
        link._on_open()
        is_open.set()
        return await asyncio.Future()

    sent: asyncio.Queue[Frame] = asyncio.Queue()
    monkeypatch.setattr(Link, "run", run)
    monkeypatch.setattr(Link, "send", lambda _, frame: sent.put_nowait(frame))
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        screen = Interactive(lambda: ("http://h", "t"), SESSION, keys, DummyOutput())
        desk = Desk(screen, keys, sent)
        running = asyncio.create_task(screen.run(None))
        try:
            await is_open.wait()
            assert (await desk.next_sent())["type"] == "session.subscribe"
            desk.receive(subscribed(4))
            yield desk
            async with asyncio.timeout(PATIENCE):
                assert await running == 0
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def answering(desk: Desk) -> None:
    desk.press("How?" + ENTER)
    asked = await desk.next_sent()
    desk.receive(message_event(5, question()), message_event(6, answer()))
    desk.receive(created(idempotency_key=asked["idempotency_key"]), delta(2, 0, "So"))


async def test_a_line_is_asked_and_ctrl_d_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as desk:
        desk.press("How?" + ENTER)
        asked = await desk.next_sent()
        assert (asked["type"], asked["input"]) == ("response.create", "How?")
        desk.press(CTRL_D)


async def test_what_the_server_has_not_confirmed_stays_on_the_screen_of_who_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[str] = []
    async with opened(monkeypatch) as desk:
        await answering(desk)
        desk.press("And\x0awhy?" + ENTER)
        assert (await desk.next_sent())["type"] == "queue.add"
        monkeypatch.setattr(
            desk.screen, "_print", lambda pieces: printed.extend(text for _, text in pieces)
        )
        desk.press(CTRL_D)
    assert "Not sent yet, as far as is known:\nAnd\nwhy?\n" in "".join(printed)


async def test_lines_that_are_pasted_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as desk:
        desk.press(f"{PASTE}one\r\ntwo\nthree{PASTED}")
        await desk.typed("one\ntwo\nthree")
        desk.press(ENTER)
        assert (await desk.next_sent())["input"] == "one\ntwo\nthree"
        desk.press(CTRL_D)


async def test_lines_that_arrive_together_are_one_message_though_nothing_marks_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(monkeypatch) as desk:
        desk.press("one\rtwo\r\r\rthree\r")
        assert (await desk.next_sent())["input"] == "one\ntwo\n\n\nthree"
        desk.press(CTRL_D)


async def test_a_paste_that_is_read_in_parts_is_one_message_though_nothing_marks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interactive, "PASTE_SECONDS", PATIENCE)
    async with opened(monkeypatch) as desk:
        desk.press("one\rtwo\r")
        await desk.typed("one\ntwo\n")
        monkeypatch.setattr(interactive, "PASTE_SECONDS", 0.01)
        desk.press("three\rfour\r")
        assert (await desk.next_sent())["input"] == "one\ntwo\nthree\nfour"
        desk.press(CTRL_D)


async def test_alt_enter_is_a_new_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as desk:
        desk.press("one" + ALT_ENTER + "two" + ENTER)
        assert (await desk.next_sent())["input"] == "one\ntwo"
        desk.press(CTRL_D)


async def test_enter_queues_and_ctrl_s_steers_while_an_answer_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(monkeypatch) as desk:
        await answering(desk)
        desk.press("And then?" + ENTER)
        queued = await desk.next_sent()
        assert (queued["type"], queued["input"]) == ("queue.add", "And then?")
        desk.press("Shorter" + CTRL_S)
        steer = await desk.next_sent()
        assert (steer["type"], steer["input"]) == ("response.steer", "Shorter")
        assert steer["previous_response_id"] == "resp_R"
        desk.press(CTRL_D)


async def test_ctrl_c_stops_the_answer_and_twice_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as desk:
        await answering(desk)
        desk.press(CTRL_C)
        stop = await desk.next_sent()
        assert (stop["type"], stop["response_id"]) == ("stop", "resp_R")
        desk.press(CTRL_C)


async def test_ctrl_c_drops_what_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as desk:
        desk.press("half a sentence")
        await desk.typed("half a sentence")
        desk.press(CTRL_C)
        await desk.typed("")
        desk.press(CTRL_C + CTRL_C)


async def test_the_last_question_is_edited_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as desk:
        await answering(desk)
        desk.receive(done(3, 2))
        desk.press("/edit" + ENTER)
        await desk.typed("How?")
        desk.press(" And why?" + ENTER)
        asked = await desk.next_sent()
        assert (asked["input"], asked["parent_id"]) == ("How? And why?", None)
        desk.press(CTRL_D)


async def test_commands_regenerate_continue_and_switch_branches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(monkeypatch) as desk:
        await answering(desk)
        desk.receive(done(3, 2, "incomplete"))
        desk.press("/again" + ENTER)
        assert (await desk.next_sent())["regenerate_of"] == "msg_2"
        desk.press("/continue" + ENTER)
        assert (await desk.next_sent())["continue_of"] == "msg_2"
        second = {"id": "msg_3", "response_id": "resp_S", "text_length": 3}
        desk.receive(message_event(7, answer("Two", "completed", **second)))
        desk.press("/branch back" + ENTER)
        assert (await desk.next_sent())["branch"] == "msg_2"
        desk.press("/branch 1" + ENTER)
        assert (await desk.next_sent())["branch"] == "msg_2"
        desk.press(CTRL_D)


async def test_the_queue_is_changed_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{"id": f"q{n}", "input": f"Q{n}", "idempotency_key": f"k{n}"} for n in (1, 2)]
    queue = {"revision": 3, "paused": True, "items": items}
    async with opened(monkeypatch) as desk:
        desk.receive({"type": "queue.updated", "session_id": SESSION, "offset": 5, "queue": queue})
        for words, kind, fields in (
            ("send", "queue.send", {}),
            ("send 2", "queue.send", {"item_id": "q2"}),
            ("remove 1", "queue.remove", {"item_id": "q1"}),
            ("first 2", "queue.update", {"item_id": "q2", "place": 0}),
            ("edit 1 Other words", "queue.update", {"item_id": "q1", "input": "Other words"}),
        ):
            desk.press(f"/queue {words}{ENTER}")
            sent = await desk.next_sent()
            assert sent["type"] == kind
            assert fields.items() <= sent.items()
        desk.press(CTRL_D)


async def test_an_unknown_command_stays_in_the_field_and_two_slashes_are_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(monkeypatch) as desk:
        desk.press("/nonsense" + ENTER)
        desk.press(CTRL_C)
        await desk.typed("")
        desk.press("//etc/hosts is empty" + ENTER)
        assert (await desk.next_sent())["input"] == "/etc/hosts is empty"
        desk.press(CTRL_D)


async def test_a_question_that_is_refused_comes_back_into_the_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(monkeypatch) as desk:
        desk.press("Too long" + ENTER)
        key = (await desk.next_sent())["event_id"]
        error = {"code": "context_length_exceeded", "message": "m", "event_id": key}
        desk.receive({"type": "error", "error": error})
        await desk.typed("Too long")
        desk.press(CTRL_C + CTRL_C + CTRL_C)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("abcdefghij" * 3, "abcdefghij" * 2),
        ("東京" * 10, "東京" * 5),  # two columns each, and two rows of ten
        ("one\ntwo\nthree", "two\nthree"),
        ("", ""),
    ],
)
def test_of_a_long_line_the_end_is_shown(text: str, shown: str) -> None:
    assert last_rows(text, 10, 2) == shown
