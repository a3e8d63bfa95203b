"""WebKit, as MiniBrowser of WebKitGTK, remote-controlled by WebDriver on a display of its own.

https://www.w3.org/TR/webdriver2/
"""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.end_to_end.browsers.tab import Tab
from tests.helpers.patience import PATIENCE

DRIVER, DISPLAY = shutil.which("WebKitWebDriver"), shutil.which("Xvfb")
MISSING = (
    None if DRIVER and DISPLAY else "WebKit is not installed (apt install webkit2gtk-driver xvfb)"
)
WINDOW = {"width": 1280, "height": 840}


class WebKitTab(Tab):
    """The one tab of a MiniBrowser."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        super().__init__()
        self._client = client
        self._session = ""

    async def begin(self) -> None:
        made = await self.command("", {"capabilities": {}})
        self._session = f"/{made['sessionId']}"
        await self.command("/window/rect", WINDOW)

    async def end(self) -> None:
        await self._client.delete(f"/session{self._session}")

    async def command(self, path: str, parameters: dict[str, Any]) -> Any:
        answer = await self._client.post(f"/session{self._session}{path}", json=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]

    async def open(self, url: str) -> None:
        await self.command("/url", {"url": url})

    async def reload(self) -> None:
        await self.command("/refresh", {})

    async def run(self, function: str, *arguments: Any) -> Any:
        script = f"return ({function})(...arguments)"
        return await self.command("/execute/sync", {"script": script, "args": list(arguments)})

    async def act(self, *sources: dict[str, Any]) -> None:
        await self.command("/actions", {"actions": list(sources)})


@asynccontextmanager
async def webkit(folder: Path) -> AsyncIterator[Tab]:
    """A new MiniBrowser, with what it keeps in `folder`."""
    async with AsyncExitStack() as stack:
        display = await stack.enter_async_context(x_display())
        port = free_port()
        environment = {**os.environ, "DISPLAY": display, "XDG_DATA_HOME": str(folder / "data")}
        environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "LIBGL_ALWAYS_SOFTWARE": "1"}
        await stack.enter_async_context(program(str(DRIVER), f"--port={port}", env=environment))
        client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False
        )
        await stack.enter_async_context(client)
        await listening(port)
        tab = WebKitTab(client)
        await tab.begin()
        stack.push_async_callback(tab.end)
        yield tab


@asynccontextmanager
async def x_display() -> AsyncIterator[str]:
    """A display that nobody sees."""
    options = ("-displayfd", "1", "-screen", "0", "1400x1000x24", "-nolisten", "tcp")
    async with program(str(DISPLAY), *options, stdout=asyncio.subprocess.PIPE) as xvfb:
        assert xvfb.stdout is not None
        async with asyncio.timeout(PATIENCE):
            number = (await xvfb.stdout.readline()).decode().strip()
        assert number.isdigit(), f"Xvfb ended without a display: it wrote {number!r}"
        yield f":{number}"


@asynccontextmanager
async def program(*command: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    quiet = asyncio.subprocess.DEVNULL
    streams = {"stdout": quiet, "stderr": quiet, **options}
    process = await asyncio.create_subprocess_exec(*command, **streams)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def listening(port: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)  # a start is observed from outside: there is no event
            else:
                writer.close()
                return
