"""What one does with messages, in real Chromium: two tabs always agree, and with the server."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.end_to_end.browser.test_browser import answers, ask, login_url, signed_in
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import for_new_user
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

pytestmark = [*needs_browser, pytest.mark.slow]

SHORT = {"temperature": 0, "max_output_tokens": 8}  # which ends each answer of this model


async def tabs(context: BrowserContext, server: Server, session: str, count: int) -> list[Page]:
    pages = [await context.new_page() for _ in range(count)]
    for page in pages:
        await page.goto(f"{server.url}/#{session}")
    await pages[0].bring_to_front()  # a click in a tab that is not seen takes two seconds
    return pages


async def new_session(server: Server, **settings: Any) -> str:
    async with Http(server) as http:
        return str((await http.new_session(title="Tides", settings={**SHORT, **settings}))["id"])


def messages_of(server: Server, session: str) -> list[dict[str, Any]]:
    return list(server.get_json(f"/v1/sessions/{session}/messages")["messages"])


def text_of(message: dict[str, Any]) -> str:
    return str(message["content"][0]["text"])


async def expect_text(page: Page, expected: str) -> None:
    await expect(answers(page).last.locator(".prose")).to_have_text(expected.strip())


def version(page: Page, number: int, count: int) -> Any:
    return page.get_by_role("group", name=f"Version {number} of {count}")


async def asked(page: Page, word: int = 3) -> None:
    """Ask, and wait for the end of the answer."""
    shown = await answers(page).count()
    await ask(page, oracle_word(word))
    await expect(answers(page)).to_have_count(shown + 2)
    await expect(answers(page).last).to_contain_text("Cut short")


async def test_an_answer_made_again_is_another_version_and_both_tabs_switch(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server)
    one, two = await tabs(context, server, session, 2)
    await asked(one)
    first = messages_of(server, session)[-1]["id"]
    await one.get_by_role("button", name="Answer again", exact=True).click()
    for page in (one, two):
        await expect(version(page, 2, 2)).to_be_visible()
    await expect(answers(one).last).to_contain_text("Cut short")
    second = messages_of(server, session)[-1]["id"]
    assert first != second

    await two.bring_to_front()
    await two.get_by_role("button", name="Previous version").click()
    for page in (one, two):
        await expect(version(page, 1, 2)).to_be_visible()
    # The arrow that was pressed has gone with its version; the one in its place has the focus.
    await expect(two.get_by_role("button", name="Previous version")).to_be_focused()
    assert messages_of(server, session)[-1]["id"] == first

    await one.bring_to_front()
    await asked(one, 50)
    for page in (one, two):
        await expect_text(page, oracle_answer(50, 8))
    shown = messages_of(server, session)
    assert [shown[1]["id"], shown[2]["parent_id"]] == [first, first]
    await one.reload()
    await expect(version(one, 1, 2)).to_be_visible()
    # A version that has a conversation of its own is shown to that one's end.
    await one.get_by_role("button", name="Next version").click()
    await expect(version(two, 2, 2)).to_be_visible()
    await expect(answers(two)).to_have_count(2)
    await two.bring_to_front()
    await two.get_by_role("button", name="Previous version").click()
    await expect(answers(one)).to_have_count(4)
    await expect_text(one, oracle_answer(50, 8))


async def test_a_branch_that_another_client_chooses_is_shown_at_once(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server)
    (page,) = await tabs(context, server, session, 1)
    await asked(page)
    first = messages_of(server, session)[-1]["id"]
    await page.get_by_role("button", name="Answer again", exact=True).click()
    await expect(version(page, 2, 2)).to_be_visible()
    await expect(answers(page).last).to_contain_text("Cut short")
    async with Http(server) as http:
        await http.ask("PATCH", f"/v1/sessions/{session}", json={"head": first})
        await expect(version(page, 1, 2)).to_be_visible()
        await asked(page, 60)
        texts = await answers(page).all_inner_texts()
        shown = [text.split("\n")[0].strip() for text in texts]
        stored = [text_of(message).strip() for message in messages_of(server, session)]
        assert shown == stored
        # Back to the middle of the branch: what came after it is not in use any more.
        await http.ask("PATCH", f"/v1/sessions/{session}", json={"head": first})
        await expect(answers(page)).to_have_count(2)


async def test_an_edited_question_keeps_what_is_typed_and_makes_a_branch(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server)
    one, two = await tabs(context, server, session, 2)
    await asked(one)
    question = answers(one).first
    await question.hover()
    await question.get_by_role("button", name="Edit message").click()
    field = one.get_by_role("textbox", name="Edit your message")
    await expect(field).to_be_focused()
    await expect(field).to_have_value(oracle_word(3))
    await field.fill(oracle_word(70))
    await one.reload()
    await expect(field).to_have_value(oracle_word(70))
    await field.press("Enter")
    for page in (one, two):
        await expect(version(page, 2, 2)).to_be_visible()
        await expect_text(page, oracle_answer(70, 8))
    await expect(field).to_have_count(0)
    assert messages_of(server, session)[0]["parent_id"] is None
    await two.bring_to_front()
    await two.get_by_role("button", name="Previous version").click()
    for page in (one, two):
        await expect_text(page, oracle_answer(3, 8))


async def test_an_edit_that_is_given_up_changes_nothing_and_stops_no_answer(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=400)
    (page,) = await tabs(context, server, session, 1)
    await ask(page, oracle_word(3))
    await expect(answers(page).last).to_contain_text(oracle_word(10).strip())
    question = answers(page).first
    await question.hover()
    await question.get_by_role("button", name="Edit message").click()
    await page.keyboard.type("something else")
    await page.keyboard.press("Escape")
    await expect(question.get_by_role("button", name="Edit message")).to_be_focused()
    await expect(question).to_contain_text(oracle_word(3).strip())
    await expect(answers(page).last).to_contain_text(oracle_word(60).strip())
    await page.get_by_role("button", name="Stop", exact=True).click()
    await expect(answers(page).last).to_contain_text("Stopped")
    assert len(messages_of(server, session)) == 2


async def test_an_answer_that_was_cut_short_goes_on_in_its_place(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server)
    one, two = await tabs(context, server, session, 2)
    await asked(one)
    for length in (16, 24):
        await one.get_by_role("button", name="Continue the answer").click()
        for page in (one, two):
            await expect_text(page, oracle_answer(3, length))
        await expect(answers(one).last).to_contain_text(f"{length} tokens")
    assert text_of(messages_of(server, session)[-1]) == oracle_answer(3, 24)
    await asked(one, 40)
    await expect(
        answers(one).nth(1).get_by_role("button", name="Continue the answer")
    ).to_be_hidden()


async def test_asking_again_while_an_answer_is_written_replaces_it(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server)
    (page,) = await tabs(context, server, session, 1)
    await asked(page)
    async with Http(server) as http:
        await http.ask("PATCH", f"/v1/sessions/{session}", json={"settings": {"temperature": 0}})
    await ask(page, oracle_word(20))
    await expect(answers(page).last).to_contain_text(oracle_word(30).strip())
    await answers(page).nth(1).hover()
    again = answers(page).nth(1).get_by_role("button", name="Answer again", exact=True)
    await again.click()
    await expect(version(page, 2, 2)).to_be_visible()
    await expect(answers(page)).to_have_count(2)
    await page.get_by_role("button", name="Stop", exact=True).click()
    await expect(answers(page).last).to_contain_text("Stopped")


async def test_the_details_of_an_answer_and_the_way_to_make_it_again(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, temperature=1.0, seed=7)
    (page,) = await tabs(context, server, session, 1)
    await asked(page)
    await choose(page, "Details")
    dialog = page.get_by_role("dialog", name="Details of the answer")
    (message,) = messages_of(server, session)[1:]
    assert message["settings"]["seed"] == 7
    for words in (message["response_id"], "reached the length limit", "Seed7", "Temperature1"):
        await expect(dialog).to_contain_text(words)
    await dialog.get_by_role("button", name="Make it again").click()
    await expect(version(page, 2, 2)).to_be_visible()
    await expect(answers(page).last).to_contain_text("Cut short")
    again = messages_of(server, session)[-1]
    assert text_of(again) == text_of(message)
    assert again["settings"] == message["settings"]


async def choose(page: Page, item: str) -> None:
    """An item of the menu of the last answer."""
    await page.get_by_role("button", name="More about the answer").last.click()
    await page.get_by_role("menuitem", name=item).click()


@pytest.mark.slow
async def test_how_likely_the_tokens_were_is_shown_where_it_was_asked_for(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server, max_output_tokens=5, logprobs=2)
    (page,) = await tabs(context, server, session, 1)
    await asked(page, 30)
    await choose(page, "Details")
    dialog = page.get_by_role("dialog", name="Details of the answer")
    await expect(dialog.locator(".tokens span")).to_have_count(5)
    await expect(dialog.locator(".tokens")).to_have_text(oracle_answer(30, 5).strip())
    first = dialog.locator(".tokens span").first
    await expect(first).to_have_attribute("title", re.compile(r"^t00031␣ 100%; t\d+␣ < 0.1%"))


async def test_an_answer_is_made_again_with_other_settings_for_this_once(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server)
    (page,) = await tabs(context, server, session, 1)
    await asked(page)
    await choose(page, "Again with other settings")
    dialog = page.get_by_role("dialog", name="Again with other settings")
    await expect(dialog.get_by_label("Longest answer")).to_have_value("8")
    await dialog.get_by_label("Longest answer").fill("12")
    await dialog.get_by_role("button", name="Answer again").click()
    await expect_text(page, oracle_answer(3, 12))
    await asked(page, 40)
    await expect_text(page, oracle_answer(40, 8))


async def test_the_settings_of_a_chat_are_kept_and_those_of_a_new_one_begin_with_it(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await page.goto(server.url)
    settings = page.get_by_role("button", name="Settings of this chat")
    dialog = page.get_by_role("dialog", name="Settings of")
    await settings.click()
    await expect(dialog).to_have_accessible_name("Settings of new chats")
    await dialog.get_by_label("Longest answer").fill("8")
    await dialog.get_by_label("Temperature").fill("0")
    await dialog.get_by_label("Instructions").fill("Count.")
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await asked(page)
    session = page.url.partition("#")[2]
    given = {"max_output_tokens": 8, "temperature": 0, "system": "Count."}
    assert server.get_json(f"/v1/sessions/{session}")["settings"] == given
    await page.keyboard.press("Control+,")
    await expect(dialog.get_by_label("Instructions")).to_have_value("Count.")
    await dialog.get_by_label("Longest answer").fill("0")
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(dialog).to_be_visible()  # the field says what it takes
    await dialog.get_by_label("Longest answer").fill("10")
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(dialog).to_have_count(0)
    await asked(page, 40)
    assert text_of(messages_of(server, session)[-1]) == oracle_answer(40, 10)


async def test_a_preset_is_kept_by_the_server_and_begins_new_chats(
    browser: Browser, server: Server
) -> None:
    server = await for_new_user(server)
    dialog_name = "Settings of new chats"
    async with signed_in(browser, server) as context:
        page = await context.new_page()
        await page.goto(server.url)
        await page.get_by_role("button", name="Settings of this chat").click()
        dialog = page.get_by_role("dialog", name=dialog_name)
        await dialog.get_by_label("Longest answer").fill("8")
        await dialog.get_by_label("Temperature").fill("0")
        await dialog.get_by_role("button", name="Save as a preset…").click()
        await dialog.get_by_label("Name").fill("Brief")
        await dialog.get_by_label("New chats begin with it").check()
        await dialog.get_by_role("button", name="Save preset").click()
        await expect(page.get_by_text("Saved as “Brief”")).to_be_visible()
    async with signed_in(browser, server) as elsewhere:  # another browser of theirs
        page = await elsewhere.new_page()
        await page.goto(server.url)
        await expect(page.locator(".chips button").first).to_be_visible()
        await page.get_by_role("button", name="Settings of this chat").click()
        dialog = page.get_by_role("dialog", name=dialog_name)
        await expect(dialog.get_by_label("Longest answer")).to_have_value("8")
        await page.keyboard.press("Escape")
        await asked(page)
        await expect_text(page, oracle_answer(3, 8))
        await page.keyboard.press("Control+,")
        dialog = page.get_by_role("dialog", name="Settings of this chat")
        await dialog.get_by_label("Longest answer").fill("20")
        await dialog.get_by_label("Preset").select_option("Brief")
        await expect(dialog.get_by_label("Longest answer")).to_have_value("8")
        await dialog.get_by_role("button", name="Delete “Brief”").click()
        await expect(dialog.get_by_label("Preset")).to_have_count(0)


@pytest.mark.slow
async def test_a_new_chat_begins_with_the_messages_up_to_an_answer(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server)
    (page,) = await tabs(context, server, session, 1)
    await asked(page)
    await asked(page, 30)
    await answers(page).nth(1).hover()
    await answers(page).nth(1).get_by_role("button", name="More about the answer").click()
    await page.get_by_role("menuitem", name="New chat from here").click()
    await page.wait_for_url(lambda url: session not in url)
    await expect(answers(page)).to_have_count(2)
    fork = page.url.partition("#")[2]
    kept = [text_of(message) for message in messages_of(server, session)[:2]]
    assert [text_of(message) for message in messages_of(server, fork)] == kept


@pytest.fixture
async def chat(context: BrowserContext, server: Server) -> tuple[Page, str]:
    """A page with a chat of one answer, and the chat's id."""
    session = await new_session(server)
    (page,) = await tabs(context, server, session, 1)
    await asked(page)
    return page, session


async def row_menu(page: Page, session: str, item: str) -> None:
    row = page.locator(".row", has=page.locator(f'a[href="#{session}"]'))
    await row.hover()
    await row.get_by_role("button", name="Options for").click()
    await page.get_by_role("menuitem", name=item, exact=True).click()


async def test_a_chat_is_pinned_and_unpinned(chat: tuple[Page, str], server: Server) -> None:
    page, session = chat
    pinned = page.locator("section", has=page.get_by_role("heading", name="Pinned"))
    await row_menu(page, session, "Pin")
    await expect(pinned.locator(f'a[href="#{session}"]')).to_be_visible()
    assert server.get_json(f"/v1/sessions/{session}")["pinned"] is True
    await row_menu(page, session, "Unpin")
    await expect(pinned.locator(f'a[href="#{session}"]')).to_have_count(0)
    assert server.get_json(f"/v1/sessions/{session}")["pinned"] is False


@pytest.mark.slow
async def test_a_share_link_shows_the_chat_to_strangers_until_it_is_ended(
    chat: tuple[Page, str], browser: Browser
) -> None:
    page, session = chat
    await row_menu(page, session, "Share…")
    dialog = page.get_by_role("dialog", name="Share this chat")
    await dialog.get_by_role("button", name="Make the link").click()
    link = await dialog.get_by_label("Link").input_value()
    stranger = await (await browser.new_context()).new_page()
    answer = await stranger.goto(link)
    assert answer is not None and answer.status == 200
    await expect(stranger.locator("body")).to_contain_text(oracle_answer(3, 8).strip())
    await dialog.get_by_role("button", name="Stop sharing").click()
    await expect(page.get_by_text("The link works no more")).to_be_visible()
    answer = await stranger.reload()
    assert answer is not None and answer.status == 404
    await stranger.context.close()


@pytest.mark.slow
async def test_a_saved_chat_can_be_imported(
    chat: tuple[Page, str], server: Server, tmp_path: Path
) -> None:
    page, session = chat
    async with page.expect_download() as download:
        await row_menu(page, session, "Save as Markdown")
    markdown = await (await download.value).path()
    assert oracle_answer(3, 8).strip() in markdown.read_text()
    async with page.expect_download() as download:
        await row_menu(page, session, "Save as JSON")
    file = tmp_path / (await download.value).suggested_filename
    await (await download.value).save_as(file)
    assert json.loads(file.read_text())["format"] == "parley.session"
    field = page.locator("input[type=file]")
    await field.set_input_files(file)
    await page.wait_for_url(lambda url: session not in url)
    await expect_text(page, oracle_answer(3, 8))


@pytest.mark.slow
async def test_a_file_that_is_no_chat_is_refused_in_words(
    browser: Browser, server: Server, tmp_path: Path
) -> None:
    context = await browser.new_context()  # of its own: a refusal is an error on the console
    page = await context.new_page()
    await page.goto(login_url(server))
    await page.wait_for_url(server.url + "/")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    await page.locator("input[type=file]").set_input_files(broken)
    await expect(page.locator(".toast")).to_contain_text("not a chat that was saved here")
    await context.close()


async def test_what_a_program_adds_and_deletes_is_seen_at_once(
    context: BrowserContext, server: Server
) -> None:
    session = await new_session(server)
    (page,) = await tabs(context, server, session, 1)
    items = f"/v1/conversations/conv_{session.removeprefix('ses_')}/items"
    async with Http(server) as http:
        body = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Where is the sea?"},
            {"role": "assistant", "content": "Over there."},
        ]
        added = (await http.post(items, {"items": body})).json()["data"]
        told = page.get_by_role("article", name="Instructions")
        await expect(told.locator(".bubble")).to_have_text("Be brief.")
        await expect(page.get_by_role("article", name="You said")).to_contain_text("the sea?")
        await expect_text(page, "Over there.")
        for item in added:
            await http.ask("DELETE", f"{items}/{item['id']}")
        await expect(told.locator(".bubble")).to_have_text("Deleted")
        for name in ("You said", "Parley said"):
            await expect(page.get_by_role("article", name=name)).to_contain_text("Deleted")
        await expect(page.get_by_text("Over there.")).to_have_count(0)
