"""Tools that the server runs, in real Chromium: a user is asked, in every tab, and answers."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.end_to_end.browser.test_browser import answers, ask, until
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.browser.tools.scripts import (
    AGAIN,
    EASTER,
    ECHO,
    FAIL,
    WAIT,
    new_chat,
    new_chat_with_tools,
)
from tests.end_to_end.browser.tools.test_browser_tool_cards import card
from tests.end_to_end.site.harness import Server

pytestmark = [*needs_browser, pytest.mark.slow]

DAYS = "clock__days_between"
# Whether there is a Stop button, each time that this changes.
WATCH_STOP = """() => {
    window.busy = [];
    const look = () => {
        const isBusy = document.querySelector(".action.stop") !== null;
        if (window.busy.at(-1) !== isBusy) window.busy.push(isBusy);
        requestAnimationFrame(look);
    };
    look();
}"""


async def opened(context: BrowserContext, server: Server, session: str) -> Page:
    page = await context.new_page()
    await page.goto(f"{server.url}/#{session}")
    await expect(page.get_by_role("heading", name="Tools")).to_be_visible()
    return page


async def test_a_call_is_asked_for_in_every_tab_and_settled_in_all_by_the_first_answer(
    context: BrowserContext, server: Server
) -> None:
    session = await new_chat_with_tools(server, "Tools")
    page, other = [await opened(context, server, session) for _ in range(2)]
    await ask(page, EASTER)
    for tab in (page, other):
        await expect(card(tab, DAYS)).to_contain_text("Asks you")
        await expect(card(tab, DAYS).locator("pre:visible")).to_contain_text(
            '"second": "2027-03-28"'
        )
        said = tab.get_by_role("status").last
        await expect(said).to_have_text(f"The answer asks for your consent: may {DAYS} run?")
        await expect(tab).to_have_title("Consent? · Tools · Parley")
    await page.reload()  # it is found again
    await page.get_by_role("button", name="Allow in this chat").focus()
    await page.keyboard.press("Shift+Tab")
    await expect(page.get_by_role("button", name="Allow once")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(card(page, DAYS).locator("summary")).to_be_focused()
    for tab in (page, other):
        await expect(answers(tab).last).to_contain_text("It is 122 days.")
        await expect(card(tab, DAYS)).to_contain_text("Done")
        await expect(tab.locator(".consent:visible")).to_have_count(0)
        await expect(tab).to_have_title("Tools · Parley")

    await other.evaluate(WATCH_STOP)
    await ask(other, AGAIN)  # it was allowed in this chat
    await expect(answers(other).last).to_contain_text("It is 29 days.")
    await expect(other.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    assert await other.evaluate("window.busy") == [False, True, False]  # nothing has flickered
    await page.reload()
    await expect(card(page, DAYS).last).to_contain_text("Done")


async def test_a_denied_call_has_not_run_and_the_answer_goes_on(
    context: BrowserContext, server: Server
) -> None:
    page = await opened(context, server, await new_chat_with_tools(server, "Tools"))
    await ask(page, ECHO)
    echo = card(page, "good__echo")
    await expect(echo.locator("pre:visible")).to_contain_text(
        '"a\\u202eb"'
    )  # no letters turned around
    await expect(echo.get_by_role("button", name="Allow in this chat")).to_be_hidden()
    await echo.get_by_role("button", name="Deny").click()
    await expect(answers(page).last).to_contain_text("It was said.")
    await expect(echo).to_contain_text("Denied")
    await expect(echo).to_contain_text("It has not run.")
    await page.reload()
    await expect(echo).to_contain_text("It has not run.")


async def test_a_tool_that_fails_says_so_in_words_and_shows_its_own(
    context: BrowserContext, server: Server
) -> None:
    page = await opened(context, server, await new_chat_with_tools(server, "Tools"))
    await ask(page, FAIL)
    fail = card(page, "good__fail")
    await expect(fail).to_contain_text("runs it, without arguments.")
    await fail.get_by_role("button", name="Allow once").click()
    await expect(answers(page).last).to_contain_text("It has failed.")
    await expect(fail).to_contain_text("The tool says that it failed.")
    await fail.locator("summary").click()
    await expect(fail.locator("pre:visible")).to_have_text("Error executing tool fail")


async def test_a_running_tool_tells_its_time_and_the_stop_of_the_chat_ends_it(
    context: BrowserContext, server: Server, pipes: Path
) -> None:
    for name in ("it-began", "it-cancelled"):
        os.mkfifo(pipes / name)
    page = await opened(context, server, await new_chat_with_tools(server, "Tools"))
    await ask(page, WAIT)
    wait = card(page, "good__wait")
    await wait.get_by_role("button", name="Allow once").click()
    await asyncio.to_thread((pipes / "it-began").read_text)
    await expect(wait.locator(".tool-state")).to_have_text(re.compile(r"Running · \d s"))
    await page.get_by_role("button", name="Stop", exact=True).click()
    assert await asyncio.to_thread((pipes / "it-cancelled").read_text) == "yes\n"
    await expect(answers(page).last.locator(".chip")).to_have_text("Stopped")
    await expect(wait.locator(".tool-state")).to_have_text("Stopped")
    await page.reload()
    await expect(wait.locator(".tool-state")).to_have_text("Stopped")
    deeds = answers(page).last.locator(".foot .word-button:visible")
    await expect(deeds).to_have_text(["Again", "⋯"])  # nothing to copy, and it cannot go on


async def test_a_chat_offers_the_tools_that_are_chosen_in_its_settings(
    context: BrowserContext, server: Server
) -> None:
    function: dict[str, Any] = {
        "type": "function",
        "name": "weather",
    }  # of a program: nobody takes it away here
    session = await new_chat(server, "Tools", tools=[function])
    page = await opened(context, server, session)
    settings = page.get_by_role("button", name="Settings of this chat")
    await settings.click()
    clock = page.get_by_role("group", name="Tools of clock")
    await clock.get_by_text("Choose among its tools").click()
    await expect(clock).to_contain_text("asks, until you allow it in the chat")
    await expect(page.get_by_role("group", name="Tools of gone")).to_contain_text("is not up")
    await clock.get_by_role("checkbox", name="now").check()
    await page.get_by_role("group", name="Tools of good").get_by_label("good").check()
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_text("Saved.")).to_be_visible()
    await expect_tools(
        server,
        session,
        [
            function,
            {"type": "mcp", "server_label": "clock", "allowed_tools": ["clock__now"]},
            {"type": "mcp", "server_label": "good"},
        ],
    )

    await settings.click()
    every = clock.get_by_role("checkbox", name="clock")
    assert await every.evaluate("box => box.indeterminate && !box.checked")
    await page.get_by_role("group", name="Tools of good").get_by_label("good").uncheck()
    await every.check()
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await expect_tools(server, session, [function, {"type": "mcp", "server_label": "clock"}])


async def expect_tools(server: Server, session: str, tools: list[dict[str, Any]]) -> None:
    async def are_saved() -> bool:
        settings = server.get_json(f"/v1/sessions/{session}")["settings"]
        return bool(settings.get("tools") == tools)

    await until(are_saved)
