"""`parley chat` and `parley sessions` in windows of other sizes, without colours, and in none."""

import asyncio
import os
import re
import signal
from functools import partial

import pytest
from prompt_toolkit.utils import get_cwidth

from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import answering
from tests.end_to_end.clients.screen import Screen
from tests.end_to_end.clients.terminal import terminal
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import oracle_answer, oracle_word

pytestmark = pytest.mark.slow

CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
NUM_TOKENS = 300
COLOURS = re.compile(r"\x1b\[(?:[\d;]*;)?(?:3[0-8]|4[0-8]|9\d|10\d)(?:;[\d;]*)?m")


async def session_of(server: Server, num_tokens: int = NUM_TOKENS) -> str:
    """A session whose answers end by themselves."""
    async with Client(server) as client:
        stop = [oracle_word(num_tokens + 1).strip()]
        return await client.new_session(settings={"temperature": 0, "stop": stop})


async def questions(server: Server, session_id: str) -> list[str]:
    async with Http(server) as http:
        messages = (await http.get(f"/v1/sessions/{session_id}/messages")).json()["messages"]
    return [message["content"][0]["text"] for message in messages if message["role"] == "user"]


def has(word: str, screen: Screen) -> bool:
    return word in squeezed(screen.shown)


def is_ready(screen: Screen) -> bool:
    """The field is drawn last, and empty."""
    return screen.shown[-1] == "›"


def squeezed(lines: list[str]) -> str:
    """Without what a terminal leaves out at the ends of its lines."""
    return "".join("".join(lines).split())


async def test_a_window_is_resized_while_an_answer_is_written(server: Server) -> None:
    session_id = await session_of(server)
    async with terminal(server, "chat", "--session", session_id, columns=90, rows=24) as chat:
        await chat.until(is_ready)
        chat.press(oracle_word(0) + ENTER)
        for word, columns, rows in (("00020", 40, 24), ("00060", 120, 30), ("00100", 60, 12)):
            await chat.until(partial(has, word))
            chat.resize(columns, rows)
        await chat.until(lambda screen: any("— finished · " in line for line in screen.shown))
        await chat.until(is_ready)
        assert chat.printed(oracle_word(1)) == oracle_answer(0, NUM_TOKENS)
        shown = chat.screen.shown
        assert [line[:1] for line in shown].count("—") == 1
        assert [line for line in shown if line.startswith("›")] == ["›"]
        end = next(place for place, line in enumerate(shown) if line.startswith("—"))
        assert squeezed([oracle_answer(0, NUM_TOKENS)]).endswith(squeezed(shown[1:end]))
        chat.press(CTRL_D)


async def test_a_window_of_40_columns_shows_all_and_breaks_no_wide_character(
    server: Server,
) -> None:
    session_id = await session_of(server, 20)
    words = "日本語のとても長い質問です" * 6
    async with terminal(server, "chat", "--session", session_id, columns=40, rows=16) as chat:
        await chat.until(is_ready)
        chat.press(words)
        await chat.until(lambda screen: squeezed(screen.shown).endswith(f"›{words}"))
        chat.press(ENTER)
        await chat.until(lambda screen: "—finished" in squeezed(screen.lines))
        await chat.until(is_ready)
        assert f"›{words}{oracle_word(1).strip()}" in squeezed(chat.screen.lines)
        assert max(map(get_cwidth, chat.screen.lines)) <= 40
        chat.press(CTRL_D)
    assert await questions(server, session_id) == [words]


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "as keys"])
async def test_a_hundred_pasted_lines_are_one_message(server: Server, is_marked: bool) -> None:
    session_id = await session_of(server, 5)
    lines = [f"{n} 東京" if n % 7 else "" for n in range(1, 101)]
    text = "\r".join(lines)
    async with terminal(server, "chat", "--session", session_id, columns=60, rows=20) as chat:
        await chat.until(is_ready)
        chat.press(f"{PASTE}{text}{PASTED}" if is_marked else text)
        await chat.until(lambda screen: screen.shown[-1].endswith("100 東京"))
        chat.press(ENTER)
        await chat.until(lambda screen: any("— finished" in line for line in screen.lines))
        await chat.until(is_ready)
        assert chat.screen.lines.count("  99 東京") == 1
        chat.press(CTRL_D)
    assert await questions(server, session_id) == ["\n".join(lines)]


async def test_who_leaves_an_answer_keeps_what_they_have_read(server: Server) -> None:
    session_id = await session_of(server, 3000)
    async with terminal(server, "chat", "--session", session_id, columns=80, rows=24) as chat:
        await chat.until(is_ready)
        chat.press(oracle_word(0) + ENTER)
        await chat.until(lambda screen: "00050" in squeezed(screen.shown))
        chat.press(CTRL_D)
        await chat.until(lambda screen: "parley chat --session ses_" in "".join(screen.lines))
        assert "00050" in squeezed(chat.screen.lines)
        assert any("The answer goes on without you." in line for line in chat.screen.lines)


async def test_ctrl_c_stops_and_twice_leaves_a_narrow_window_tidy(server: Server) -> None:
    session_id = await session_of(server, 3000)
    async with terminal(server, "chat", "--session", session_id, columns=40, rows=12) as chat:
        await chat.until(is_ready)
        chat.press(oracle_word(0) + ENTER)
        await chat.until(lambda screen: "00050" in squeezed(screen.shown))
        chat.press(CTRL_C)
        await chat.until(lambda screen: "—stoppedbyyou" in squeezed(screen.shown))
        await chat.until(is_ready)
        chat.press(CTRL_C * 5)  # the last ones when it has left already
        await chat.until(lambda screen: "--sessionses_" in squeezed(screen.shown))


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("command", "ready"), [("chat", "›"), ("sessions", "q leave")])
async def test_who_is_told_to_end_leaves_the_terminal_as_it_was(
    server: Server, command: str, ready: str, end: signal.Signals
) -> None:
    async with terminal(server, command, code=128 + end) as told:
        await told.until(lambda screen: any(ready in line for line in screen.shown))
        assert not told.echoes
        os.kill(told.pid, end)
        async with asyncio.timeout(PATIENCE):
            while not told.echoes:  # noqa: ASYNC110  (a terminal tells nobody)
                await asyncio.sleep(0.05)


async def test_nothing_is_coloured_where_nobody_wants_colours(server: Server) -> None:
    session_id = await session_of(server, 3000)
    async with terminal(server, "chat", "--session", session_id, NO_COLOR="1") as chat:
        await chat.until(is_ready)
        chat.press(oracle_word(0) + ENTER)
        await chat.until(lambda screen: "00020" in squeezed(screen.shown))
        chat.press("/nonsense" + ENTER)
        await chat.until(lambda screen: any("There is no /nonsense" in s for s in screen.lines))
        async with terminal(server, "sessions", NO_COLOR="1") as sessions:
            await sessions.until(lambda screen: any(session_id in s for s in screen.shown))
            sessions.press("q")
        chat.press(CTRL_C)
        await chat.until(lambda screen: any("stopped by you" in s for s in screen.lines))
        chat.press(CTRL_C)
        chat.press(CTRL_C + CTRL_C)
    for everything in (chat.everything, sessions.everything):
        assert not COLOURS.search(everything)


async def test_a_terminal_that_cannot_be_drawn_on_gets_text_alone(server: Server) -> None:
    session_id = await session_of(server, 20)
    words = ("--session", session_id)
    async with terminal(server, "chat", *words, TERM="dumb") as chat:
        chat.press(f"{oracle_word(0)}\n{CTRL_D}")
        await chat.shows(oracle_answer(0, 20))
    async with terminal(server, "sessions", "--all", TERM="dumb", columns=100) as sessions:
        await sessions.until(lambda screen: any(session_id in s for s in screen.lines))
    assert "\x1b" not in chat.everything + sessions.everything


async def test_the_list_of_sessions_fits_every_window_and_has_its_ids_whole(
    server: Server,
) -> None:
    async with Client(server) as client:
        session_id, response_id = await answering(client)
        async with terminal(server, "sessions", columns=120, rows=20) as sessions:
            await sessions.until(lambda screen: any(session_id in s for s in screen.shown))
            for columns in (40, 60, 100):
                sessions.resize(columns, 16)
                await sessions.until(
                    lambda screen: any(re.match(rf"▸.*{session_id}$", s) for s in screen.shown)
                )
                assert max(map(len, sessions.screen.shown)) <= columns
            sessions.resize(40, 16)
            sessions.press("e" + "spam " * 20)  # longer than the field: still it says of whom
            await sessions.until(
                lambda screen: (
                    f"evict {session_id}: why?" in " ".join(screen.shown)
                    and any("spam spam" in s for s in screen.shown)
                )
            )
            sessions.press("\x1b")
            await sessions.until(lambda screen: "why?" not in " ".join(screen.shown))
            sessions.press("q")
        await client.send("stop", response_id=response_id)
        await client.done(response_id)
