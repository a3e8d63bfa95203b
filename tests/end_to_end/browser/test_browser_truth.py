"""What is done stays done, in real Chromium: names, deletions, and the end of a login."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.end_to_end.browser.test_browser import answers, ask, login_url, signed_in, until
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import for_new_user
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_word

pytestmark = [*needs_browser, pytest.mark.slow]


async def test_a_name_that_is_being_typed_stays_typed(
    context: BrowserContext, server: Server
) -> None:
    async with Http(server) as http:
        session = (await http.new_session(title="Before"))["id"]
        page = await context.new_page()
        await page.goto(f"{server.url}/#{session}")
        await ask(page, oracle_word(1))
        await expect(answers(page).last).to_contain_text(oracle_word(5).strip())
        await page.locator(f'nav a[href="#{session}"]').dblclick()
        field = page.get_by_role("textbox", name="Name of the chat")
        await field.fill("Typed")
        await http.ask("PATCH", f"/v1/sessions/{session}", json={"title": "Meanwhile"})
        await expect(page.get_by_role("heading", name="Meanwhile")).to_be_visible()
        response = server.get_json(f"/v1/sessions/{session}")["active_response_id"]
        await http.post(f"/v1/responses/{response}/cancel")  # a click would leave the field
        await expect(answers(page).last).to_contain_text("Stopped")
        await expect(field).to_have_value("Typed")
        await field.press("Enter")
        await expect(page.get_by_role("heading", name="Typed")).to_be_visible()
        assert server.get_json(f"/v1/sessions/{session}")["title"] == "Typed"


async def reload(page: Page) -> None:
    await page.reload()


async def leave(page: Page) -> None:
    await page.goto("about:blank")


async def close(page: Page) -> None:
    await page.close(run_before_unload=True)


@pytest.mark.parametrize(
    "go", [reload, *(pytest.param(go, marks=pytest.mark.slow) for go in (leave, close))]
)
async def test_a_deleted_chat_stays_deleted(
    browser: Browser, server: Server, go: Callable[[Page], Awaitable[None]]
) -> None:
    server = await for_new_user(server)
    async with Http(server) as http, signed_in(browser, server) as context:
        doomed = (await http.new_session(title="Doomed"))["id"]
        await http.new_session(title="Kept")
        page = await context.new_page()
        await page.goto(f"{server.url}/#{doomed}")
        await delete(page, "Doomed")
        await go(page)
        again = await context.new_page()
        await again.goto(server.url)
        await expect(again.get_by_role("link", name="Kept")).to_be_visible()
        await expect(again.get_by_role("link", name="Doomed")).to_have_count(0)
        await until(gone(http, doomed))  # the browser may send it a moment after the page has gone


def gone(http: Http, session: str) -> Callable[[], Awaitable[bool]]:
    async def is_gone() -> bool:
        return (await http.get(f"/v1/sessions/{session}")).status_code == 404

    return is_gone


async def delete(page: Page, title: str) -> None:
    await page.get_by_role("link", name=title, exact=True).hover()
    await page.get_by_role("button", name=f"Options for {title}", exact=True).click()
    await page.get_by_role("menuitem", name="Delete").click()
    await expect(page.get_by_role("link", name=title, exact=True)).to_have_count(0)


NO_FAREWELL = "addEventListener('pagehide', (event) => event.stopImmediatePropagation())"


async def test_a_browser_that_dies_leaves_the_deletion_to_the_next_page(
    browser: Browser, server: Server
) -> None:
    server = await for_new_user(server)
    async with Http(server) as http, signed_in(browser, server) as context:
        doomed = (await http.new_session(title="Doomed"))["id"]
        page = await context.new_page()
        await page.add_init_script(NO_FAREWELL)
        await page.goto(f"{server.url}/#{doomed}")
        await delete(page, "Doomed")
        await page.close()
        assert (await http.get(f"/v1/sessions/{doomed}")).status_code == 200
        again = await context.new_page()
        await again.clock.install()
        await again.goto(server.url)
        await expect(again.get_by_role("textbox", name="Message")).to_be_enabled()
        await expect(again.get_by_role("link", name="Doomed")).to_have_count(0)
        await again.clock.fast_forward(11_000)
        await until(gone(http, doomed))


async def test_a_deletion_is_undone_by_the_keyboard(browser: Browser, server: Server) -> None:
    server = await for_new_user(server)
    async with Http(server) as http, signed_in(browser, server) as context:
        session = (await http.new_session(title="Precious"))["id"]
        page = await context.new_page()
        await page.goto(f"{server.url}/#{session}")
        await delete(page, "Precious")
        await page.keyboard.press("Control+z")
        await expect(page.get_by_role("heading", name="Precious")).to_be_visible()
        await expect(page.locator(".toast")).to_have_count(0)
        await page.reload()
        await expect(page.get_by_role("heading", name="Precious")).to_be_visible()


async def test_an_address_that_was_never_a_chat_is_no_deleted_one(
    context: BrowserContext, server: Server
) -> None:
    page = await context.new_page()
    await page.goto(f"{server.url}/#ses_{'A' * 22}")
    await expect(page.get_by_text("There is no such chat")).to_be_visible()


async def log_in_by_link(browser: Browser, server: Server) -> Page:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(login_url(server))
    await page.wait_for_url(server.url + "/")
    await expect(page.locator("button.account")).to_be_visible()
    return page


async def sign_out(page: Page, item: str) -> None:
    await page.locator("button.account").click()
    await page.get_by_role("menuitem", name=item, exact=True).click()
    await expect(page.get_by_text("You are not signed in")).to_be_visible()


async def test_signing_out_ends_this_login_and_leaves_nothing_in_the_browser(
    browser: Browser, server: Server
) -> None:
    here, elsewhere = [await log_in_by_link(browser, server) for _ in range(2)]
    await expect(here.locator("button.account")).to_contain_text("local")
    await here.get_by_role("textbox", name="Message").fill("a secret draft")
    await sign_out(here, "Sign out")
    kept = await here.evaluate("Object.keys(localStorage).filter((n) => n.startsWith('parley.'))")
    assert kept == []
    assert await here.context.cookies() == []
    await ask(elsewhere, oracle_word(1))
    await expect(answers(elsewhere).last).to_contain_text(oracle_word(5).strip())
    await elsewhere.get_by_role("button", name="Stop", exact=True).click()
    for page in (here, elsewhere):
        await page.context.close()


async def test_a_chat_deleted_before_signing_out_stays_deleted(
    browser: Browser, server: Server
) -> None:
    server = await for_new_user(server)
    async with Http(server) as http:
        doomed = (await http.new_session(title="Doomed"))["id"]
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(login_url(server))
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("link", name="Doomed")).to_be_visible()
        await delete(page, "Doomed")
        await sign_out(page, "Sign out")
        assert (await http.get(f"/v1/sessions/{doomed}")).status_code == 404
        await context.close()


async def test_signing_out_everywhere_ends_every_login(browser: Browser, server: Server) -> None:
    server = await for_new_user(server)
    pages = []
    for _ in range(2):
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(login_url(server))
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator("button.account")).to_be_visible()
        pages.append(page)
    await sign_out(pages[0], "Sign out everywhere")
    await expect(pages[1].get_by_text("You are not signed in")).to_be_visible()
    async with Http(server) as http:  # a token still works
        assert (await http.get("/v1/sessions")).status_code == 200
    for page in pages:
        await page.context.close()


async def test_another_user_of_the_browser_finds_no_draft_and_sends_nothing(
    browser: Browser, server: Server
) -> None:
    async with signed_in(browser, server) as context:
        page = await context.new_page()
        await page.goto(server.url)
        await expect(page.locator("button.account")).to_be_visible()
        draft = page.get_by_role("textbox", name="Message")
        await draft.fill("a secret draft")
        other = await for_new_user(server)
        async with signed_in(browser, other) as theirs:
            await context.clear_cookies()
            await context.add_cookies(
                [
                    {"name": cookie["name"], "value": cookie["value"], "url": server.url}
                    for cookie in await theirs.cookies()
                ]
            )
            await page.reload()
            await expect(draft).to_have_value("")
            await expect(page.locator("button.account")).not_to_contain_text("local")
