"""A page of a new user, set up alike each time: its width, its clock, what the server tells it.

What differs from run to run, such as the words of an answer in progress and how fast they come, is
replaced on the wire; the page and the server are the real ones.
"""

import json
import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from playwright.async_api import Browser, Page, Route, WebSocketRoute, expect

from tests.end_to_end.browser.test_browser import answers, ask
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import SETTINGS, for_new_user
from tests.end_to_end.frames.raw import log_in
from tests.end_to_end.looks.texts import TIDES
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE

NOW = datetime(2026, 3, 14, 9, 26, tzinfo=UTC)
WIDTHS: dict[str, dict[str, Any]] = {
    "wide": {"viewport": {"width": 1280, "height": 800}},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}
ENDS = ("response.done", "message.updated", "session.activity")
FIGURES = {  # what the admin page is given in place of what differs from run to run
    "age_ms": 12_000,
    "tokens": 412,
    "tokens_per_s": 42.0,
    "text_length": 1648,
    "replica": "harbour-4242-5f3a9c",
    "model": "demo",
    "updated_at": int(NOW.timestamp() * 1000),
    "heard_ms": 300,
    "engine_heard_ms": 300,
    "roll_age_ms": 0,
}
LIVE = {
    "active_responses": 1,
    "queued_responses": 0,
    "connections": 3,
    "replicas": 1,
    "sessions": 1234,
}
WORKER = {
    "active_responses": 1,
    "queued_responses": 0,
    "connections": 3,
    "engine_running": 1,
    "engine_waiting": 0,
    "kv_blocks_total": 512,
    "kv_blocks_free": 384,
}
TIMELINE = {"created_at": 0, "started_at": 21, "first_token_at": 180}
PROGRESS = {"tokens_per_s": 42.0, "output_tokens": 57}


@dataclass
class Stage:
    """One page, and the server as its user sees it."""

    page: Page
    server: Server
    is_phone: bool
    held: str | None = None  # what an answer in progress stays at; None: before its first word
    is_held: bool = False
    chats: list[str] = field(default_factory=list)
    sockets: list[WebSocketRoute] = field(default_factory=list)
    entry: dict[str, Any] = field(default_factory=dict)  # place of the last that the page has
    responses: dict[str, None] = field(default_factory=dict)  # in the order of their beginnings
    health: dict[str, Any] | None = None  # what the console is told of it
    is_cut: bool = False  # new sockets are refused

    async def chat(self, title: str, *texts: str, **last: Any) -> str:
        """A stored chat with these questions and answers in turn; `last` goes to the last one."""
        messages: list[dict[str, Any]] = []
        for number, text in enumerate(texts):
            messages.append(
                {
                    "id": str(number),
                    "role": ("user", "assistant")[number % 2],
                    "content": [{"type": "text", "text": text}],
                    "created_at": int(NOW.timestamp() * 1000) - 60_000,
                    "model": "demo",
                }
            )
            if number:
                messages[-1]["parent_id"] = str(number - 1)
        if last:
            messages[-1].update(last)
        return await self.import_chat(title, messages)

    async def import_chat(self, title: str, messages: list[dict[str, Any]]) -> str:
        document = {"format": "parley.session", "version": 1, "messages": messages}
        async with Http(self.server) as http:
            answer = await http.post(
                "/v1/sessions/import", {**document, "session": {"title": title}}
            )
            assert answer.status_code == 201, answer.text
        self.chats.append(answer.json()["id"])
        return self.chats[-1]

    async def begin(self, text: str | None) -> None:
        """An answer in progress that stays at this text, None: before its first word."""
        self.held, self.is_held = text, True
        async with Http(self.server) as http:
            session = await http.new_session(title="Tides", settings=SETTINGS)
        await self.page.goto(f"{self.server.url}/#{session['id']}")
        await expect(self.page.get_by_role("heading", name="Tides")).to_be_visible()
        await ask(self.page, TIDES)
        if self.is_phone:
            await self.page.get_by_role("button", name="Send").click()
        shown = ".wait.thinking" if text is None else ".answer.streaming .caret"
        await expect(self.page.locator(shown)).to_be_visible()

    async def ask(self, title: str) -> None:
        """An answer in progress, of which this page knows nothing."""
        async with Http(self.server) as http:
            session = await http.new_session(title=title, settings=SETTINGS)
            begun = await http.begin(session["id"], TIDES)
        self.chats.append(session["id"])
        self.responses[begun["id"]] = None

    async def open(self, session: str) -> None:
        await self.page.goto(f"{self.server.url}/#{session}")
        await expect(answers(self.page).last).to_be_visible()

    async def open_list(self) -> None:
        """On a phone the list is in a drawer."""
        if self.is_phone:
            await self.page.get_by_role("button", name="Open the list of chats").click()
        await expect(self.page.locator(".sidebar")).to_be_in_viewport(ratio=1)

    async def route(self, socket: WebSocketRoute) -> None:
        if self.is_cut:
            await socket.close(code=1012)
            return
        self.sockets.append(socket)
        server = socket.connect_to_server()
        server.on_message(lambda message: self._pass_on(socket, str(message)))

    def _pass_on(self, socket: WebSocketRoute, message: str) -> None:
        frame = json.loads(message)
        if (response := frame.get("response_id")) is not None:
            self.responses[response] = None
        if self.is_held and frame["type"] in ENDS:
            return
        if self.is_held and frame["type"] == "response.output_text.delta":
            if frame["text_offset"] > 0 or self.held is None:
                return
            frame["delta"] = self.held
        if self.is_held and frame["type"] == "response.progress":
            return
        if frame["type"] == "response.queued":
            frame.update(eta_ms=3000)
        if "sequence_number" in frame:
            named = {name: frame[name] for name in ("sequence_number", "fence")}
            self.entry = {"response_id": response or frame["response"]["id"], **named}
        socket.send(json.dumps(frame))
        if self.is_held and frame["type"] == "response.output_text.delta":
            progress = {"type": "response.progress", "response_id": response, **PROGRESS}
            socket.send(json.dumps(progress))

    def say(self, kind: str, **fields: Any) -> None:
        """One more entry of the answer in progress."""
        self.entry["sequence_number"] += 1
        frame = {"type": f"response.{kind}", "output_index": 0, **self.entry, **fields}
        self.sockets[-1].send(json.dumps(frame))

    def call(self, number: int, name: str, arguments: str, status: str = "completed") -> None:
        """It calls a tool."""
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
        said = {"name": name, "arguments": arguments, "status": status}
        self.say("output_item.added", item={**item, **said})

    def run(self, number: int, status: str, **more: Any) -> None:
        """How it goes with a call that the server carries out."""
        item = {"type": "function_call_output", "id": f"fco_{number}", "call_id": f"call_{number}"}
        said = {"output": "", "server_label": "clock", "status": status}
        self.say("output_item.added", item={**item, **said, **more})

    async def end(self) -> None:
        """Nothing is answered any more, what waits least of all."""
        async with Http(self.server) as http:
            for response in reversed(self.responses):
                await http.post(f"/v1/responses/{response}/cancel")

    async def route_admin(self, route: Route) -> None:
        """Of the chats only this stage's, with `FIGURES` in place of their own.

        The server is asked once how it is: a machine that is busy would look like an outage.
        """
        is_health = route.request.url.endswith("/health")
        if is_health and self.health is not None:
            await route.fulfill(json=self.health)
            return
        answer = await route.fetch()
        found = await answer.json()
        if "sessions" in found:
            found["next_cursor"] = None
            found["sessions"] = [one for one in found["sessions"] if one["id"] in self.chats]
        if "live" in found:
            found["live"] = LIVE
            for worker in found["replicas"]:
                worker.update(id=FIGURES["replica"], seen_at=found["now"] - 300)
                worker.update(started_at=found["now"] - 3_725_000, **WORKER)
        if "series" in found:
            found.update(past_of(found["at"]))
        shown = with_figures(found)
        if is_health:
            self.health = shown
        await route.fulfill(response=answer, json=shown)

    async def cut(self) -> None:
        """The page loses the server, until the end."""
        self.is_cut = True
        for socket in self.sockets:
            await socket.close(code=1012)


def past_of(moments: list[int]) -> dict[str, Any]:
    """Figures of as many moments until `NOW`, such as a server has on a day with some to do."""
    step_ms, number = moments[1] - moments[0], len(moments)
    last = int(NOW.timestamp() * 1000)
    waves = [math.sin(place / 7) + math.sin(place / 3) / 3 for place in range(number)]
    series = {
        "decode_tokens_per_s": [420 + 130 * wave for wave in waves],
        "prefill_tokens_per_s": [180 + 90 * wave for wave in reversed(waves)],
        "active_responses": [float(round(9 + 4 * wave)) for wave in waves],
        "queued_responses": [float(max(0, round(4 * wave - 2))) for wave in waves],
        "ttft_ms.p50": [100.0] * number,
        "ttft_ms.p95": [200.0 if wave < 0.5 else 500.0 for wave in waves],
        "ttft_ms.p99": [500.0 if wave < 1 else 1000.0 for wave in waves],
        "stop_ms.p50": [None if place % 4 else 5.0 for place in range(number)],
        "stop_ms.p99": [None if place % 4 else 10.0 for place in range(number)],
        "kv_usage": [0.45 + 0.2 * wave for wave in waves],
        "cache_hit_ratio": [0.7 + 0.15 * wave for wave in waves],
        "responses.failed": [0.0] * number,
        "errors": [float(max(0, round(2 * wave - 1))) for wave in waves],
        "connections": [float(30 + place // 5) for place in range(number)],
    }
    at = [last - step_ms * (number - 1 - place) for place in range(number)]
    return {"at": at, "series": series}


def with_figures(found: Any) -> Any:
    """The same with what `FIGURES` and `TIMELINE` say, at any depth."""
    if isinstance(found, list):
        return [with_figures(each) for each in found]
    if not isinstance(found, dict):
        return found
    replaced: dict[str, Any] = {
        name: FIGURES[name] if name in FIGURES and value is not None else with_figures(value)
        for name, value in found.items()
    }
    for name in replaced.get("timeline", {}).keys() & TIMELINE.keys():
        replaced["timeline"][name] = TIMELINE[name]
    if str(replaced.get("id", "")).startswith("usr_"):
        replaced["id"] = "usr_harbour"
    return replaced


@asynccontextmanager
async def staged(
    browser: Browser, server: Server, width: str, **options: Any
) -> AsyncIterator[Stage]:
    """A page at one of `WIDTHS`, without motion. Scripts of a test may run in it."""
    context = await browser.new_context(
        **WIDTHS[width], reduced_motion="reduce", bypass_csp=True, locale="en-GB", **options
    )
    context.set_default_timeout(PATIENCE * 1000)
    user = await for_new_user(server)
    name, _, value = (await log_in(user)).partition("=")
    await context.add_cookies([{"name": name, "value": value, "url": server.url}])
    page = await context.new_page()
    await page.clock.set_fixed_time(NOW)
    stage = Stage(page, user, width == "phone")
    await page.route_web_socket("**/v1/ws", stage.route)
    await page.route(re.compile(r"/v1/admin/(stats|sessions|health|engines)"), stage.route_admin)
    yield stage
    await page.unroute_all(behavior="wait")  # a list that is on its way would fail with the page
    await context.close()
    await stage.end()
