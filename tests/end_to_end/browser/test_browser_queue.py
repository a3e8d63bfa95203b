"""Messages sent while an answer is being written, in real Chromium: they wait or steer it."""

import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.end_to_end.browser.test_browser import answers, ask, until
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.browser.test_browser_messages import messages_of, new_session, tabs, text_of
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

pytestmark = [*needs_browser, pytest.mark.slow]


async def begin(page: Page) -> None:
    """An answer that goes on until it is stopped."""
    await ask(page, oracle_word(0))
    await expect(answers(page).last).to_contain_text(oracle_word(10).strip())


async def stop(page: Page) -> None:
    await page.get_by_role("button", name="Stop", exact=True).click()


def waiting(page: Page) -> Locator:
    """The words of what waits, in order."""
    return page.get_by_role("region", name="Messages that wait").locator(".words")


async def show_words(page: Page, *words: int) -> None:
    await expect(waiting(page)).to_have_text([oracle_word(word).strip() for word in words])


async def act(page: Page, what: str, number: int) -> None:
    await page.get_by_role("button", name=f"{what} message {number}").click()


async def test_what_waits_is_the_same_in_both_tabs_and_is_edited_moved_withdrawn_and_asked(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=2000)
    one, two = await tabs(context, server, session, 2)
    await begin(one)
    for word in (40, 60, 80):
        await ask(one, oracle_word(word))
    await expect(one.get_by_role("textbox", name="Message", exact=True)).to_have_value("")
    await show_words(two, 40, 60, 80)
    await act(two, "Edit", 2)
    await two.get_by_role("textbox", name="Edit the message that waits").fill(oracle_word(500))
    await two.keyboard.press("Enter")
    await show_words(one, 40, 500, 80)
    await act(one, "Move up", 3)
    await show_words(two, 40, 80, 500)
    await act(two, "Withdraw", 2)
    await show_words(one, 40, 500)
    await stop(one)
    for page in (one, two):
        await expect(page.get_by_text("Paused until you go on")).to_be_visible()
    async with Http(server) as http:
        shorter = {"settings": {"temperature": 0, "max_output_tokens": 100}}
        await http.ask("PATCH", f"/v1/sessions/{session}", json=shorter)
    await two.get_by_role("button", name="Go on", exact=True).click()
    await expect(answers(one).nth(3)).to_contain_text(oracle_word(50).strip())
    await expect(answers(one).nth(5)).to_contain_text(oracle_word(510).strip())
    await expect(waiting(two)).to_have_count(0)
    questions = [text_of(message) for message in messages_of(server, session)[::2]]
    assert questions == [oracle_word(0), oracle_word(40), oracle_word(500)]


async def test_alt_enter_steers_the_answer_and_one_that_waits_can_be_sent_now(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=2000)
    (page,) = await tabs(context, server, session, 1)
    await begin(page)
    await page.get_by_role("textbox", name="Message", exact=True).fill(oracle_word(500))
    await page.keyboard.press("Alt+Enter")
    await expect(answers(page).nth(1)).to_contain_text("goes on with your next message")
    await expect(answers(page).nth(3)).to_contain_text(oracle_word(510).strip())
    kept = text_of(messages_of(server, session)[1])
    assert kept != "" and oracle_answer(0, 2000).startswith(kept)
    await ask(page, oracle_word(40))
    await ask(page, oracle_word(60))
    await act(page, "Send now", 2)
    await expect(answers(page).nth(5)).to_contain_text(oracle_word(70).strip())
    await show_words(page, 40)
    await act(page, "Withdraw", 1)
    await stop(page)


@pytest.mark.slow
async def test_ctrl_enter_sends_in_place_of_the_answer(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=400)
    (page,) = await tabs(context, server, session, 1)
    await begin(page)
    await page.get_by_role("textbox", name="Message", exact=True).fill(oracle_word(500))
    await expect(page.get_by_role("button", name="Send after this answer")).to_be_visible()
    await page.keyboard.press("Control+Enter")
    await expect(answers(page).nth(1)).to_contain_text("stopped by a newer question")
    await expect(answers(page).nth(3)).to_contain_text(oracle_word(510).strip())
    await stop(page)
    await expect(answers(page).nth(3)).to_contain_text("Stopped")
    text = text_of(messages_of(server, session)[-1])
    assert oracle_answer(500, 400).startswith(text)


@pytest.mark.slow
async def test_what_is_typed_for_a_message_that_goes_out_meanwhile_is_not_lost(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=2000)
    (page,) = await tabs(context, server, session, 1)
    await begin(page)
    await ask(page, oracle_word(40))
    await act(page, "Edit", 1)
    edit = page.get_by_role("textbox", name="Edit the message that waits")
    await edit.fill("Half a sen")
    await page.reload()
    await expect(edit).to_have_value("Half a sen")
    await page.get_by_role("button", name="Stop", exact=True).click()
    await page.get_by_role("button", name="Go on", exact=True).click()
    await expect(answers(page).nth(3)).to_contain_text(oracle_word(50).strip())
    field = page.get_by_role("textbox", name="Message", exact=True)
    await expect(field).to_have_value("Half a sen")


@pytest.mark.slow
async def test_one_too_many_comes_back(context: BrowserContext, server: Server) -> None:
    session = await new_session(server, max_output_tokens=2000)
    (page,) = await tabs(context, server, session, 1)
    await begin(page)
    words = range(100, 116)
    for word in words:
        await ask(page, oracle_word(word))
    await show_words(page, *words)
    await ask(page, oracle_word(77))
    await expect(page.locator(".refusal")).to_contain_text("Too many messages wait already")
    field = page.get_by_role("textbox", name="Message", exact=True)
    await expect(field).to_have_value(oracle_word(77))
    await stop(page)
    await expect(answers(page).nth(1)).to_contain_text("Stopped")


@pytest.mark.slow
async def test_a_message_that_waits_by_the_older_way_is_withdrawn_and_the_answer_goes_on(
    context: BrowserContext, server: Server
) -> None:
    """Other clients ask with `on_busy: "queue"`: such a question has its place already."""
    session = await new_session(server, max_output_tokens=2000)
    one, two = await tabs(context, server, session, 2)
    await begin(one)
    body = {"input": oracle_word(40), "on_busy": "queue"}
    await context.request.post(
        f"{server.url}/v1/sessions/{session}/responses",
        data=body,
        headers={"Idempotency-Key": "k", "Origin": server.url},
    )
    await expect(one.get_by_text("Waiting for the answer before")).to_have_count(1)
    await two.get_by_role("button", name="Withdraw the question that waits").click()
    for page in (one, two):
        await expect(answers(page).nth(3)).to_contain_text("Stopped")
    shown = len(await answers(one).nth(1).inner_text())

    async def has_grown() -> bool:
        return len(await answers(one).nth(1).inner_text()) > shown

    await until(has_grown)
    await stop(one)
    await expect(answers(one).nth(1)).to_contain_text("Stopped")
