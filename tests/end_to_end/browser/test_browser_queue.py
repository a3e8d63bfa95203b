"""Messages sent while an answer is being written, in real Chromium: they wait, or replace it."""

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.end_to_end.browser.test_browser import answers, ask, until
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as pytestmark
from tests.end_to_end.browser.test_browser_messages import messages_of, new_session, tabs, text_of
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

WAITS = "Waiting for the answer before"


async def begin(page: Page) -> None:
    """An answer that goes on until it is stopped."""
    await ask(page, oracle_word(0))
    await expect(answers(page).last).to_contain_text(oracle_word(10).strip())


async def stop(page: Page) -> None:
    await page.get_by_role("button", name="Stop", exact=True).click()


async def test_enter_lets_a_message_wait_for_the_answer_in_both_tabs(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=2000)
    one, two = await tabs(context, server, session, 2)
    await begin(one)
    await ask(one, oracle_word(40))
    await ask(two, oracle_word(60))
    for page in (one, two):
        await expect(answers(page)).to_have_count(6)
        await expect(page.get_by_text(WAITS)).to_have_count(2)
        await expect(page.get_by_role("textbox", name="Message")).to_have_value("")
    await stop(two)  # what is being written, not what waits
    for page in (one, two):
        await expect(answers(page).nth(1)).to_contain_text("Stopped")
        await expect(answers(page).nth(3)).to_contain_text(oracle_word(50).strip())
        await expect(page.get_by_text(WAITS)).to_have_count(1)
    await stop(one)
    await expect(answers(two).nth(5)).to_contain_text(oracle_word(70).strip())
    await stop(two)
    await expect(answers(one).nth(5)).to_contain_text("Stopped")
    questions = [text_of(message) for message in messages_of(server, session)[::2]]
    assert questions == [oracle_word(0), oracle_word(40), oracle_word(60)]


async def test_a_message_that_waits_is_withdrawn_and_the_answer_goes_on(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=2000)
    one, two = await tabs(context, server, session, 2)
    await begin(one)
    await ask(one, oracle_word(40))
    await two.get_by_role("button", name="Withdraw the question that waits").click()
    for page in (one, two):
        await expect(answers(page).nth(3)).to_contain_text("Stopped")
        await expect(page.get_by_text(WAITS)).to_have_count(0)
    shown = len(await answers(one).nth(1).inner_text())
    await expect(one.get_by_role("button", name="Stop", exact=True)).to_be_enabled()

    async def has_grown() -> bool:
        return len(await answers(one).nth(1).inner_text()) > shown

    await until(has_grown)
    await stop(one)
    await expect(answers(one).nth(1)).to_contain_text("Stopped")


async def test_ctrl_enter_sends_in_place_of_the_answer(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=400)
    (page,) = await tabs(context, server, session, 1)
    await begin(page)
    await page.get_by_role("textbox", name="Message").fill(oracle_word(500))
    await expect(page.get_by_role("button", name="Send after this answer")).to_be_visible()
    await page.keyboard.press("Control+Enter")
    await expect(answers(page).nth(1)).to_contain_text("stopped by a newer question")
    await expect(answers(page).nth(3)).to_contain_text(oracle_word(510).strip())
    await stop(page)
    await expect(answers(page).nth(3)).to_contain_text("Stopped")
    text = text_of(messages_of(server, session)[-1])
    assert oracle_answer(500, 400).startswith(text)


@pytest.mark.slow
async def test_a_fifth_message_that_would_wait_comes_back(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=2000)
    (page,) = await tabs(context, server, session, 1)
    await begin(page)
    for number in range(4):
        await ask(page, oracle_word(number))
        await expect(page.get_by_text(WAITS)).to_have_count(number + 1)
    await ask(page, oracle_word(77))
    await expect(page.locator(".refusal")).to_contain_text("Too many messages wait already")
    await expect(page.get_by_role("textbox", name="Message")).to_have_value(oracle_word(77))
    withdraw = page.get_by_role("button", name="Withdraw the question that waits")
    for left in (3, 2, 1, 0):
        await withdraw.last.click()
        await expect(withdraw).to_have_count(left)
    await stop(page)
    await expect(answers(page).nth(1)).to_contain_text("Stopped")
