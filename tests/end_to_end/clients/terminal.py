"""A program in a terminal, whose keys a test presses and whose screen it reads."""

import asyncio
import codecs
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.end_to_end.clients.screen import Screen
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

# Ctrl-C in a terminal reaches the programs whose controlling terminal it is.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def environment(server: Server) -> dict[str, str]:
    """That of an operator on the server's machine."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")}
    return {**inherited, "PARLEY_DATA_DIR": str(server.data_dir), "TERM": "xterm"}


class Terminal:
    """A program in a terminal. `screen` is what somebody before it sees."""

    def __init__(self, primary: int, columns: int, rows: int, pid: int) -> None:
        self._primary = primary
        self.pid = pid
        self.screen = Screen(columns, rows)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.shown = ""
        self.everything = ""

    def press(self, keys: str) -> None:
        os.write(self._primary, keys.encode())

    @property
    def echoes(self) -> bool:
        """Whether a shell that comes back to it would show what is typed."""
        return bool(termios.tcgetattr(self._primary)[3] & termios.ECHO)

    def resize(self, columns: int, rows: int) -> None:
        """As a window is: the program is told, and draws anew."""
        fcntl.ioctl(self._primary, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(columns, rows)

    async def until(self, condition: Callable[[Screen], object]) -> None:
        """Read until the screen is so."""
        async with asyncio.timeout(PATIENCE):
            while not condition(self.screen):
                await self._take()

    async def shows(self, pattern: str) -> None:
        """Wait until this appears in what was written after the last match."""
        async with asyncio.timeout(PATIENCE):
            while (found := re.search(pattern, self.shown)) is None:
                await self._take()
        self.shown = self.shown[found.end() :]

    def printed(self, beginning: str) -> str:
        """The last line so far that begins so; what was drawn for a while comes before it."""
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.everything)
        return re.split(r"[\r\n]", text[text.rindex(beginning) :])[0]

    async def _take(self) -> None:
        read = await self._read()
        self.screen.write(read)
        self.shown += read
        self.everything += read

    async def _read(self) -> str:
        """What was written next. No thread reads: one would outlive a test that fails."""
        loop = asyncio.get_running_loop()
        is_readable = asyncio.Event()
        loop.add_reader(self._primary, is_readable.set)
        try:
            await is_readable.wait()
        finally:
            loop.remove_reader(self._primary)
        return self._decoder.decode(os.read(self._primary, 65536))


@asynccontextmanager
async def terminal(
    server: Server, *words: str, columns: int = 200, rows: int = 40, code: int = 0, **variables: str
) -> AsyncIterator[Terminal]:
    """`parley …`, which must end by itself, with this code."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", TAKE_TERMINAL, "-m", "server", *words),
        cwd=ROOT,
        env={**environment(server), **variables},
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        start_new_session=True,
    )
    os.close(secondary)
    try:
        yield Terminal(primary, columns, rows, process.pid)
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == code
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(primary)
