"""Firefox, remote-controlled by WebDriver BiDi, which it speaks itself: no geckodriver is needed.

https://w3c.github.io/webdriver-bidi/
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.end_to_end.browsers.tab import Tab
from tests.helpers.patience import PATIENCE

PROGRAM = shutil.which("firefox-esr") or shutil.which("firefox")
MISSING = None if PROGRAM else "Firefox is not installed (apt install firefox-esr)"
VIEWPORT = {"width": 1280, "height": 800}
LISTENING = "WebDriver BiDi listening on "  # a line that Firefox prints, with the address


class FirefoxTab(Tab):
    """The one tab of a Firefox."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__()
        self.complaints: list[str] = []
        self._socket = socket
        self._last_id = 0
        self._context = ""

    async def begin(self) -> None:
        await self.command("session.new", capabilities={})
        await self.command("session.subscribe", events=["log.entryAdded"])
        tree = await self.command("browsingContext.getTree")
        self._context = tree["contexts"][0]["context"]
        await self._here("browsingContext.setViewport", viewport=VIEWPORT)

    async def command(self, method: str, **parameters: Any) -> Any:
        self._last_id += 1
        command = {"id": self._last_id, "method": method, "params": parameters}
        await self._socket.send(json.dumps(command))
        async with asyncio.timeout(PATIENCE):
            while (answer := json.loads(await self._socket.recv())).get("id") != self._last_id:
                self._take_event(answer)
        assert answer["type"] == "success", answer
        return answer["result"]

    def _take_event(self, event: dict[str, Any]) -> None:
        if event.get("method") == "log.entryAdded" and event["params"]["level"] == "error":
            self.complaints.append(event["params"]["text"])

    async def _here(self, method: str, **parameters: Any) -> Any:
        return await self.command(method, context=self._context, **parameters)

    async def open(self, url: str) -> None:
        await self._here("browsingContext.navigate", url=url, wait="complete")

    async def reload(self) -> None:
        await self._here("browsingContext.reload", wait="complete")

    async def run(self, function: str, *arguments: Any) -> Any:
        answer = await self.command(
            "script.callFunction",
            functionDeclaration=f"async (given) => JSON.stringify("
            f"(await ({function})(...JSON.parse(given))) ?? null)",
            arguments=[{"type": "string", "value": json.dumps(arguments)}],
            awaitPromise=True,
            target={"context": self._context},
        )
        assert answer["type"] == "success", answer["exceptionDetails"]["text"]
        return json.loads(answer["result"]["value"])

    async def act(self, *sources: dict[str, Any]) -> None:
        await self._here("input.performActions", actions=list(sources))


@asynccontextmanager
async def firefox(folder: Path) -> AsyncIterator[Tab]:
    """A new Firefox, with its profile in `folder`; what its page complains about fails the test."""
    assert PROGRAM is not None
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "--headless", "--no-remote", "--profile", str(folder)),
        *("--remote-debugging-port=0", "about:blank"),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            while not (line := (await process.stderr.readline()).decode()).startswith(LISTENING):
                assert line, "Firefox ended before it listened"
        async with connect(line.removeprefix(LISTENING).strip() + "/session") as socket:
            tab = FirefoxTab(socket)
            await tab.begin()
            yield tab
        assert tab.complaints == []
    finally:
        process.kill()
        await process.communicate()
