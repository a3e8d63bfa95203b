"""Each view and state of the pages in real Chromium keeps the rules of axe-core."""

from typing import Literal

import pytest
from playwright.async_api import Browser, Page

from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as pytestmark
from tests.end_to_end.looks.admin_states import ADMIN_STATES
from tests.end_to_end.looks.axe import Unavailable, axe_source
from tests.end_to_end.looks.chat_states import CHAT_STATES
from tests.end_to_end.looks.manage.states import MANAGE_STATES
from tests.end_to_end.looks.stage import WIDTHS, staged
from tests.end_to_end.looks.tool_states import TOOL_STATES
from tests.end_to_end.site.harness import Server

SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
STATES = CHAT_STATES | TOOL_STATES | ADMIN_STATES | MANAGE_STATES
# `target-size` is of WCAG 2.2, which axe-core leaves out by default. Three exceptions:
# - the headings of an answer are its author's, who may begin with the second level;
# - while a menu is open, nothing that it covers can be pressed: a click there closes it;
# - links of the console's rail that are scrolled out of sight on a phone lead to other tabs, and to
#   nothing of this page, as skip links would.
RUN = """async () => {
    const { violations } = await axe.run(document, {
        elementRef: true,
        resultTypes: ["violations"],
        rules: { "target-size": { enabled: true } },
    });
    const menu = document.querySelector(".menu:popover-open");
    const isExcepted = (id, element) =>
        (id === "heading-order" && element.closest(".prose")) ||
        (id === "skip-link" && element.closest(".rail")) ||
        (id === "target-size" && menu && !menu.contains(element));
    return violations.flatMap(({ id, nodes }) =>
        nodes
            .filter(({ element }) => !isExcepted(id, element))
            .map(({ target, failureSummary }) => `${id}: ${target} ${failureSummary}`));
}"""

# The fading at the top of the chat would keep axe-core from seeing what any text below stands on.
UNCOVERED = ".stage::before { content: none !important; }"


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return axe_source()
    except Unavailable as reason:  # axe-core is fetched: a machine without a network has none
        pytest.skip(str(reason))


async def violations(page: Page, axe: str) -> list[str]:
    """In light and in dark."""
    await page.add_style_tag(content=UNCOVERED)
    await page.evaluate(axe)
    found: list[str] = []
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        found += [f"{scheme}: {each}" for each in await page.evaluate(RUN)]
    return found


async def test_the_empty_chat_keeps_the_rules_and_a_fault_would_be_found(
    browser: Browser, server: Server, axe: str
) -> None:
    async with staged(browser, server, "wide") as stage:
        await CHAT_STATES["empty"](stage)
        assert await violations(stage.page, axe) == []
        button = stage.page.get_by_role("button", name="Settings of this chat")
        names = ("aria-label", "title")
        await button.evaluate("(it, names) => names.map((name) => it.removeAttribute(name))", names)
        await stage.page.locator(".chips button").first.evaluate("it => (it.style.color = '#999')")
        found = " ".join(await violations(stage.page, axe))
        assert "light: button-name" in found and "dark: button-name" in found
        assert "light: color-contrast" in found


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", STATES)
async def test_no_state_of_a_page_breaks_a_rule(
    browser: Browser, server: Server, axe: str, name: str, width: str
) -> None:
    async with staged(browser, server, width) as stage:
        await STATES[name](stage)
        assert await violations(stage.page, axe) == []
