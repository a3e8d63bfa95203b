"""Frames of calls, put between those of a real answer: what models and servers rarely send."""

import json
import re
from typing import Any

from playwright.async_api import BrowserContext, Page, WebSocketRoute, expect

from tests.end_to_end.browser.test_browser import answers, ask
from tests.end_to_end.browser.tools.scripts import COUNT
from tests.end_to_end.site.harness import Server


class Injected:
    """The way to put frames into an answer, numbered like its own."""

    def __init__(self) -> None:
        self._socket: WebSocketRoute | None = None
        self._response: dict[str, Any] = {}  # names and place of the last entry
        self._shift = 0

    def route(self, socket: WebSocketRoute) -> None:
        self._socket = socket
        server = socket.connect_to_server()
        server.on_message(lambda message: socket.send(self._renumbered(str(message))))

    def _renumbered(self, message: str) -> str:
        frame = json.loads(message)
        if "sequence_number" not in frame:
            return message
        for name in {"sequence_number", "first_sequence_number"} & frame.keys():
            frame[name] += self._shift
        response_id = frame.get("response_id") or frame["response"]["id"]
        named = {name: frame[name] for name in ("sequence_number", "fence")}
        self._response = {"response_id": response_id, **named}
        return json.dumps(frame)

    def send(self, kind: str, **fields: Any) -> None:
        assert self._socket is not None
        self._shift += 1
        self._response["sequence_number"] += 1
        frame = {"type": f"response.{kind}", "output_index": 0, **self._response, **fields}
        self._socket.send(json.dumps(frame))

    def call(self, number: int, name: str, **more: Any) -> None:
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
        said = {"name": name, "arguments": "", "status": "in_progress"}
        self.send("output_item.added", item={**item, **said, **more})

    def result(self, number: int, output: str, status: str = "completed") -> None:
        self.run(number, status=status, output=output)

    def run(self, number: int, status: str, **more: Any) -> None:
        """How it goes with a call that the server carries out."""
        item = {"type": "function_call_output", "id": f"fco_{number}", "call_id": f"call_{number}"}
        said = {"output": "", "server_label": "clock", "status": status}
        self.send("output_item.added", item={**item, **said, **more})


async def answering(context: BrowserContext, server: Server) -> tuple[Page, Injected]:
    """A page on which an answer is being written, and the way to put frames into it."""
    page = await context.new_page()
    injected = Injected()
    await page.route_web_socket(re.compile("/v1/ws$"), injected.route)
    await page.goto(server.url)
    await ask(page, COUNT)
    await expect(answers(page).last).to_contain_text("0 1 2 3")
    return page, injected
