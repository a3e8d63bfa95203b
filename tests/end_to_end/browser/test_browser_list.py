"""The list of chats in real Chromium: where the focus goes, and what a reconnect finds gone."""

import re

import pytest
from playwright.async_api import Browser, Page, WebSocketRoute, expect

from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as pytestmark
from tests.end_to_end.browser.test_browser import signed_in
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import for_new_user
from tests.end_to_end.site.harness import Server


async def open_menu(page: Page, title: str) -> None:
    """By keyboard; its first item, Rename, has the focus then."""
    await page.get_by_role("button", name=f"Options for {title}", exact=True).press("Enter")
    await expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()


async def test_the_focus_stays_in_the_list_after_a_rename_and_a_deletion(
    browser: Browser, server: Server
) -> None:
    server = await for_new_user(server)
    async with Http(server) as http:
        for title in ("First", "Second"):
            await http.new_session(title=title)
    async with signed_in(browser, server) as context:
        page = await context.new_page()
        await page.goto(server.url)
        for key, title in (("Escape", "First"), ("Enter", "Renamed")):
            await open_menu(page, "First")
            await page.keyboard.press("Enter")
            await page.get_by_label("Name of the chat").fill("Renamed")
            await page.keyboard.press(key)
            await expect(page.get_by_role("link", name=title, exact=True)).to_be_focused()
        second = page.get_by_role("link", name="Second", exact=True)
        new_chat = page.get_by_role("button", name="New chat").first
        for title, heir in (("Renamed", second), ("Second", new_chat)):
            await open_menu(page, title)
            await page.keyboard.press("End")
            await page.keyboard.press("Enter")
            await expect(heir).to_be_focused()


@pytest.mark.slow
async def test_a_chat_deleted_elsewhere_while_disconnected_leaves_a_long_list(
    browser: Browser, server: Server
) -> None:
    server = await for_new_user(server)
    sockets: list[WebSocketRoute] = []
    is_down = False

    async def route(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        if is_down:
            await socket.close(code=1012)
        else:
            socket.connect_to_server()

    async with Http(server) as http, signed_in(browser, server) as context:
        sessions = [(await http.new_session(title=f"Chat {n}"))["id"] for n in range(60)]
        page = await context.new_page()
        await page.route_web_socket(re.compile("/v1/ws$"), route)
        await page.goto(server.url)
        titles = page.locator("nav .title")
        await titles.last.scroll_into_view_if_needed()
        await expect(titles).to_have_count(60)  # they come by themselves
        is_down = True
        await sockets[-1].close(code=1012)
        await expect(page.get_by_text("Reconnecting…")).to_be_visible()
        await http.ask("DELETE", f"/v1/sessions/{sessions[57]}")
        is_down = False
        await expect(page.get_by_text("Chat 57", exact=True)).to_have_count(0)
        await expect(titles).to_have_count(59)
