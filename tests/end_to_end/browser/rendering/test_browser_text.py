"""How the page sets text in real Chromium: tables, headings, either direction, forced colours."""

from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Locator, Page, expect

from tests.end_to_end.browser.test_browser import answers, signed_in
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.site.harness import Server

pytestmark = [*needs_browser, pytest.mark.slow]

TABLE = """
| Name | Occupation | Birthday | Favourite food | Price |
|---|---|---|---|--:|
| Clara Anderson | decorator | 2024-11-23 | strawberries | 1,234.56 |
"""
MIXED = """
# مرحبا بالعالم

- عنصر أول

An English paragraph.

> اقتباس `foo()`

```js
const greeting = "مرحبا";
```
"""


async def show(page: Page, server: Server, answer: str, title: str = "Shown") -> None:
    """A chat with this answer."""
    question = {"id": "1", "role": "user", "content": [{"type": "text", "text": "مرحبا!"}]}
    written = {"role": "assistant", "content": [{"type": "text", "text": answer}]}
    async with Http(server) as http:
        document = {
            "format": "parley.session",
            "version": 1,
            "session": {"title": title},
            "messages": [question, {"id": "2", "parent_id": "1", **written}],
        }
        imported = await http.post("/v1/sessions/import", document)
        await page.goto(f"{server.url}/#{imported.json()['id']}")
    await expect(answers(page)).to_have_count(2)


async def style(locator: Locator, name: str) -> Any:
    return await locator.evaluate("(element, name) => getComputedStyle(element)[name]", name)


async def test_on_a_phone_a_wide_table_scrolls_and_no_word_of_it_is_torn(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await page.set_viewport_size({"width": 390, "height": 844})
    await show(page, server, TABLE)
    cells = page.locator("td")
    assert await cells.evaluate_all("cells => cells.map((cell) => cell.clientHeight < 40)") == (
        [True] * 5
    )
    wider = "element => element.scrollWidth > element.clientWidth"
    assert await page.locator(".table").evaluate(wider)
    assert not await page.locator("html").evaluate(wider)


async def test_headings_of_an_answer_differ_by_their_level(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await show(page, server, "# First\n\n## Second\n\n### Third")
    names = ("First", "Second", "Third")
    sizes = [
        float((await style(page.get_by_role("heading", name=name), "fontSize"))[:-2])
        for name in names
    ]
    assert sizes == sorted(set(sizes), reverse=True)


async def test_each_block_title_and_message_runs_as_its_own_words_do(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await show(page, server, MIXED, title="محادثة")
    answer = answers(page).last
    await page.get_by_role("textbox", name="Message").fill("مرحبا")
    for locator, direction in (
        (page.locator(".bubble"), "rtl"),
        (page.get_by_role("textbox", name="Message"), "rtl"),
        (page.locator("h1"), "rtl"),
        (page.locator("nav .current .title"), "rtl"),
        (answer.get_by_role("heading"), "rtl"),
        (answer.locator("li"), "rtl"),
        (answer.locator(".prose > p"), "ltr"),
        (answer.locator("blockquote"), "rtl"),
        (answer.locator("blockquote code"), "ltr"),
        (answer.locator("pre"), "ltr"),
    ):
        assert await style(locator, "direction") == direction, locator


async def test_with_forced_colours_the_current_chat_and_the_chosen_theme_are_outlined(
    browser: Browser, server: Server
) -> None:
    async with signed_in(browser, server, forced_colors="active") as context:
        page = await context.new_page()
        await show(page, server, "Hello")
        assert await style(page.locator(".row.current"), "outlineStyle") == "solid"
        for pressed, outline in (("true", "solid"), ("false", "none")):
            button = page.locator(f'.themes [aria-pressed="{pressed}"]').first
            assert await style(button, "outlineStyle") == outline


async def test_an_answer_is_copied_as_markdown_a_question_and_code_as_they_are(
    context: BrowserContext, server: Server
) -> None:
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await context.new_page()
    await show(page, server, MIXED)
    for name, copied in (
        ("Copy message", "مرحبا!"),
        ("Copy answer", MIXED),
        ("Copy code", 'const greeting = "مرحبا";'),
    ):
        button = page.get_by_role("button", name=name)
        await button.click()
        await expect(button).to_have_text("Copied")
        text = await page.evaluate("navigator.clipboard.readText()")
        assert text.strip() == copied.strip()
        await expect(button).to_have_text("Copy")
