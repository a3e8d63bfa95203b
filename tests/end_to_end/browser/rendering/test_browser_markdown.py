"""Markdown in real Chromium: a growing text becomes what the whole one does, cheaply, safely."""

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.end_to_end.browser.rendering.test_browser_text import show
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.site.harness import Server

pytestmark = [*needs_browser, pytest.mark.slow]

# Streams a text into a bubble of its own, cut at these places, and gives the bubble.
STREAM = """async (text, cuts) => {
    const { Markdown } = window.parley;
    const body = document.createElement("div");
    body.className = "prose";
    document.querySelector(".log").append(body);
    const markdown = new Markdown(body);
    for (const cut of cuts) markdown.update(text.slice(0, cut), false);
    markdown.update(text, true);
    return body;
}"""
SHAPES = (
    "Words, **bold**, _soft_, `code`, [a link](https://example.org/a_b).\n\n",
    "# A heading\n\n",
    "> quoted\n> twice\n\n",
    "1. one\n2. two\n   - inner\n   - more\n3. three\n\n",
    "- a\n\n- b stands apart\n- c\n\n",
    "```py\nprint('**no**')\n\n# still code\n```\n\n",
    "| a | b |\n|---|--:|\n| 1 | `x` |\n| **2** | y<br>z |\n\n",
    "A formula \\(a_{1}+b_{2}\\), $x^2$, and $5.\n\n",
    "$$\n\\frac{a}{b}\n\n+ c\n$$\n\n",
    "<details>\n<summary>More</summary>\n\nHidden *words*\n\n</details>\n\n",
    "H<sub>2</sub>O <!-- gone --> <b>bold</b>\n\n",
    "- [ ] open\n- [x] done\n\n",
    "---\n\n",
)


def long_table(num_rows: int) -> str:
    rows = [f"| {row} | name **{row}** | `value {row}` |\n" for row in range(num_rows)]
    return "| number | name | value |\n|--:|---|---|\n" + "".join(rows)


def long_list(num_items: int, mark: str = "-") -> str:
    return "".join(f"{mark} item {item} with _soft_ words\n" for item in range(num_items))


@pytest.fixture
async def page(context: BrowserContext, server: Server) -> AsyncIterator[Page]:
    page = await context.new_page()
    await page.goto(server.url)
    await expect(page.locator(".log")).to_be_attached()
    yield page


async def becomes_the_whole(page: Page, text: str, cuts: list[int]) -> Any:
    """True, or where both bubbles part: that of the growing text, and that of the whole one."""
    return await page.evaluate(
        f"""async ([text, cuts]) => {{
            const stream = {STREAM};
            const bodies = [await stream(text, cuts), await stream(text, [])];
            for (const body of bodies) {{
                body.querySelector(".tail:empty").remove(); // the place of the next word
                const coloured = body.querySelectorAll("pre > code"); // by and by
                for (const code of coloured) code.textContent = code.textContent;
                const bare = body.querySelectorAll('[class=""]');
                for (const element of bare) element.removeAttribute("class");
                body.remove();
            }}
            if (bodies[0].isEqualNode(bodies[1])) return true;
            const [grown, whole] = bodies.map((body) => body.innerHTML);
            let place = 0;
            while (place < grown.length && grown[place] === whole[place]) place += 1;
            const start = Math.max(0, place - 150);
            return [grown, whole].map((markup) => markup.slice(start, place + 150));
        }}""",
        [text, cuts],
    )


async def load_katex(page: Page) -> None:
    """From then on a formula is drawn at once, so that two bubbles can be compared."""
    await page.evaluate(f"async (text) => {{ await ({STREAM})(text, []); }}", "\\(a\\)")
    await expect(page.locator(".katex")).to_have_count(1)
    await page.evaluate("document.querySelector('.katex').closest('.prose').remove()")


async def test_a_growing_text_becomes_what_the_whole_text_becomes(page: Page) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    await load_katex(page)
    for _ in range(60):
        text = "".join(dice.choices(SHAPES, k=dice.randrange(1, 7))).rstrip("\n")
        size = dice.choice((1, 3, 8, 40))
        cuts = list(range(size, len(text), size))
        assert await becomes_the_whole(page, text, cuts) is True, text


async def test_a_text_that_goes_on_after_its_end_goes_on_in_its_last_block(page: Page) -> None:
    same = await page.evaluate(
        f"""async ([text, cuts]) => {{
            const {{ Markdown }} = window.parley;
            const body = document.createElement("div");
            const markdown = new Markdown(body);
            for (const cut of cuts) markdown.update(text.slice(0, cut), true);
            markdown.update(text, true);
            const whole = await ({STREAM})(text, []);
            for (const one of [body, whole]) one.querySelector(".tail:empty").remove();
            return body.innerHTML === whole.innerHTML;
        }}""",
        ["Code:\n\n```py\nprint(1)\nprint(2)\n```\n\nand words\n", [16, 24, 50]],
    )
    assert same is True


LONG = {
    "table": long_table(60),
    "list": long_list(60),
    "numbers": long_list(60, "1."),
    "tasks": long_list(30, "- [ ]") + long_list(30, "- [x]"),
    "tasks apart": long_list(20, "- [ ]") + "\n" + long_list(20, "- [x]"),
    "apart": long_list(30) + "\n" + long_list(30),
    "nested": long_list(30) + "  - inner\n  - inner\n" + long_list(30),
    "another list": long_list(40) + "* another list\n* begins\n",
    "a table, then words": long_table(40) + "\nWords after it.\n\n" + long_list(20),
    "a list, then words": long_list(40) + "\nWords after it.\n",
}


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 7, 50])
async def test_a_long_block_becomes_what_it_becomes_as_a_whole(page: Page, size: int) -> None:
    for name, text in LONG.items():
        cuts = list(range(size, len(text), size))
        assert await becomes_the_whole(page, text, cuts) is True, name


async def test_a_task_has_a_box_in_the_place_of_its_bullet_and_other_items_keep_theirs(
    page: Page,
) -> None:
    text = long_list(15, "- [ ]") + long_list(15, "- [x]") + "- no task\n\nWords.\n\n1. [x] first\n"
    found = await page.evaluate(
        f"""async ([text, cuts]) => {{
            const body = await ({STREAM})(text, cuts);
            return [...body.querySelectorAll("li")].map((item) =>
                [getComputedStyle(item).listStyleType, item.querySelector(".box")?.textContent]);
        }}""",
        [text, list(range(1, len(text), 5))],
    )
    tasks = [["none", "☐ "]] * 15 + [["none", "☑ "]] * 15
    assert found == [*tasks, ["disc", None], ["decimal", "☑ "]]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(long_table(800), marks=pytest.mark.slow, id="table"),
        pytest.param(long_list(800), id="list"),
    ],
)
async def test_finished_rows_and_items_of_an_open_block_are_never_drawn_again(
    page: Page, text: str
) -> None:
    """The longest frame of an open block of 800 rows took more than a second as a whole."""
    found = await page.evaluate(
        """async (text) => {
            const { Markdown } = window.parley;
            const body = document.createElement("div");
            document.querySelector(".log").append(body);
            const markdown = new Markdown(body);
            const start = Math.floor(text.length / 2);
            markdown.update(text.slice(0, start), false);
            const early = [...body.querySelectorAll("tbody tr, li")].slice(0, 300);
            let touched = 0;
            const watcher = new MutationObserver((records) => (touched += records.length));
            const changes = { childList: true, characterData: true, attributes: true };
            for (const row of early) watcher.observe(row, { subtree: true, ...changes });
            const times = [];
            for (let cut = start; cut <= text.length; cut += 9) {
                const began = performance.now();
                markdown.update(text.slice(0, cut), false);
                times.push(performance.now() - began);
            }
            await new Promise((resolve) => setTimeout(resolve));
            times.sort((a, b) => a - b);
            return {
                touched,
                early: early.length,
                median: times[times.length >> 1],
                p99: times[Math.floor(times.length * 0.99)],
                most: times.at(-1),
            };
        }""",
        text,
    )
    print(found)
    assert found["early"] == 300 and found["touched"] == 0


async def test_formulas_tags_and_fences_are_drawn_and_damaged_by_nothing(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    answer = (
        "Euler: \\( e^{i\\pi}+1=0 \\), \\[ \\int e^{-x^2}\\,dx \\] and $a_1$.\n\n"
        "$$\n\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}\n$$\n\n"
        "Broken: \\(\\frac{1\\). H<sub>2</sub>O<br>It costs $5 or $6."
    )
    await show(page, server, answer)
    await expect(page.locator(".katex")).to_have_count(4)
    sources = page.locator(".katex annotation")
    assert [text.strip() for text in await sources.all_text_contents()] == [
        "e^{i\\pi}+1=0",
        "\\int e^{-x^2}\\,dx",
        "a_1",
        "\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}",
    ]
    await expect(page.locator(".prose code")).to_have_text("\\frac{1")
    await expect(page.locator(".prose sub")).to_have_text("2")
    await expect(page.locator(".prose").last).to_contain_text("It costs $5 or $6.")


ATTACKS = (
    "<script>{}</script>",
    "<img src=x onerror={}>",
    '<img src="https://evil.example/i.png">',
    "<svg onload={}>",
    "<svg><script>{}</script></svg>",
    "<math><mtext><script>{}</script></mtext></math>",
    "<math><maction actiontype=statusline xlink:href=javascript:{}>x</maction></math>",
    "<iframe src=javascript:{}></iframe>",
    '<iframe srcdoc="<script>{}</script>"></iframe>',
    "<a href=javascript:{}>x</a>",
    "[x](javascript:{})",
    "[x](JaVaScRiPt:{})",
    "[x](data:text/html,<script>{}</script>)",
    "[x](vbscript:{})",
    "![x](javascript:{})",
    "![x](https://evil.example/i.png)",
    '[x](https://example.org "onmouseover={}")',
    "<details open ontoggle={}><summary>x</summary></details>",
    "<details ontoggle={}>x</details>",
    "<sub onclick={}>x</sub>",
    "<mark style=background:url(https://evil.example/i.png)>x</mark>",
    "<br onload={}>",
    "<kbd/onclick={}>x",
    "<u\tonclick={}>x",
    "<style>@import 'https://evil.example/s.css';</style>",
    '<link rel=stylesheet href="https://evil.example/s.css">',
    '<meta http-equiv=refresh content="0;url=javascript:{}">',
    "<base href=https://evil.example/>",
    "<form action=javascript:{}><input type=submit autofocus></form>",
    "<input autofocus onfocus={}>",
    "<video src=x onerror={}></video>",
    "<object data=javascript:{}></object>",
    "<embed src=javascript:{}>",
    '<noscript><p title="</noscript><img src=x onerror={}>">',
    "<template><img src=x onerror={}></template>",
    "<textarea autofocus onfocus={}>",
    "<select autofocus onfocus={}>",
    "<!-- --!><img src=x onerror={}> -->",
    "<sub<img src=x onerror={}>>",
    "<details><summary><img src=x onerror={}></summary></details>",
    "\\(\\href{{javascript:{}}}{{x}}\\)",
    "\\(\\url{{javascript:{}}}\\)",
    "\\(\\htmlStyle{{background:url(https://evil.example/i.png)}}{{x}}\\)",
    "\\(\\htmlData{{x=y, onclick={}}}{{x}}\\)",
    "\\(\\includegraphics{{https://evil.example/i.png}}\\)",
    "\\(<img src=x onerror={}>\\)",
    "$$\\text{{<img src=x onerror={}>}}$$",
    "\\[\\def\\x{{\\x\\x}}\\x\\]",
    "$\\rule{{1e9em}}{{1e9em}}$",
    '```"><img src=x onerror={}>\ncode\n```',
    "```js\n</code></pre><script>{}</script>\n```",
    "`</code><script>{}</script>`",
)
PLACES = ("{}", "| a | b |\n|---|---|\n| {} | x |", "- one\n- {}\n- three", "> {}")
ALLOWED = set(
    "a blockquote br code del details div em figcaption figure h2 h3 h4 h5 h6 hr kbd li mark ol p"
    " pre span strong sub summary sup table tbody td th thead tr u ul button"
    # what KaTeX draws
    " math semantics annotation mrow mi mo mn mtext msup msub msubsup mfrac msqrt mspace mstyle"
    " mover munder munderover mtable mtr mtd mpadded menclose mphantom merror mroot svg"
    " path line".split()
)


@pytest.mark.slow
async def test_no_payload_runs_or_asks_for_anything_however_it_is_cut(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    await page.evaluate(
        "globalThis.reports = []; document.addEventListener("
        "'securitypolicyviolation', (event) => reports.push(event.blockedURI))"
    )
    await load_katex(page)
    asked.clear()
    attacks = [
        place.format(attack.replace("\n", " ") if "|" in place else attack)
        for attack in (a.format("alert(document.domain)") for a in ATTACKS)
        for place in PLACES
    ]
    assert len(attacks) > 150
    found: Any = await page.evaluate(
        f"""async ([attacks, allowed]) => {{
            const stream = {STREAM};
            const wrong = [];
            for (const text of attacks) {{
                const cuts = Array.from({{ length: text.length }}, (_, cut) => cut);
                const body = await stream(text, cuts);
                for (const element of body.querySelectorAll("*")) {{
                    const names = element.getAttributeNames();
                    const isBad = !allowed.includes(element.localName)
                        || names.some((name) => name.startsWith("on") || name === "src")
                        || /^(javascript|data|vbscript):/i.test(element.getAttribute("href") ?? "");
                    if (isBad) wrong.push([text, element.outerHTML.slice(0, 200)]);
                }}
                for (const element of body.querySelectorAll("a, summary, details, sub, u, kbd")) {{
                    element.dispatchEvent(new MouseEvent("mouseover", {{ bubbles: true }}));
                }}
                body.remove();
            }}
            return wrong;
        }}""",
        [attacks, sorted(ALLOWED)],
    )
    assert found == []
    assert dialogs == []
    fonts = "/static/vendor/katex-"
    assert [url for url in asked if fonts not in url] == []
    assert json.loads(await page.evaluate("JSON.stringify(reports)")) == []
