"""The cards of tools that a model calls, in real Chromium: how they go, and what is in them."""

import json
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.end_to_end.browser.rendering.test_browser_markdown import ATTACKS
from tests.end_to_end.browser.rendering.test_browser_text import style
from tests.end_to_end.browser.test_browser import answers, ask
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.browser.tools.injected import Injected, answering
from tests.end_to_end.browser.tools.scripts import (
    ARGUMENTS,
    BOTH,
    WEATHER,
    give_back,
    new_chat,
)
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.site.harness import Server

pytestmark = [*needs_browser, pytest.mark.slow]

# The places of the first text and of the first card, from each frame in which there are both.
WATCH = """() => {
    window.places = [];
    const look = () => {
        const prose = document.querySelector(".answer .prose");
        const head = document.querySelector(".tool-head");
        if (prose && head) window.places.push([prose, head].map((one) => {
            const { top, height } = one.getBoundingClientRect();
            return [top, height].map(Math.round).join("+");
        }).join(" "));
        requestAnimationFrame(look);
    };
    look();
}"""


def card(page: Page, name: str) -> Locator:
    return page.get_by_role("group", name=f"Tool {name}", exact=True)


async def opened(page: Page, server: Server, title: str) -> str:
    session = await new_chat(server, title)
    await page.goto(f"{server.url}/#{session}")
    await expect(page.get_by_role("heading", name=title)).to_be_visible()
    return session


async def test_a_call_is_written_waits_and_is_done_below_the_words_before_it(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    session = await opened(page, server, "Weather")
    await page.evaluate(WATCH)
    await ask(page, WEATHER)
    weather = card(page, "weather")
    await expect(weather).to_contain_text("Being written")
    await expect(weather).to_contain_text("Waiting for its result")
    await expect(page.get_by_role("status").last).to_have_text("Waiting for the result of weather")
    assert len(set(await page.evaluate("window.places"))) == 1  # nothing has moved while it grew
    assert await page.locator(".answer-body > *").evaluate_all(
        "all => all.map(element => element.className.split(' ')[0])"
    ) == ["prose", "tools"]

    await give_back(server, session, ['{"sky": "rain", "id": 12345678901234567890}'])
    await expect(answers(page).last).to_contain_text("It rains in Brno.")
    await expect(weather).to_contain_text("Done")
    await expect(weather.locator(".tool-brief")).to_have_text(
        'city: "Brno", days: 3, id: 12345678901234567890'
    )
    assert await page.locator(".answer.step .figures").count() == 0  # the answer has them
    await page.reload()
    await expect(weather).to_contain_text("Done")
    await weather.locator("summary").focus()
    await page.keyboard.press("Enter")
    shown = weather.locator("pre")
    await expect(shown.first).to_have_text(json.dumps(json.loads(ARGUMENTS), indent=2))
    await expect(shown.last).to_contain_text('"id": 12345678901234567890')
    await page.keyboard.press("Tab")
    await expect(weather.get_by_role("button", name="Copy arguments")).to_be_focused()


async def test_calls_of_one_answer_share_a_frame_and_each_says_how_it_goes(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    session = await opened(page, server, "Both")
    await ask(page, BOTH)
    heads = page.locator(".tools .tool-head")
    await expect(heads).to_have_count(3)
    await expect(heads.nth(2)).to_contain_text("Not a valid call")
    await give_back(server, session, ["rain", "10:42"])
    await expect(answers(page).last).to_contain_text("It rains.")
    await expect(heads.nth(0)).to_contain_text("Done")
    await expect(heads.nth(1)).to_contain_text("Done")
    assert await page.locator(".tools").count() == 1
    await heads.nth(1).click()
    await expect(card(page, "clock")).to_contain_text("No arguments")


async def test_what_hides_in_a_name_or_in_arguments_is_shown_and_copied_as_it_was(
    context: BrowserContext, server: Server
) -> None:
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await context.new_page()
    output = "\x1b[31mred\x1b[0m \u202etxt.exe 👩\u200d💻"
    await imported(page, server, "a\u202eb\u200b", '{"to": "\u202egro.live"}', output)
    hidden = card(page, "a\\u202eb\\u200b")
    await expect(hidden.locator(".tool-brief")).to_have_text('to: "\\u202egro.live"')
    await hidden.locator("summary").click()
    await expect(hidden.locator("pre").first).to_have_text('{\n  "to": "\\u202egro.live"\n}')
    await expect(hidden.locator("pre").last).to_have_text("red \\u202etxt.exe 👩\u200d💻")
    await hidden.get_by_role("button", name="Copy result").click()
    await expect(page.get_by_role("status").last).to_have_text("Copied")
    assert await page.evaluate("navigator.clipboard.readText()") == output


async def test_a_long_output_is_cut_until_all_of_it_is_wanted(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await imported(page, server, "weather", "{}", "z" * 100_000)
    await card(page, "weather").locator("summary").click()
    shown = card(page, "weather").locator("pre").last
    assert await shown.evaluate("pre => pre.clientHeight") < 300
    assert await shown.evaluate("pre => pre.scrollWidth === pre.clientWidth")
    more = page.get_by_role("button", name="Show all of the result")
    await expect(more).to_have_attribute("aria-expanded", "false")
    await more.press("Enter")
    assert await shown.evaluate("pre => pre.clientHeight === pre.scrollHeight")
    await page.get_by_role("button", name="Show less of the result").press("Enter")
    assert await shown.evaluate("pre => pre.clientHeight") < 300


async def test_on_paper_a_card_is_a_line_and_an_opened_one_is_whole(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await imported(page, server, "weather", '{"city": "Brno"}', "rain\n" * 100)
    await page.emulate_media(media="print")
    weather = card(page, "weather")
    await expect(weather).to_contain_text("Done")
    await expect(weather.locator("summary")).to_be_visible()
    await weather.locator("summary").click()
    shown = weather.locator("pre").last
    await expect(shown).to_be_visible()
    assert await shown.evaluate("pre => pre.clientHeight === pre.scrollHeight")
    await expect(weather.locator("button:visible")).to_have_count(0)


async def stored(server: Server, name: str, arguments: str, output: str) -> str:
    """The id of a chat with one call, which was answered."""
    call = {"call_id": "c", "name": name, "arguments": arguments}
    parts: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Q"}]},
        {"role": "assistant", "content": [{"type": "text", "text": ""}], "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": output, "call_id": "c"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A"}]},
    ]
    for number, message in enumerate(parts):
        message |= {"id": str(number), **({"parent_id": str(number - 1)} if number else {})}
    document = {"format": "parley.session", "version": 1, "messages": parts}
    async with Http(server) as http:
        return str((await http.post("/v1/sessions/import", document)).json()["id"])


async def imported(page: Page, server: Server, name: str, arguments: str, output: str) -> None:
    """Shows such a chat."""
    await page.goto(f"{server.url}/#{await stored(server, name, arguments, output)}")
    await expect(answers(page).last).to_contain_text("A")


async def test_a_shared_chat_shows_its_calls_as_cards_and_without_scripts_as_text(
    context: BrowserContext, server: Server
) -> None:
    session = await stored(server, "weather", '{"city": "Brno"}', "rain")
    async with Http(server) as http:
        link = (await http.post(f"/v1/sessions/{session}/share")).json()
    page = await context.new_page()
    await page.goto(server.url + link["path"])
    weather = card(page, "weather")
    await expect(weather).to_contain_text("Done")
    await weather.locator("summary").press("Enter")
    await expect(weather.locator("pre").last).to_have_text("rain")
    plain = await context.new_page()  # the other one may still fetch what colours its code
    await plain.route("**/*.js", lambda it: it.fulfill(content_type="text/javascript", body=""))
    await plain.goto(server.url + link["path"])
    await expect(plain.locator(".calls")).to_have_text('weather{"city": "Brno"}rain')


async def test_nothing_in_a_card_is_markup(context: BrowserContext, server: Server) -> None:
    page, injected = await answering(context, server)
    harm: list[str] = []
    page.on("dialog", lambda dialog: harm.append(dialog.message))
    page.on("request", lambda request: harm.append(request.url))
    injected.call(1000, "x" * 100_000, arguments="{}", status="completed")
    await expect(card(page, "x" * 200 + "…")).to_be_visible()
    attacks = [attack.format("alert(document.domain)") for attack in ATTACKS]
    for number, attack in enumerate(attacks):
        injected.call(number, attack, arguments=json.dumps({attack: attack}), status="completed")
        injected.result(number, attack)
    cards = page.locator(".tool")
    await expect(cards).to_have_count(len(attacks) + 1)
    await expect(cards.last).to_contain_text("Done")
    await cards.locator("details").evaluate_all("folds => folds.forEach(fold => fold.open = true)")
    await expect(cards.locator("figure:visible")).to_have_count(2 * len(attacks))
    assert await cards.last.locator("pre").last.text_content() == attacks[-1]
    used = await page.locator(".tools *").evaluate_all(
        "all => [...new Set(all.map(element => element.localName))]"
    )
    plain = {"section", "p", "span", "code", "details", "summary", "figure", "figcaption", "pre"}
    assert set(used) <= plain | {"button", "div"}
    await page.keyboard.press("Escape")
    await expect(answers(page).last).to_contain_text("Stopped")
    ours = f"{server.url}/static/"  # what colours the arguments
    assert [one for one in harm if not one.startswith(ours)] == []


@pytest.mark.parametrize("status", ["in_progress", None])
async def test_what_works_turns_unless_motion_is_unwanted(
    context: BrowserContext, server: Server, status: str | None
) -> None:
    page, injected = await answering(context, server)
    injected.call(0, "weather", status="in_progress" if status is None else "completed")
    if status is not None:
        injected.run(0, status)
    mark = card(page, "weather").locator(".tool-mark")
    await expect(mark).to_be_visible()
    assert await style(mark, "animationName") == "turn"
    await page.emulate_media(reduced_motion="reduce")
    assert await style(mark, "animationName") == "none"
    await stop(page, injected)


async def stop(page: Page, injected: Injected) -> None:
    await page.keyboard.press("Escape")
    await expect(answers(page).last).to_contain_text("Stopped")
