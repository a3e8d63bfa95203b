"""Each view and state of the chat page, as a function that brings a page into it."""

from collections.abc import Awaitable, Callable
from typing import Any

from playwright.async_api import Locator, expect

from tests.end_to_end.browser.test_browser import answers, ask
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.looks import texts
from tests.end_to_end.looks.stage import Stage

State = Callable[[Stage], Awaitable[None]]
CHAT_STATES: dict[str, State] = {}
USAGE = {"input_tokens": 61, "cached_tokens": 32, "output_tokens": 148}


def state(function: State) -> State:
    CHAT_STATES[function.__name__.replace("_", "-")] = function
    return function


@state
async def empty(stage: Stage) -> None:
    await stage.page.goto(stage.server.url)
    await expect(stage.page.locator(".chips button").first).to_be_visible()


@state
async def streaming(stage: Stage) -> None:
    await stage.begin(texts.GROWING)


@state
async def thinking(stage: Stage) -> None:
    """Before the first word."""
    await stage.begin(None)


@state
async def waiting(stage: Stage) -> None:
    await stage.begin(texts.GROWING)
    for number in (1, 2):
        await ask(stage.page, f"And how high is the water on day {number}?")
        if stage.is_phone:
            await stage.page.get_by_role("button", name="Send after this answer").click()
        await expect(stage.page.locator(".queue .words")).to_have_count(number)
    await expect(stage.page.get_by_text("Sending…")).to_have_count(0)


@state
async def edited_waiting(stage: Stage) -> None:
    await waiting(stage)
    await stage.page.get_by_role("button", name="Edit message 2").click()
    await expect(stage.page.get_by_role("textbox", name="Edit the message")).to_be_focused()


@state
async def diagram(stage: Stage) -> None:
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.DIAGRAM))
    await expect(stage.page.locator("iframe")).to_be_visible()


@state
async def stopped(stage: Stage) -> None:
    ended = {"status": "interrupted", "usage": USAGE}
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.GROWING, **ended))
    await expect(stage.page.get_by_text("Stopped", exact=True)).to_be_visible()


@state
async def failed(stage: Stage) -> None:
    ended = {"status": "failed", "usage": USAGE}
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.GROWING, **ended))
    await expect(stage.page.get_by_text("Failed", exact=True)).to_be_visible()


@state
async def markdown(stage: Stage) -> None:
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.MARKDOWN, usage=USAGE))


@state
async def code(stage: Stage) -> None:
    chat = await stage.chat("Code", texts.QUESTION_WITH_CODE, texts.CODE, usage=USAGE)
    await stage.open(chat)
    await expect(stage.page.locator(".answer .hl-keyword").first).to_be_visible()


@state
async def formula(stage: Stage) -> None:
    await stage.open(await stage.chat("Formulas", texts.TIDES, texts.FORMULA, usage=USAGE))
    await expect(stage.page.locator(".katex")).to_have_count(4)


@state
async def right_to_left(stage: Stage) -> None:
    chat = await stage.chat(texts.ARABIC_QUESTION, texts.ARABIC_QUESTION, texts.ARABIC)
    await stage.open(chat)


@state
async def long_words(stage: Stage) -> None:
    chat = await stage.chat(texts.LONG_WORD, texts.LONG_WORDS_QUESTION, texts.LONG_WORDS)
    await stage.open(chat)


@state
async def branches(stage: Stage) -> None:
    messages: list[dict[str, Any]] = [
        {"id": "q", "role": "user", "content": [{"type": "text", "text": texts.TIDES}]},
        *(
            {
                "id": f"a{number}",
                "parent_id": "q",
                "role": "assistant",
                "content": [{"type": "text", "text": texts.SHORT_ANSWER}],
                "usage": USAGE,
            }
            for number in range(3)
        ),
    ]
    await stage.open(await stage.import_chat("Three answers", messages))
    await expect(stage.page.get_by_role("group", name="Version 3 of 3")).to_be_visible()


@state
async def two_hundred_turns(stage: Stage) -> None:
    said = [texts.TIDES, texts.SHORT_ANSWER, texts.QUESTION_WITH_CODE, texts.CODE]
    said += [texts.TIDES, texts.MARKDOWN, texts.TIDES, texts.FORMULA]
    await stage.open(await stage.chat("A long talk", *(said * 50)))
    await expect(stage.page.locator(".answer .katex").last).to_be_visible()


@state
async def scrolled_up(stage: Stage) -> None:
    """The newest line is out of sight: a pill leads to it."""
    await stage.open(await stage.chat("A long talk", *((texts.TIDES, texts.MARKDOWN) * 3)))
    await stage.page.locator(".scroller").evaluate("element => (element.scrollTop = 300)")
    await expect(stage.page.get_by_role("button", name="Jump to latest")).to_be_visible()


@state
async def message_menu(stage: Stage) -> None:
    await opened_answer_menu(stage)


@state
async def details(stage: Stage) -> None:
    await opened_answer_menu(stage)
    await stage.page.get_by_role("menuitem", name="Details").click()
    await expect(stage.page.get_by_role("dialog")).to_be_visible()


@state
async def again(stage: Stage) -> None:
    await opened_answer_menu(stage)
    await stage.page.get_by_role("menuitem", name="Again with other settings").click()
    await expect(stage.page.get_by_role("dialog")).to_be_visible()


async def opened_answer_menu(stage: Stage) -> None:
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.SHORT_ANSWER, usage=USAGE))
    await stage.page.get_by_role("button", name="More about the answer").click()
    await expect(stage.page.get_by_role("menu")).to_be_visible()


@state
async def settings(stage: Stage) -> None:
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.SHORT_ANSWER))
    await stage.page.get_by_role("button", name="Settings of this chat").click()
    await expect(stage.page.get_by_role("dialog")).to_be_visible()


@state
async def all_settings(stage: Stage) -> None:
    """Unfolded, and about to be given a name."""
    await settings(stage)
    dialog = stage.page.get_by_role("dialog")
    await dialog.get_by_text("More", exact=True).click()
    await dialog.get_by_role("button", name="Save as a preset…").click()
    await dialog.get_by_label("Name").fill("Brief")
    await dialog.get_by_label("Name").scroll_into_view_if_needed()


@state
async def share(stage: Stage) -> None:
    menu = await opened_chat_menu(stage)
    await menu.get_by_role("menuitem", name="Share…").click()
    dialog = stage.page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Make the link").click()
    await expect(dialog.get_by_label("Link")).to_be_visible()


@state
async def chat_menu(stage: Stage) -> None:
    await opened_chat_menu(stage)


async def opened_chat_menu(stage: Stage) -> Locator:
    await chats(stage)
    row = stage.page.locator(".row", has=stage.page.get_by_role("link", name="Boats"))
    if not stage.is_phone:
        await row.hover()
    await row.get_by_role("button", name="Options for Boats").click()
    return stage.page.get_by_role("menu")


@state
async def account_menu(stage: Stage) -> None:
    await empty(stage)
    await stage.open_list()
    await stage.page.locator("button.account").click()
    await expect(stage.page.get_by_role("menu")).to_be_visible()


@state
async def shortcuts(stage: Stage) -> None:
    await account_menu(stage)
    await stage.page.get_by_role("menuitem", name="Keyboard shortcuts").click()
    await expect(stage.page.get_by_role("dialog")).to_be_visible()


@state
async def palette(stage: Stage) -> None:
    await stage.chat("Boats of Tidewick", texts.TIDES, texts.SHORT_ANSWER)
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.SHORT_ANSWER))
    await stage.page.keyboard.press("Control+k")
    await expect(stage.page.get_by_role("option").first).to_be_visible()


@state
async def palette_without_result(stage: Stage) -> None:
    await palette(stage)
    await stage.page.get_by_role("combobox").fill("zzz")
    await expect(stage.page.get_by_text("Nothing is called that")).to_be_visible()


@state
async def edit(stage: Stage) -> None:
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.SHORT_ANSWER, usage=USAGE))
    if not stage.is_phone:
        await answers(stage.page).first.hover()
    await stage.page.get_by_role("button", name="Edit message").click()
    await expect(stage.page.get_by_role("textbox", name="Edit your message")).to_be_focused()


@state
async def chats(stage: Stage) -> None:
    """The list, which is a drawer on a phone."""
    for title in ("Reading the tide table", "Boats", texts.ARABIC_QUESTION, texts.LONG_WORD):
        await stage.chat(title, texts.TIDES, texts.SHORT_ANSWER)
    pinned = await stage.chat("Packing for the island", texts.TIDES, texts.SHORT_ANSWER)
    async with Http(stage.server) as http:
        await http.ask("PATCH", f"/v1/sessions/{pinned}", json={"pinned": True})
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.SHORT_ANSWER, usage=USAGE))
    await stage.open_list()
    await expect(stage.page.get_by_role("heading", name="Pinned")).to_be_visible()
    await expect(stage.page.locator("nav .title")).to_have_count(6)


@state
async def rename(stage: Stage) -> None:
    menu = await opened_chat_menu(stage)
    await menu.get_by_role("menuitem", name="Rename").click()
    await expect(stage.page.get_by_label("Name of the chat")).to_be_focused()


@state
async def deleted(stage: Stage) -> None:
    """A notice offers to undo it."""
    menu = await opened_chat_menu(stage)
    await menu.get_by_role("menuitem", name="Delete").click()
    await expect(stage.page.get_by_role("button", name="Undo")).to_be_visible()


@state
async def disconnected(stage: Stage) -> None:
    """A banner says so, and what was sent meanwhile waits."""
    await stage.open(await stage.chat("Tides", texts.TIDES, texts.SHORT_ANSWER, usage=USAGE))
    await stage.cut()
    await stage.page.get_by_role("textbox", name="Message").fill("And at Sandholm?")
    await stage.page.get_by_role("button", name="Send").click()
    await expect(stage.page.locator(".question.unsent .waiting")).to_be_visible()
    await expect(stage.page.get_by_text("Reconnecting…")).to_be_visible()


@state
async def closed_by_an_admin(stage: Stage) -> None:
    chat = await stage.chat("Tides", texts.TIDES, texts.SHORT_ANSWER, usage=USAGE)
    await stage.open(chat)
    async with Http(stage.server, admin_token(stage.server)) as admin:
        await admin.post(f"/v1/admin/sessions/{chat}/evict", {"reason": "maintenance"})
    await expect(stage.page.get_by_text("An administrator closed this chat")).to_be_visible()


@state
async def signed_out(stage: Stage) -> None:
    await stage.page.context.clear_cookies()
    await stage.page.goto(stage.server.url)
    await expect(stage.page.get_by_role("heading", name="You are not signed in")).to_be_visible()


@state
async def login_link(stage: Stage) -> None:
    async with Http(stage.server, admin_token(stage.server)) as admin:
        user = (await admin.post("/v1/admin/users", {"name": "Grace"})).json()
        code = (await admin.post(f"/v1/admin/users/{user['id']}/login-codes")).json()
    await stage.page.goto(stage.server.url + code["path"])
    await expect(stage.page.get_by_role("button", name="Log in as Grace")).to_be_visible()


@state
async def used_login_link(stage: Stage) -> None:
    await stage.page.context.clear_cookies()
    await stage.page.goto(stage.server.url + "/login?code=used")
    await expect(stage.page.get_by_text("This login link does not work")).to_be_visible()


@state
async def shared_page(stage: Stage) -> None:
    chat = await stage.chat("Tides", texts.TIDES, texts.MARKDOWN)
    async with Http(stage.server) as http:
        link = (await http.post(f"/v1/sessions/{chat}/share")).json()
    await stage.page.goto(stage.server.url + link["path"])
    await expect(stage.page.locator("article")).to_have_count(2)
