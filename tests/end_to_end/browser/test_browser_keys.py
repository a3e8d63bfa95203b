"""The page by keyboard, on paper and for those who do not see it, in real Chromium."""

import re

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.end_to_end.browser.test_browser import answers, ask, signed_in, until
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.browser.test_browser_messages import asked, new_session, tabs
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import for_new_user
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

pytestmark = [*needs_browser, pytest.mark.slow]


async def test_the_palette_goes_to_chats_that_the_list_has_not_loaded_and_does_things(
    browser: Browser, server: Server
) -> None:
    server = await for_new_user(server)
    async with Http(server) as http, signed_in(browser, server) as context:
        await http.new_session(title="The oldest tide")
        for number in range(55):
            await http.new_session(title=f"Chat {number}")
        page = await context.new_page()
        await page.goto(server.url)
        await expect(page.locator("nav .title").first).to_be_visible()
        await page.keyboard.press("Control+k")
        field = page.get_by_role("combobox", name="Search chats and actions")
        await expect(field).to_be_focused()
        await field.fill("tide")
        await expect(page.get_by_role("option")).to_have_text(["The oldest tide"])
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="The oldest tide")).to_be_visible()
        await page.keyboard.press("Control+k")
        await field.fill("pin chat")
        await expect(page.get_by_role("option").first).to_have_text("This chat: Pin")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Pinned")).to_be_visible()
        await page.keyboard.press("Control+k")
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("ArrowUp")
        await expect(page.get_by_role("option").last).to_have_attribute("aria-selected", "true")
        await field.fill("zzz")
        await expect(page.get_by_text("Nothing is called that")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(field).to_have_count(0)


async def test_escape_in_a_dialog_or_menu_closes_it_and_stops_no_answer(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=2000)
    (page,) = await tabs(context, server, session, 1)
    message = page.get_by_role("textbox", name="Message")
    await message.fill("t00003")
    await page.keyboard.press("Enter")
    stop = page.get_by_role("button", name="Stop", exact=True)
    await expect(stop).to_be_enabled()
    for keys in ("Control+k", "Control+,", "Control+/"):
        await page.keyboard.press(keys)
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(message).to_be_focused()
    await page.locator("button.account").click()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("menu")).to_have_count(0)
    await expect(page.locator("button.account")).to_be_focused()
    await expect(stop).to_be_enabled()
    await page.keyboard.press("Escape")
    await expect(answers(page).last).to_contain_text("Stopped")


async def test_the_first_stop_of_the_keyboard_leads_past_the_list(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await page.goto(server.url)
    await page.get_by_role("button", name="New chat").first.focus()
    await page.keyboard.press("Shift+Tab")
    skip = page.get_by_role("button", name="Skip to the conversation")
    await expect(skip).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("region", name="Conversation")).to_be_focused()


async def test_every_action_on_a_message_is_done_by_keyboard(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server)
    (page,) = await tabs(context, server, session, 1)
    await asked(page)
    await tab_to(page, "Edit message")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Escape")
    await tab_to(page, "Answer again")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("group", name="Version 2 of 2")).to_be_visible()
    await expect(answers(page).last).to_contain_text("Cut short")
    await tab_to(page, "Previous version")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("group", name="Version 1 of 2")).to_be_visible()
    await tab_to(page, "Continue the answer")
    await page.keyboard.press("Enter")
    await expect(answers(page).last.locator(".prose")).to_have_text(oracle_answer(3, 16).strip())
    await expect(answers(page).last).to_contain_text("Cut short")
    await tab_to(page, "More about the answer")
    await page.keyboard.press("Enter")
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog", name="Details of the answer")).to_be_visible()


@pytest.mark.slow
async def test_every_action_on_what_waits_is_done_by_keyboard(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=2000)
    (page,) = await tabs(context, server, session, 1)
    await ask(page, oracle_word(0))
    for word in (40, 60):
        await ask(page, oracle_word(word))
    words = page.get_by_role("region", name="Messages that wait").locator(".words")
    await expect(words).to_have_count(2)
    await tab_to(page, "Move up message 2")
    await page.keyboard.press("Enter")
    await expect(words.first).to_have_text(oracle_word(60).strip())
    await tab_to(page, "Edit message 1")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("textbox", name="Edit the message that waits")).to_be_focused()
    await page.keyboard.press("Control+A")
    await page.keyboard.type(oracle_word(80))
    await page.keyboard.press("Enter")
    await expect(words.first).to_have_text(oracle_word(80).strip())
    await tab_to(page, "Withdraw message 2")
    await page.keyboard.press("Enter")
    await expect(words).to_have_count(1)
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Go on", exact=True)).to_be_visible()
    await tab_to(page, "Go on")
    await page.keyboard.press("Enter")
    await expect(answers(page).nth(3)).to_contain_text(oracle_word(90).strip())
    await page.keyboard.press("Escape")
    await expect(answers(page).nth(3)).to_contain_text("Stopped")


async def tab_to(page: Page, name: str) -> None:
    """From the conversation on, as somebody without a mouse."""
    await page.get_by_role("region", name="Conversation").focus()
    button = page.get_by_role("button", name=name, exact=True)
    for _ in range(30):
        await page.keyboard.press("Tab")
        if await button.evaluate_all("found => found.includes(document.activeElement)"):
            return
    raise AssertionError(f"the keyboard does not reach {name}")


@pytest.mark.slow
async def test_the_whole_of_a_long_chat_is_printed(browser: Browser, server: Server) -> None:
    server = await for_new_user(server)
    messages = []
    for number in range(0, 240, 2):
        parent = {"parent_id": str(number - 1)} if number else {}
        question = [{"type": "text", "text": f"Question {number}"}]
        answer = [{"type": "text", "text": f"Answer {number}\n\n" + "words " * 100}]
        messages += [
            {"id": str(number), "role": "user", "content": question, **parent},
            {
                "id": str(number + 1),
                "role": "assistant",
                "content": answer,
                "parent_id": str(number),
            },
        ]
    async with Http(server) as http, signed_in(browser, server) as context:
        document = {"format": "parley.session", "version": 1, "messages": messages}
        imported = await http.post(
            "/v1/sessions/import", {**document, "session": {"title": "Long"}}
        )
        page = await context.new_page()
        await page.add_init_script("globalThis.print = () => (globalThis.printed = true)")
        await page.goto(f"{server.url}/#{imported.json()['id']}")
        await expect(answers(page).last).to_contain_text("Answer 238")
        await page.keyboard.press("Control+k")
        await page.keyboard.type("print")
        await page.keyboard.press("Enter")
        await expect(answers(page)).to_have_count(240)
        await until(lambda: page.evaluate("globalThis.printed"))  # it waits for the fonts
        pdf = await page.pdf()
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 20
        await expect(page.get_by_role("button", name="New chat").first).to_be_visible()


async def test_what_was_copied_is_said_aloud(context: BrowserContext, server: Server) -> None:
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    session = await new_session(server)
    (page,) = await tabs(context, server, session, 1)
    await asked(page)
    await page.get_by_role("button", name="Copy answer").click()
    await expect(page.get_by_role("status").filter(has_text="Copied")).to_be_attached()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == oracle_answer(3, 8).strip()
