"""Login links in real Chromium: your own works at once, a stranger's changes nothing unasked."""

import secrets
import time
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect
from redis import Redis

from server.supervisor.supervisor import request_login_url
from sessions.directory.credentials import digest_of
from tests.end_to_end.browser.test_browser import browser as browser
from tests.end_to_end.browser.test_browser import foreign_page as foreign_page
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import new_user
from tests.end_to_end.site.harness import Server

pytestmark = [*needs_browser, pytest.mark.slow]


async def cookies(context: BrowserContext) -> dict[str, str]:
    return {cookie["name"]: cookie["value"] for cookie in await context.cookies()}


def cookie_name(server: Server) -> str:
    return f"parley-{urlsplit(server.url).port}"


async def expect_chat(page: Page, server: Server) -> None:
    await page.wait_for_url(server.url + "/**")
    await expect(page.get_by_role("textbox", name="Message")).to_be_enabled()


async def invitation(server: Server, admin: Http, name: str) -> str:
    user = await new_user(admin, name=name)
    code = await admin.post(f"/v1/admin/users/{user['id']}/login-codes")
    return server.url + str(code.json()["path"])


async def test_the_printed_link_opens_the_chat_at_once_and_only_once(
    browser: Browser, two_workers: Server
) -> None:
    context = await browser.new_context()
    link = request_login_url(two_workers.url, two_workers.token)
    page = await context.new_page()
    await page.goto(link)
    await expect_chat(page, two_workers)
    assert set(await cookies(context)) == {cookie_name(two_workers)}
    again = await browser.new_context()
    used = await again.new_page()
    answer = await used.goto(link)
    assert answer is not None and answer.status == 401
    await expect(used.get_by_role("heading")).to_have_text("This login link does not work")
    assert await cookies(again) == {}


async def test_an_invitation_is_one_click_and_works_without_scripts(
    browser: Browser, two_workers: Server, admin: Http
) -> None:
    for has_scripts in (True, False):
        context = await browser.new_context(java_script_enabled=has_scripts)
        page = await context.new_page()
        await page.goto(await invitation(two_workers, admin, "Ada"))
        assert await cookies(context) == {}
        await page.get_by_role("button", name="Log in as Ada").click()
        await page.wait_for_url(two_workers.url + "/")
        assert set(await cookies(context)) == {cookie_name(two_workers)}


@pytest.mark.row("P2", "P6")
async def test_a_link_planted_by_somebody_else_replaces_nobody(
    browser: Browser, two_workers: Server, admin: Http, foreign_page: str
) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(request_login_url(two_workers.url, two_workers.token))
    await expect_chat(page, two_workers)
    before = await cookies(context)
    planted = await invitation(two_workers, admin, "Mallory")
    await page.goto(foreign_page)
    await page.evaluate(
        """(url) => new Promise((done) => {
            const image = new Image();
            image.onerror = () => done();
            image.src = url;
        })""",
        planted,
    )
    assert await cookies(context) == before
    await page.evaluate("(url) => { location = url; }", planted)
    await expect(page.get_by_role("heading")).to_have_text("Log in as Mallory instead?")
    await expect(page.get_by_text("logged in as local")).to_be_visible()
    assert await cookies(context) == before
    await page.get_by_role("link", name="Stay as you are").click()
    await expect_chat(page, two_workers)
    assert await cookies(context) == before


async def test_a_form_on_another_port_logs_nobody_in(
    browser: Browser, two_workers: Server, admin: Http, foreign_page: str
) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    planted = await invitation(two_workers, admin, "Mallory")
    await page.goto(foreign_page)
    async with page.expect_navigation() as navigation:
        await page.evaluate(
            """([action, code]) => {
                const form = document.createElement("form");
                const field = document.createElement("input");
                Object.assign(form, { method: "post", action });
                Object.assign(field, { name: "code", value: code });
                form.append(field);
                document.body.append(form);
                form.submit();
            }""",
            [two_workers.url + "/login", planted.partition("code=")[2]],
        )
    answer = await navigation.value
    assert answer is not None and answer.status == 403
    assert await cookies(context) == {}


async def test_the_operators_own_link_on_a_foreign_page_waits_for_a_click(
    browser: Browser, two_workers: Server, foreign_page: str
) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(foreign_page)
    link = request_login_url(two_workers.url, two_workers.token)
    await page.evaluate("(url) => { location = url; }", link)
    await expect(page.get_by_role("button", name="Log in as local")).to_be_visible()
    assert await cookies(context) == {}


async def test_two_servers_on_one_host_do_not_log_each_other_out(
    browser: Browser, server: Server, two_workers: Server
) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    for one in (server, two_workers, server):
        if cookie_name(one) not in await cookies(context):
            await page.goto(request_login_url(one.url, one.token))
        else:
            await page.goto(one.url)
        await expect_chat(page, one)
    assert set(await cookies(context)) == {cookie_name(server), cookie_name(two_workers)}


async def test_a_browser_with_a_cookie_of_an_older_version_stays_logged_in(
    browser: Browser, two_workers: Server
) -> None:
    raw = secrets.token_urlsafe(32)
    in_an_hour = int(time.time() * 1000) + 3_600_000
    stored = {"uid": "local", "scopes": "", "kind": "cookie", "expires_at": in_an_hour}
    with Redis.from_url(two_workers.redis_url) as redis:
        redis.hset(f"parley:tk:{digest_of(raw)}", mapping=stored)
        redis.pexpire(f"parley:tk:{digest_of(raw)}", 3_600_000)
    context = await browser.new_context()
    await context.add_cookies([{"name": "parley", "value": raw, "url": two_workers.url}])
    page = await context.new_page()
    for _ in range(2):  # the second time by the new name
        await page.goto(two_workers.url)
        await expect_chat(page, two_workers)
        assert await cookies(context) == {cookie_name(two_workers): raw}
