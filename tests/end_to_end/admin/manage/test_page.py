"""What admins manage on their page, in real Chromium: each deed by keyboard, names as text."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, expect

from sessions.directory.users import Users
from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as pytestmark
from tests.end_to_end.clients.console import console
from tests.end_to_end.clients.http_client import Http
from tests.end_to_end.clients.operators import audit, new_user, store_of
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE

HOSTILE = '<img src=x onerror="alert(1)">'
WIDER = """all => all.filter(one => one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1)
  .map(one => one.outerHTML)"""
WIDTHS = "all => all.map(one => one.getBoundingClientRect().width)"
SHOTS = os.environ.get("SHOTS")  # a folder, for who wants to look


@pytest.fixture
async def page(browser: Browser, two_workers: Server) -> AsyncIterator[Page]:
    """The page, signed in; what it complains about fails the test."""
    async with console(browser, two_workers, is_complaint=is_complaint) as page:
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        yield page


def is_complaint(message: ConsoleMessage) -> bool:
    """A refusal is no fault of the page."""
    return message.type == "error" and "responded with a status of 4" not in message.text


async def shot(page: Page, name: str) -> None:
    if SHOTS is not None:
        await page.screenshot(path=Path(SHOTS) / f"{name}.png")


async def press(page: Page, name: str) -> None:
    """A button, by the keyboard."""
    button = page.get_by_role("button", name=name, exact=True).last
    await button.focus()
    await page.keyboard.press("Enter")


async def write(page: Page, label: str, text: str) -> None:
    await page.get_by_role("dialog").get_by_label(label, exact=True).fill(text)


async def tab(page: Page, name: str) -> None:
    await page.get_by_role("link", name=name, exact=True).focus()
    await page.keyboard.press("Enter")


async def test_a_user_is_added_limited_grouped_disabled_and_removed_by_keyboard(
    page: Page, two_workers: Server, admin: Http
) -> None:
    group = (await admin.post("/v1/admin/groups", {"name": f"{HOSTILE} team"})).json()
    await tab(page, "Users")
    await press(page, "Add a user …")
    await write(page, "Name", HOSTILE)
    await write(page, "What the token is for", "her laptop")
    await write(page, "Days until the token expires", "30")
    await shot(page, "users-add")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    secret = dialog.get_by_role("textbox", name="The token of")
    await expect(secret).to_be_visible()
    token = await secret.input_value()
    async with Http(two_workers, token) as http:
        assert (await http.get("/v1/sessions")).status_code == 200
    await page.keyboard.press("Escape")
    drawer = page.get_by_role("complementary")
    await expect(drawer).to_contain_text("her laptop")
    await expect(drawer.get_by_role("heading", name=HOSTILE)).to_be_visible()
    uid = await drawer.locator("code").last.inner_text()
    await press(page, "Quotas …")
    await write(page, "Tokens a day", "5000")
    await page.keyboard.press("Enter")
    await expect(drawer).to_contain_text("5,000 tokens a day")
    await press(page, "Group …")
    await dialog.get_by_role("searchbox").fill("onerror")
    await dialog.get_by_role("radio", name=f"{HOSTILE} team").press(" ")
    await press(page, "Save")
    await expect(drawer).to_contain_text(f"{HOSTILE} team")
    await shot(page, "users-drawer")
    await press(page, "Another token …")
    await write(page, "What it is for", "backup")
    await press(page, "Make a token")
    await expect(dialog.get_by_role("textbox", name="A token of")).to_be_visible()
    await press(page, "Done")
    await expect(drawer).to_contain_text("backup")
    await press(page, "Revoke …")
    await press(page, "Revoke")
    await expect(page.get_by_text("Revoked.")).to_be_visible()
    await press(page, "Invite …")
    link = dialog.get_by_role("textbox", name="A login link for")
    assert "/login?code=" in await link.input_value()
    await press(page, "Done")
    await press(page, "Disable …")
    await press(page, "Disable")
    await expect(drawer).to_contain_text("disabled")
    await press(page, "Remove …")
    await dialog.get_by_role("checkbox").check()
    await press(page, "Remove")
    await expect(drawer).to_have_count(0)
    assert (await audit(admin, uid))[0] == "user.delete"
    await admin.ask("DELETE", f"/v1/admin/groups/{group['id']}")


@pytest.mark.slow
async def test_a_group_older_than_the_newest_is_found_by_its_name_and_chosen_by_keyboard(
    page: Page, admin: Http
) -> None:
    user = await new_user(admin, name="Seeker")
    old = (await admin.post("/v1/admin/groups", {"name": "The oldest of all"})).json()
    groups = [old["id"]]
    for number in range(8):
        made = await admin.post("/v1/admin/groups", {"name": f"Younger {number}"})
        groups.append(made.json()["id"])
    await page.evaluate("hash => location.hash = hash", f"users?open={user['id']}")
    drawer, dialog = page.get_by_role("complementary"), page.get_by_role("dialog")
    await expect(drawer).to_contain_text("Seeker")
    await press(page, "Group …")
    said = dialog.get_by_role("status")
    await expect(said).to_have_text("The newest 6: write a part of the name of another one.")
    await expect(dialog.get_by_role("radio", name="Younger 7")).to_be_visible()
    await page.keyboard.type("younger")
    await expect(said).to_have_text("6 of 8: write more of the name.")
    for text, word in (("nobody's", "No group has such a name."), ("OLDEST", "")):
        await dialog.get_by_role("searchbox").fill(text)
        await expect(said).to_have_text(word)
    await page.keyboard.press("Enter")  # chooses nothing, and closes nothing
    await page.keyboard.press("Tab")
    await page.keyboard.press("ArrowDown")
    await expect(dialog.get_by_role("radio", name="The oldest of all")).to_be_checked()
    await dialog.get_by_role("searchbox").fill("younger")  # what was chosen stays
    await expect(said).to_have_text("6 of 8: write more of the name.")
    await expect(dialog.get_by_role("radio", name="The oldest of all")).to_be_checked()
    await press(page, "Save")
    await expect(drawer).to_contain_text("The oldest of all")
    row = page.get_by_role("row").filter(has_text="Seeker")
    await expect(row).to_contain_text("The oldest of all")
    await press(page, "Group …")
    await dialog.get_by_role("radio", name="None").press(" ")
    await press(page, "Save")
    await expect(drawer).not_to_contain_text("The oldest of all")
    for gid in groups:
        await admin.ask("DELETE", f"/v1/admin/groups/{gid}")


@pytest.mark.slow
async def test_groups_of_one_name_are_told_apart_by_their_ids(page: Page, admin: Http) -> None:
    user = await new_user(admin, name="Undecided")
    names = ("Twins", "TWINS", "Twins of another kind")
    made = [(await admin.post("/v1/admin/groups", {"name": name})).json() for name in names]
    first, second, third = (group["id"] for group in made)
    await page.evaluate("hash => location.hash = hash", f"users?open={user['id']}")
    drawer, dialog = page.get_by_role("complementary"), page.get_by_role("dialog")
    await expect(drawer).to_contain_text("Undecided")
    await press(page, "Group …")
    await dialog.get_by_role("searchbox").fill("twins")
    await expect(dialog).to_contain_text("Twins of another kind")
    await expect(dialog).not_to_contain_text(third)
    for gid in (first, second):
        await dialog.get_by_role("radio", name=gid).press(" ")
        await expect(dialog.get_by_role("radio", name=gid)).to_be_checked()
    await press(page, "Save")
    await expect(drawer).to_contain_text("TWINS")
    assert (await admin.get(f"/v1/admin/users/{user['id']}")).json()["group"] == second
    for gid in (first, second, third):
        await admin.ask("DELETE", f"/v1/admin/groups/{gid}")


async def test_a_group_is_made_changed_and_removed_and_its_members_let_go(
    page: Page, admin: Http
) -> None:
    user = await new_user(admin, name=HOSTILE)
    await tab(page, "Groups")
    await press(page, "Make a group …")
    await write(page, "Name", HOSTILE)
    await write(page, "Tokens a day", "1000")
    await write(page, "Answers at a time", "2")
    await page.keyboard.press("Enter")
    drawer = page.get_by_role("complementary")
    await expect(drawer).to_contain_text("1,000 tokens a day, 2 answers at a time")
    gid = await drawer.locator("code").last.inner_text()
    await admin.ask("PUT", f"/v1/admin/groups/{gid}/members/{user['id']}")
    await expect(drawer.get_by_role("link", name=HOSTILE)).to_be_visible()
    await shot(page, "groups-drawer")
    await press(page, "Let go")
    await expect(drawer).to_contain_text("None yet")
    await press(page, "Change …")
    await write(page, "Tokens a day", "")
    await page.keyboard.press("Enter")
    await expect(drawer).to_contain_text("2 answers at a time")
    await expect(drawer).not_to_contain_text("1,000 tokens a day")
    await press(page, "Remove …")
    await press(page, "Remove")
    await expect(drawer).to_have_count(0)
    assert (await audit(admin, gid))[:2] == ["group.delete", "group.update"]


async def test_a_notice_is_shown_to_users_at_once_dismissed_and_taken_away(
    page: Page, two_workers: Server, browser: Browser, admin: Http
) -> None:
    context = await browser.new_context(viewport={"width": 1000, "height": 700})
    context.set_default_timeout(PATIENCE * 1000)
    chat = await context.new_page()
    await open_chat(chat, admin, two_workers)
    await tab(page, "Notice")
    await press(page, "Tell all users …")
    await write(page, "What to say, in one line", f"Down at noon {HOSTILE}")
    await page.get_by_role("dialog").get_by_label("Kind").select_option("warning")
    await press(page, "Show")
    await expect(page.get_by_label("The notice")).to_contain_text(f"Down at noon {HOSTILE}")
    await shot(page, "notice")
    shown = chat.get_by_role("note")
    await expect(shown).to_contain_text(f"Down at noon {HOSTILE}")
    await shot(chat, "chat-notice")
    await press(chat, "Dismiss")
    await expect(shown).to_have_count(0)
    await chat.reload()
    await expect(chat.get_by_role("textbox").first).to_be_visible()
    await expect(shown).to_have_count(0)
    await press(page, "Show another …")
    await write(page, "What to say, in one line", "Up again")
    await press(page, "Show")
    await expect(shown).to_contain_text("Up again")
    await press(page, "Take away …")
    await press(page, "Take away")
    await expect(shown).to_have_count(0)
    await expect(page.get_by_text("Users are shown no notice.")).to_be_visible()
    await context.close()


async def open_chat(chat: Page, admin: Http, server: Server) -> None:
    """The chat page of a new user, by a login link."""
    user = await new_user(admin)
    made = (await admin.post(f"/v1/admin/users/{user['id']}/login-codes")).json()
    await chat.goto(server.url + made["path"])
    await chat.get_by_role("button", name="Log in").click()
    await expect(chat.get_by_role("textbox").first).to_be_visible()


@pytest.mark.slow
async def test_the_audit_log_share_links_and_settings_are_read_and_a_link_is_taken_back(
    page: Page, two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin, name=HOSTILE)
    async with Http(two_workers, user["token"]) as http:
        session = (await http.new_session(title=HOSTILE))["id"]
        await http.post(f"/v1/sessions/{session}/share")
    await tab(page, "Share links")
    row = page.get_by_role("row").filter(has_text=HOSTILE).first
    await expect(row).to_be_visible()
    await shot(page, "shares")
    button = row.get_by_role("button", name="Take back …")
    await button.focus()
    await page.keyboard.press("Enter")
    await press(page, "Take back")
    await expect(page.get_by_text("Taken back.")).to_be_visible()
    assert (await audit(admin, session))[0] == "share.revoke"
    await tab(page, "Audit")
    await page.get_by_role("searchbox", name="To whom").fill(session)
    await page.keyboard.press("Enter")
    revoked = page.get_by_role("row").filter(has_text="share.revoke")
    await expect(revoked).to_contain_text(f"{session}{HOSTILE} {user['id']}")
    await expect(page.get_by_role("row")).to_have_count(2)
    await shot(page, "audit")
    await tab(page, "Settings")
    setting = page.get_by_role("row").filter(has_text="PARLEY_WORKERS")
    await expect(setting).to_contain_text("environment")
    await shot(page, "settings")


@pytest.mark.slow
async def test_hidden_letters_are_written_out_and_long_words_leave_room_for_the_rest(
    page: Page, two_workers: Server, admin: Http
) -> None:
    user = await new_user(admin)
    hidden = r"\u200b\u200b"
    async with store_of(two_workers) as store:  # older versions took such names
        await Users(store.client, store.keys).update(user["id"], name="\u200b\u200b")
    async with Http(two_workers, user["token"]) as http:
        session = (await http.new_session(title="W" * 100))["id"]
        await http.post(f"/v1/sessions/{session}/share")
    notice = {"text": "x" * 500, "expires_in_s": 600}
    assert (await admin.ask("PUT", "/v1/admin/notice", json=notice)).status_code == 200
    await tab(page, "Users")
    await page.get_by_role("button", name=hidden, exact=True).first.click()
    await expect(page.get_by_role("complementary").get_by_role("heading").first).to_have_text(
        hidden
    )
    await tab(page, "Share links")
    row = page.get_by_role("row").filter(has_text="W" * 100).first
    await expect(row).to_be_visible()
    assert await page.locator("td").evaluate_all(WIDER) == []
    await tab(page, "Audit")
    await expect(page.get_by_role("row").filter(has_text="x" * 200).first).to_be_visible()
    assert min(await page.locator("td.col-target").evaluate_all(WIDTHS)) > 150
    await tab(page, "Settings")
    await expect(page.get_by_role("row").filter(has_text="PARLEY_WORKERS")).to_be_visible()
    assert min(await page.locator("td.col-value").evaluate_all(WIDTHS)) > 150
    await tab(page, "Notice")
    await expect(page.get_by_label("The notice")).to_contain_text("x" * 500)
    assert await page.locator(".shown-notice *").evaluate_all(WIDER) == []
    await admin.ask("DELETE", "/v1/admin/notice")


@pytest.mark.slow
async def test_what_is_refused_is_said_in_words(
    page: Page, two_workers: Server, admin: Http
) -> None:

    await tab(page, "Groups")
    await page.route("**/v1/admin/groups", lambda route: refuse(route, 403))
    await press(page, "Make a group …")
    await write(page, "Name", "x")
    await page.keyboard.press("Enter")
    problem = page.get_by_role("dialog").get_by_role("alert")
    await expect(problem).to_contain_text("This needs the role admin")
    await page.unroute("**/v1/admin/groups")


async def refuse(route: Any, status: int) -> None:
    if route.request.method == "GET":
        await route.fallback()
        return
    error = {"code": "forbidden", "message": "this needs the role admin and the scope admin"}
    await route.fulfill(status=status, json={"error": error})


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_on_a_phone_nothing_is_wider_than_the_screen(
    page: Page, admin: Http, theme: str
) -> None:
    await new_user(admin, name="long name " * 9)
    await admin.post("/v1/admin/groups", {"name": "long group " * 9})
    await page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    await page.set_viewport_size({"width": 360, "height": 740})
    for name in ("Users", "Groups", "Audit", "Share links", "Notice", "Settings"):
        await tab(page, name)
        await expect(page.get_by_text("Loading …")).to_have_count(0)
        assert await page.evaluate("document.documentElement.scrollWidth") == 360, name
        await shot(page, f"phone-{theme}-{name}")
