"""The page in Firefox and in WebKit, as people have them: what is done each day works there too."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.supervisor.supervisor import request_login_url
from tests.end_to_end.browsers import firefox, webkit
from tests.end_to_end.browsers.tab import Tab
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import for_new_user
from tests.end_to_end.looks.texts import CODE, FORMULA
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

pytestmark = pytest.mark.slow

SHORT = {"temperature": 0, "max_output_tokens": 8}
LONG = {"temperature": 0, "max_output_tokens": 3000}
LAST = "(document.querySelector('.answer:last-child .prose')?.textContent ?? '')"
# No machine need have these browsers; the reason printed names the package of a missing one.
BROWSERS = [
    pytest.param(
        browser,
        id=name,
        marks=pytest.mark.skipif(module.MISSING is not None, reason=str(module.MISSING)),
    )
    for name, module, browser in (
        ("firefox", firefox, firefox.firefox),
        ("webkit", webkit, webkit.webkit),
    )
]


@pytest.fixture
async def user(server: Server) -> Server:
    """The server for somebody who has no chats yet."""
    return await for_new_user(server)


@pytest.fixture(params=BROWSERS)
async def tab(request: pytest.FixtureRequest, user: Server, tmp_path: Path) -> AsyncIterator[Tab]:
    """A browser whose user has logged in by a link."""
    async with request.param(tmp_path) as tab:
        await tab.open(request_login_url(user.url, user.token))
        await tab.click("Log in as Ada")
        await tab.until("() => document.querySelector('.chips button') !== null")
        yield tab


async def chat(tab: Tab, user: Server, **settings: Any) -> str:
    """Open a new chat with these settings."""
    async with Http(user) as http:
        session = str((await http.new_session(title="Tides", settings=settings))["id"])
    await tab.open(f"{user.url}/#{session}")
    await tab.until("() => document.querySelector('h1')?.textContent === 'Tides'")
    return session


async def ask(tab: Tab, text: str) -> None:
    await tab.click("Message")
    await tab.write(text)
    await tab.press("Enter")


async def answered(tab: Tab, text: str) -> None:
    """Wait for the end of the last answer, which is this."""
    await tab.until(f"(text) => {LAST}.trim() === text", text.strip())
    await tab.until(
        "() => document.querySelector('.answer:last-child .actions')?.checkVisibility()"
    )


async def test_an_answer_streams_goes_on_after_a_reload_and_is_stopped(
    tab: Tab, user: Server
) -> None:
    session = await chat(tab, user, **LONG)
    await ask(tab, oracle_word(0))
    for last in (5, 20):
        await tab.until(f"(word) => {LAST}.includes(word)", oracle_word(last).strip())
    await tab.reload()
    await tab.until(
        f"(word) => {LAST}.includes(word)",
        oracle_word(60).strip(),
    )
    await tab.run(
        f"() => addEventListener('click', () => (globalThis.seen = {LAST}), {{ capture: true }})"
    )
    await tab.click("Stop")
    await tab.shows("Stopped")
    seen, shown = await tab.run(f"() => [globalThis.seen, {LAST}]")
    messages = user.get_json(f"/v1/sessions/{session}/messages")["messages"]
    stored = messages[-1]["content"][0]["text"]
    assert shown.strip() == stored.strip()
    assert shown.startswith(seen.strip()) and oracle_answer(0, 3000).startswith(stored)
    await tab.has("Send")


async def test_a_question_is_edited_and_arrows_lead_between_the_branches(
    tab: Tab, user: Server
) -> None:
    await chat(tab, user, **SHORT)
    await ask(tab, oracle_word(3))
    await answered(tab, oracle_answer(3, 8))
    await tab.hover(".question")
    await tab.click("Edit message")
    await tab.press("Control+a")
    await tab.write(oracle_word(70))
    await tab.press("Enter")
    await answered(tab, oracle_answer(70, 8))
    await tab.shows("2/2")
    await tab.click("Previous version")
    await answered(tab, oracle_answer(3, 8))
    await tab.click("Next version")
    await answered(tab, oracle_answer(70, 8))


async def test_a_chat_is_renamed_deleted_and_back_by_undo(tab: Tab, user: Server) -> None:
    await chat(tab, user)
    await tab.click("Options for Tides")
    await tab.click("Rename")
    await tab.fill("Name of the chat", "Low tides")
    await tab.press("Enter")
    await tab.has("Options for Low tides")
    await tab.click("Options for Low tides")
    await tab.click("Delete")
    await tab.has("Options for Low tides", 0)
    await tab.click("Undo")
    await tab.has("Options for Low tides")
    assert [it["title"] for it in user.get_json("/v1/sessions")["sessions"]] == ["Low tides"]


async def test_formulas_are_drawn_code_is_coloured_and_copied(tab: Tab, user: Server) -> None:
    said = [
        (f"{n}", ("user", "assistant")[n], text) for n, text in enumerate(("?", FORMULA + CODE))
    ]
    messages = [
        {"id": n, "role": role, "content": [{"type": "text", "text": text}]}
        for n, role, text in said
    ]
    messages[1]["parent_id"] = "0"
    async with Http(user) as http:
        document = {"format": "parley.session", "version": 1, "messages": messages}
        imported = (await http.post("/v1/sessions/import", document)).json()
    await tab.open(f"{user.url}/#{imported['id']}")
    await tab.until("() => document.querySelectorAll('.katex').length === 4")
    await tab.until("() => document.fonts.check('16px KaTeX_Math')")
    await tab.until("() => document.querySelector('.hl-keyword') !== null")
    await tab.click("Copy code", 0)
    await tab.shows("Copied")
    await tab.click("Message")
    await tab.press("Control+v")
    code = CODE.split("```")[1].removeprefix("python\n").strip()
    await tab.until(
        "(code) => document.querySelector('.composer textarea').value.trim() === code", code
    )


async def test_shortcuts_and_the_palette_work_by_keyboard(tab: Tab, user: Server) -> None:
    for title in ("Boats", "Tides"):
        async with Http(user) as http:
            await http.new_session(title=title)
    await tab.reload()
    await tab.has("Options for Boats", 0)  # seen only with the mouse
    for keys, heading in (
        ("Control+/", "Keyboard shortcuts"),
        ("Control+,", "Settings of new chats"),
    ):
        await tab.click("Message")
        await tab.press(keys)
        await tab.shows(heading)
        await tab.press("Escape")
        await tab.hides(heading)
    await tab.press("Control+k")
    await tab.until("() => document.activeElement.ariaLabel === 'Search chats and actions'")
    await tab.write("boat")
    await tab.until("() => document.querySelector('[role=option]')?.textContent === 'Boats'")
    await tab.press("Enter")
    await tab.until("() => document.querySelector('h1')?.textContent === 'Boats'")
