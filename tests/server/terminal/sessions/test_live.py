"""The live list's keys, pressed into a pipe: each counts once, however they arrive."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from server.terminal.admin_client import AdminClient, AdminError
from server.terminal.sessions.live import LiveSessions
from tests.helpers.patience import PATIENCE
from tests.server.terminal.sessions.test_figures import stats, worker
from tests.server.terminal.sessions.test_table import row

UP, DOWN, ENTER, ESCAPE = "\x1b[A", "\x1b[B", "\r", "\x1b"
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
IDS = [f"ses_{number}" for number in range(6)]


class PlayedServer(AdminClient):
    """Answers as a server with these sessions does, or does not at all."""

    def __init__(self) -> None:
        super().__init__("http://h", "t")
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.is_away = False

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        if self.is_away:
            raise AdminError("http://h does not answer")
        self.asked.append((path, query))
        if path == "/stats":
            return stats(worker())
        if "title" in query or query.get("find") == "nobody":
            return {"sessions": [], "next_cursor": None, "examined": 9}
        return {"sessions": [row(id=name) for name in IDS]}

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        self.posted.append((path, body))
        return {}


class Desk:
    def __init__(self, screen: LiveSessions, keys: PipeInput, server: PlayedServer) -> None:
        self.screen, self.server = screen, server
        self._keys = keys

    def press(self, keys: str) -> None:
        self._keys.send_text(keys)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a drawing after which it is so."""
        drawn = asyncio.Event()
        self.screen.app.after_render += lambda _: drawn.set()
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                drawn.clear()
                await drawn.wait()


@asynccontextmanager
async def opened() -> AsyncIterator[Desk]:
    """`parley sessions`, which must leave by itself."""
    server = PlayedServer()
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        screen = LiveSessions(server, keys, DummyOutput(), everything=False)
        running = asyncio.create_task(screen.run())
        desk = Desk(screen, keys, server)
        try:
            await desk.until(lambda: screen.chosen == IDS[0])
            yield desk
            async with asyncio.timeout(PATIENCE):
                await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_nothing_is_said_of_sessions_before_the_server_has() -> None:
    with create_pipe_input() as keys:
        screen = LiveSessions(PlayedServer(), keys, DummyOutput(), everything=False)
    assert screen._head() == [("class:head", "\nasking the server …")]
    assert screen._table() == [("class:faint", "")]


async def test_keys_that_arrive_together_all_count() -> None:
    async with opened() as desk:
        desk.press(DOWN * 3)
        await desk.until(lambda: desk.screen.chosen == IDS[3])
        desk.press(UP + DOWN + "jk" + DOWN)
        await desk.until(lambda: desk.screen.chosen == IDS[4])
        desk.press(UP * 20)
        await desk.until(lambda: desk.screen.chosen == IDS[0])
        desk.press("q")


async def test_a_session_is_stopped() -> None:
    async with opened() as desk:
        desk.press(DOWN + "s")
        await desk.until(lambda: desk.server.posted != [])
        path, body = desk.server.posted[0]
        assert (path, body) == (f"/sessions/{IDS[1]}/stop", {"reason": "parley sessions"})
        desk.press("q")


async def test_a_reason_that_is_pasted_is_whole_and_waits_for_enter() -> None:
    async with opened() as desk:
        desk.press(f"e{PASTE}bad\nand qsa worse\r\n{PASTED}")
        await desk.until(lambda: desk.screen._field.text.startswith("bad"))
        assert desk.server.posted == []
        desk.press(ENTER)
        await desk.until(lambda: desk.server.posted != [])
        path, body = desk.server.posted[0]
        assert (path, body) == (f"/sessions/{IDS[0]}/evict", {"reason": "bad and qsa worse"})
        desk.press("q")


async def test_a_reason_and_its_enter_that_arrive_together_evict() -> None:
    async with opened() as desk:
        desk.press("ebad" + ENTER)
        await desk.until(lambda: desk.server.posted != [])
        assert desk.server.posted[0][1] == {"reason": "bad"}
        desk.press("q")


async def test_escape_takes_the_question_back() -> None:
    async with opened() as desk:
        desk.press("ebad" + ESCAPE)
        await desk.until(lambda: desk.screen._prompt is None and desk.screen._field.text == "bad")
        desk.press("q")
    assert desk.server.posted == []


async def test_all_sessions_are_looked_through_for_what_is_wanted() -> None:
    def asked(**wanted: Any) -> bool:
        queries = [query for path, query in desk.server.asked if path == "/sessions"]
        return wanted.items() <= queries[-1].items()

    async with opened() as desk:
        desk.press("/Ada" + ENTER)
        await desk.until(lambda: asked(find="Ada", active=False))
        desk.press("a")
        await desk.until(lambda: asked(find="Ada", active=True))
        desk.press("/nobody" + ENTER)
        await desk.until(lambda: "no title has “nobody”" in desk.screen._found.title)
        desk.press("/" + ENTER)
        await desk.until(lambda: asked(find=None, active=True))
        desk.press("q")


async def test_keys_count_while_the_server_does_not_answer() -> None:
    async with opened() as desk:
        desk.server.is_away = True
        await desk.until(lambda: desk.screen._problem is not None)
        desk.press(DOWN * 2)
        await desk.until(lambda: desk.screen.chosen == IDS[2])
        desk.press("\x03")
