"""States of the chat page in which a model thinks or calls tools, as functions like the others."""

from collections.abc import Awaitable, Callable
from typing import Any

from playwright.async_api import expect

from tests.end_to_end.browser.test_browser import answers
from tests.end_to_end.looks import texts
from tests.end_to_end.looks.stage import NOW, Stage

State = Callable[[Stage], Awaitable[None]]
TOOL_STATES: dict[str, State] = {}
USAGE = {"input_tokens": 61, "cached_tokens": 32, "output_tokens": 148}
ARGUMENTS = (
    '{"harbour": "Tidewick", "days": 3, "heights": {"unit": "m", "above": "mean low water"}}'
)
NOT_UP = "charts: it has ended"


def state(function: State) -> State:
    TOOL_STATES[function.__name__.replace("_", "-")] = function
    return function


@state
async def thought_growing(stage: Stage) -> None:
    """Its last lines are shown."""
    await stage.begin(None)
    stage.say("reasoning_text.delta", text_offset=0, delta=texts.THOUGHT + texts.GROWING)
    await expect(stage.page.locator(".reasoning.growing")).to_contain_text("The other")


@state
async def thought(stage: Stage) -> None:
    ended = {"reasoning": texts.THOUGHT, "usage": USAGE}
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.SHORT_ANSWER, **ended))
    await stage.page.locator(".reasoning > summary").click()
    await expect(stage.page.locator(".reasoning .hl-keyword").first).to_be_visible()


@state
async def call_written(stage: Stage) -> None:
    await stage.begin("Let me look at the table.")
    stage.call(0, "tide_table", ARGUMENTS[:40], status="in_progress")
    await expect(stage.page.locator(".tool")).to_contain_text("Being written")


@state
async def calls(stage: Stage) -> None:
    """Of a client's tools, with an output that is long."""
    called = [
        call("1", "tide_table", ARGUMENTS),
        call("2", f"a_tool_with_a_long_name_{'and_more_' * 6}", '{"text": "A short one."}'),
        call("3", "tide_table", '["Tidewick"]', "failed"),
    ]
    days = ", ".join(f'{{"day": {day}, "high": 4.{day}, "low": 0.{day}}}' for day in range(9))
    parts: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": texts.TIDES}]},
        {"role": "assistant", "content": [text_part("Let me **look**.")], "tool_calls": called},
        {"role": "tool", "content": [text_part(f"[{days}]", "1"), text_part("Fine.", "2")]},
        {"role": "assistant", "content": [text_part(texts.SHORT_ANSWER)], "usage": USAGE},
    ]
    for number, message in enumerate(parts):
        message |= {"id": str(number), **({"parent_id": str(number - 1)} if number else {})}
    await stage.open(await stage.import_chat("Tides", parts))
    await stage.page.locator(".tool-head").first.click()
    await expect(stage.page.locator(".tool .hl-number").first).to_be_visible()
    await expect(stage.page.get_by_role("button", name="Show all of the result")).to_be_visible()
    await expect(answers(stage.page).last).to_be_in_viewport(ratio=1)
    await expect(stage.page.get_by_role("button", name="Jump to latest")).to_be_hidden()


def call(call_id: str, name: str, arguments: str, status: str = "completed") -> dict[str, str]:
    return {"call_id": call_id, "name": name, "arguments": arguments, "status": status}


def text_part(text: str, call_id: str | None = None) -> dict[str, str]:
    return {"type": "text", "text": text, **({"call_id": call_id} if call_id else {})}


@state
async def consent(stage: Stage) -> None:
    """One call is asked for, another one runs."""
    await stage.begin("Let me look at the table.")
    stage.call(0, "clock__now", "{}")
    stage.run(0, "in_progress")
    stage.call(1, "tides__table", ARGUMENTS)
    until = int(NOW.timestamp() * 1000) + 290_000
    stage.run(1, "awaiting_consent", server_label="tides", consent="once", expires_at=until)
    await expect(stage.page.get_by_role("button", name="Allow in this chat")).to_be_visible()
    await expect(stage.page.locator(".tool .hl-string").first).to_be_visible()


@state
async def outcomes(stage: Stage) -> None:
    """Each way in which a call can end."""
    await stage.begin("Let me look at the table.")
    ends = [
        {"status": "completed", "output": "122"},
        {"status": "failed", "code": "tool_timeout"},
        {"status": "failed", "code": "tool_reported_error", "output": "no such harbour"},
        {"status": "denied", "code": "tool_denied"},
        {"status": "unknown", "code": "tool_outcome_unknown"},
        {"status": "cancelled", "code": "tool_cancelled"},
    ]
    for number, end in enumerate(ends):
        stage.call(number, "tides__table", ARGUMENTS)
        stage.run(number, **end)
    await expect(stage.page.locator(".tool").last).to_contain_text("Stopped")


@state
async def chat_tools(stage: Stage) -> None:
    """Which tools a chat offers: some of one server, none of another, which is not up."""
    table = {
        "name": "tides__table",
        "title": "table",
        "description": "High and low water of a harbour, for as many days as wanted.",
        "consent": "once",
        "read_only": True,
    }
    write = {
        "name": "tides__write",
        "title": "write",
        "description": "Write a remark into the harbour's book, which everybody can read.\n" * 4,
        "consent": "always",
        "read_only": False,
    }
    servers = [
        {"server_label": "tides", "status": "ready", "tools": [table, write]},
        {"server_label": "charts", "status": "unavailable", "message": NOT_UP, "tools": []},
    ]
    await stage.page.route("**/v1/tools", lambda route: route.fulfill(json={"servers": servers}))
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.SHORT_ANSWER))
    await stage.page.get_by_role("button", name="Settings of this chat").click()
    await stage.page.get_by_text("Choose among its tools").click()
    await stage.page.get_by_role("checkbox", name="table").check()
    await stage.page.get_by_role("button", name="Save", exact=True).scroll_into_view_if_needed()
