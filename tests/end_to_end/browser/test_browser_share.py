"""The page of a share link in real Chromium: what strangers see, and that no text does harm."""

from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.end_to_end.browser.rendering.test_browser_markdown import ALLOWED, ATTACKS, PLACES
from tests.end_to_end.browser.test_browser import answers
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as pytestmark
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.site.harness import Server

RICH = (
    "# Tides\n\n| moon | sea |\n|---|--:|\n| new | high |\n\n"
    "```js\nconst tide = 1;\n```\n\n- ebb\n- flood\n\nSo $h^2$."
)
PLAIN = ("Why?\n```py\nprint(1)\n```", RICH)


async def shared(server: Server, *texts: str, title: str = "Tides") -> str:
    """The address of a chat of these texts, in turns of a user and a model."""
    messages: list[dict[str, Any]] = [
        {
            "id": str(place),
            "role": ("user", "assistant")[place % 2],
            "content": [{"type": "text", "text": text}],
            **({"parent_id": str(place - 1)} if place else {}),
        }
        for place, text in enumerate(texts)
    ]
    document = {
        "format": "parley.session",
        "version": 1,
        "session": {"title": title, "settings": {"system": "Nobody sees this."}},
        "messages": messages,
    }
    async with Http(server) as http:
        session = (await http.post("/v1/sessions/import", document)).json()["id"]
        made = await http.post(f"/v1/sessions/{session}/share")
    return f"{server.url}{made.json()['path']}"


async def opened(context: BrowserContext, address: str) -> Page:
    """The page, once all of it is drawn."""
    page = await context.new_page()
    await page.goto(address)
    await expect(page.locator("article").first).to_be_attached()
    await expect(page.locator(".source")).to_have_count(0)
    return page


async def test_a_stranger_sees_a_shared_chat_as_its_owner_does(
    browser: Browser, server: Server
) -> None:
    context = await browser.new_context()
    page = await opened(context, await shared(server, *PLAIN))
    await expect(page).to_have_title("Tides · Parley")
    await expect(page.locator("h1")).to_have_text("Tides")
    await expect(page.locator("time")).to_be_visible()
    await expect(page.locator(".bubble .code code")).to_have_text("print(1)\n")
    answer = page.get_by_role("article", name="Answer")
    await expect(answer.get_by_role("heading", name="Tides")).to_be_visible()
    await expect(answer.get_by_role("cell", name="high")).to_be_visible()
    await expect(answer.locator("li")).to_have_text(["ebb", "flood"])
    await expect(answer.locator(".hl-keyword")).to_have_text("const")
    await expect(answer.locator(".katex")).to_be_visible()
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    await answer.get_by_role("button", name="Copy code").click()
    assert await page.evaluate("navigator.clipboard.readText()") == "const tide = 1;\n"
    await page.get_by_role("link", name="Continue this chat in Parley").click()
    await expect(page.get_by_text("parley login")).to_be_visible()
    await context.close()


@pytest.mark.slow
async def test_a_reader_who_is_signed_in_continues_a_shared_chat_as_one_of_their_own(
    context: BrowserContext, server: Server
) -> None:
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = await opened(context, await shared(server, *PLAIN))
    assert [url for url in asked if "/v1/" in url] == []  # not even who is signed in
    await page.get_by_role("link", name="Continue this chat in Parley").click()
    await page.wait_for_url(f"{server.url}/#ses_*")
    session = page.url.partition("#")[2]
    await expect(answers(page)).to_have_count(2)
    await expect(page.locator(".top h1")).to_have_text("Tides")
    stored = server.get_json(f"/v1/sessions/{session}/messages")["messages"]
    assert [message["content"][0]["text"] for message in stored] == list(PLAIN)
    assert server.get_json(f"/v1/sessions/{session}")["settings"] == {}


@pytest.mark.slow
async def test_no_payload_in_a_shared_chat_runs_or_asks_for_anything(
    browser: Browser, server: Server
) -> None:
    attacks = [
        place.format(attack.replace("\n", " ") if "|" in place else attack)
        for attack in (a.format("alert(document.domain)") for a in ATTACKS)
        for place in PLACES
    ]
    texts = [text for attack in attacks for text in (attack, attack)]
    title = "</title><script>alert(1)</script><img src=x onerror=alert(1)>"
    address = await shared(server, *texts, title=title)
    context = await browser.new_context()
    asked: list[str] = []
    harm: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    context.on("dialog", lambda dialog: harm.append(dialog.message))
    context.on("console", lambda m: harm.append(m.text) if m.type == "error" else None)
    page = await opened(context, address)
    await expect(page.locator("article")).to_have_count(len(texts))
    found: Any = await page.evaluate(
        """(allowed) => {
            const wrong = [];
            for (const element of document.querySelectorAll("main *")) {
                const names = element.getAttributeNames();
                const isBad = !allowed.includes(element.localName)
                    || names.some((name) => name.startsWith("on") || name === "src")
                    || /^(javascript|data|vbscript):/i.test(element.getAttribute("href") ?? "");
                if (isBad) wrong.push(element.outerHTML.slice(0, 200));
            }
            const touched = "main :is(a, summary, details, sub, u, kbd)";
            for (const element of document.querySelectorAll(touched)) {
                element.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
            }
            scrollTo(0, document.body.scrollHeight);
            return wrong;
        }""",
        sorted(ALLOWED | {"article", "h1", "time"}),
    )
    assert found == []
    await expect(page.locator("h1")).to_have_text(title)
    await page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
    )
    assert harm == []
    ours = (f"{server.url}/static/", address)
    assert [url for url in asked if not url.startswith(ours)] == []
    await context.close()


@pytest.mark.slow
async def test_without_scripts_a_shared_chat_is_readable_text(
    browser: Browser, server: Server
) -> None:
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(await shared(server, *PLAIN))
    for words in ("Tides", "| moon | sea |", "So $h^2$."):
        await expect(page.locator("main")).to_contain_text(words)
    await expect(page.locator(".prose.source code")).to_have_text("```js\nconst tide = 1;\n```")
    await expect(page.get_by_role("button", name="Print")).to_be_hidden()
    await context.close()


@pytest.mark.slow
async def test_a_long_shared_chat_goes_on_paper_as_a_whole_before_it_is_all_drawn(
    browser: Browser, server: Server
) -> None:
    address = await shared(server, *PLAIN * 100)
    context = await browser.new_context()
    # So slow that printing begins in the middle of the drawing.
    await context.add_init_script(
        "globalThis.setTimeout = () => 0;"
        "globalThis.print = () => dispatchEvent(new Event('beforeprint'))"
    )
    page = await context.new_page()
    await page.goto(address)
    await page.get_by_role("button", name="Print").click()
    await expect(page.locator(".source")).to_have_count(0)
    await expect(page.locator(".prose table")).to_have_count(100)
    await context.close()


@pytest.mark.slow
async def test_a_shared_chat_fits_a_phone(browser: Browser, server: Server) -> None:
    context = await browser.new_context(viewport={"width": 390, "height": 844})
    page = await opened(context, await shared(server, *PLAIN, "x" * 400, "y" * 400))
    wider = "element => element.scrollWidth > element.clientWidth"
    assert not await page.locator("html").evaluate(wider)
    await context.close()
