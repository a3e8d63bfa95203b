"""The menu of models in real Chromium: there where there are several, by keyboard, and kept."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.end_to_end.browser.test_browser import answers, ask, signed_in
from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.clients.http_client import admin_token
from tests.end_to_end.site.harness import TESTING, Server
from tests.helpers.tiny_model import build_oracle_model, oracle_word

pytestmark = [*needs_browser, pytest.mark.slow]

PICKER = re.compile("^Model: ")


@pytest.fixture
def several(oracle_model: Path, tmp_path: Path) -> Iterator[Server]:
    other = build_oracle_model(tmp_path / "other", num_layers=2)
    models = f"oracle={oracle_model},other={other}"
    server = Server(tmp_path / "data", models, None, **TESTING, PARLEY_PACE="200")
    try:
        yield server.start()
    finally:
        server.close()


async def test_a_model_is_chosen_by_keyboard_and_the_chat_keeps_it(
    browser: Browser, several: Server
) -> None:
    async with signed_in(browser, several) as context:
        page = await context.new_page()
        await page.goto(several.url)
        picker = page.get_by_role("button", name=PICKER)
        await expect(picker).to_have_accessible_name("Model: oracle. Choose another")
        await picker.press("Enter")
        chosen = page.get_by_role("menuitemradio", name="oracle", checked=True)
        await expect(chosen).to_be_focused()
        other = page.get_by_role("menuitemradio", name=re.compile("^other"), checked=False)
        await expect(other).to_contain_text("loaded when you ask")
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await expect(picker).to_have_accessible_name("Model: other. Choose another")
        await ask(page, oracle_word(7))
        await expect(answers(page).last).to_contain_text("tokens")
        await page.reload()
        await expect(picker).to_have_accessible_name("Model: other. Choose another")


async def test_an_admin_sees_the_models_and_loads_one(browser: Browser, several: Server) -> None:
    async with signed_in(browser, several) as context:
        page = await context.new_page()
        await page.goto(f"{several.url}/admin#server")
        await page.get_by_label("Admin token").fill(admin_token(several))
        await page.keyboard.press("Enter")
        models = page.get_by_role("region", name="Models")
        other = models.get_by_role("listitem").filter(has_text="other")
        await expect(other).to_contain_text("Not loaded")
        await page.get_by_role("button", name="Load other", exact=True).click()
        await expect(other).to_contain_text("MB of memory")
        await expect(page.get_by_role("button", name="Unload other", exact=True)).to_be_visible()


async def test_where_there_is_one_model_its_name_is_shown_alone(
    browser: Browser, server: Server
) -> None:
    async with signed_in(browser, server) as context:
        page = await context.new_page()
        await page.goto(server.url)
        await expect(page.get_by_title("The model that answers")).to_be_visible()
        await expect(page.get_by_role("button", name=PICKER)).to_have_count(0)
