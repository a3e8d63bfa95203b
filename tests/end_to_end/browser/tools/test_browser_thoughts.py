"""What a model thinks, in real Chromium: a fold that grows, closes, and opens for a reader."""

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.end_to_end.browser.test_browser import answers, ask
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.browser.tools.scripts import THINK, THINK_LONG
from tests.end_to_end.site.harness import Server

pytestmark = [*needs_browser, pytest.mark.slow]


async def asked(context: BrowserContext, server: Server, question: str) -> Page:
    page = await context.new_page()
    await page.goto(server.url)
    await ask(page, question)
    await expect(page.locator(".reasoning")).to_be_visible()
    return page


async def test_a_thought_shows_its_last_lines_while_it_grows_and_is_folded_at_its_end(
    context: BrowserContext, server: Server
) -> None:
    page = await asked(context, server, THINK_LONG)
    thought = page.locator(".reasoning")
    newest = thought.get_by_text("Thought 12 of many")
    await expect(newest).to_be_in_viewport()
    inner = thought.locator(".prose")
    assert await inner.evaluate("prose => prose.clientHeight") < 200
    await expect(thought.get_by_text("Thought 0 of many")).not_to_be_in_viewport()
    await expect(answers(page).last).to_contain_text("I have thought.")
    await expect(thought.locator("summary")).to_contain_text("Thought for")
    await expect(inner).to_be_hidden()
    await thought.locator("summary").press("Enter")
    await expect(thought.get_by_text("Thought 0 of many")).to_be_visible()
    assert await inner.evaluate("prose => prose.clientHeight === prose.scrollHeight")


async def test_a_thought_is_set_as_what_it_is_written_in_and_found_again_after_a_reload(
    context: BrowserContext, server: Server
) -> None:
    page = await asked(context, server, THINK)
    await expect(answers(page).last).to_contain_text("It is warmer in Brno.")
    for title in ("Thought for", "Thought"):
        summary = page.locator(".reasoning > summary")
        await expect(summary).to_contain_text(title)
        await summary.click()
        thought = page.locator(".reasoning .prose")
        await expect(thought.locator("strong")).to_have_text("two")
        await expect(thought.locator("li")).to_have_count(2)
        await expect(thought.locator("pre")).to_contain_text('print("warmer")')
        await page.reload()


async def test_who_folds_a_growing_thought_away_is_not_shown_it_again(
    context: BrowserContext, server: Server
) -> None:
    page = await asked(context, server, THINK_LONG)
    thought = page.locator(".reasoning")
    await expect(thought).to_contain_text("Thought 2 of many")
    await thought.locator("summary").click()
    await expect(thought.locator(".prose")).to_be_hidden()
    await expect(page.get_by_text("tokens/s · 1")).to_be_visible()  # it goes on
    await expect(thought.locator(".prose")).to_be_hidden()
    await thought.locator("summary").click()
    await expect(thought.get_by_text("Thought 0 of many")).to_be_visible()  # now all of it
    await page.get_by_role("textbox", name="Message").focus()
    await page.keyboard.press("Escape")
    await expect(answers(page).last).to_contain_text("Stopped")
    await expect(thought.get_by_text("Thought 0 of many")).to_be_visible()
