"""The console's engines in real Chromium, by keyboard, on a server with two engines."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.end_to_end.admin.manage.test_outage import whole as whole  # the fixture
from tests.end_to_end.admin.test_admin_outages import halted
from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.clients.console import console, sign_in
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.clients.operators import audit
from tests.end_to_end.site.harness import TESTING, Server

pytestmark = [*needs_browser, pytest.mark.slow]

HOSTILE = "<img src=x onerror=alert(1)>"
DEED_MS = 15_000


@pytest.fixture(scope="module")
def pair(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = TESTING | {"PARLEY_ENGINES": "native*2"}
    server = Server(tmp_path_factory.mktemp("engines") / "data", oracle_model, None, **settings)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
async def page(browser: Browser, pair: Server) -> AsyncIterator[Page]:
    """The tab of the server's parts, with both engines ready."""
    async with console(browser, pair, "#server") as page:
        for name in ("native-1", "native-2"):
            await expect(engine(page, name)).to_contain_text("ready")
        yield page


def engine(page: Page, name: str) -> Locator:
    return page.get_by_role("table", name="Engines").get_by_role("row").filter(has_text=name)


def deed(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def problem(page: Page) -> Locator:
    """Why the dialog is still there."""
    return page.get_by_role("dialog").get_by_role("alert")


async def test_each_engine_is_shown_with_its_share_and_what_becomes_of_its_answers(
    page: Page,
) -> None:
    cells = engine(page, "native-1").get_by_role("cell")
    shown = [text.strip() for text in await cells.all_inner_texts()]
    name, about = shown[0].split("\n")
    assert name == "native-1" and about.startswith("oracle") and about.endswith("· native")
    assert shown[1:3] == ["ready", "50 %"]
    assert shown[7] == "goes on bit for bit"


async def test_an_engine_is_drained_and_takes_answers_again_by_keyboard(
    page: Page, pair: Server
) -> None:
    await deed(page, "Drain native-1").press("Enter")
    await page.get_by_label("Have them go on at other engines").press(" ")
    await page.get_by_role("dialog").get_by_role("button", name="Drain").press("Enter")
    await expect(page.get_by_text("native-1 is draining.")).to_be_visible()
    await expect(engine(page, "native-1")).to_contain_text("draining")
    await expect(engine(page, "native-2")).to_contain_text("100 %")
    await deed(page, "Drain native-2").press("Enter")  # somebody must answer
    await page.get_by_role("dialog").get_by_role("button", name="Drain").press("Enter")
    await expect(problem(page)).to_contain_text("No other engine takes answers")
    await page.keyboard.press("Escape")
    await deed(page, "Undrain native-1").press("Enter")
    await expect(engine(page, "native-1")).to_contain_text("50 %")
    async with Http(pair, admin_token(pair)) as admin:
        assert await audit(admin, "native-1") == ["engine.resume", "engine.drain"]


async def test_of_engines_of_one_name_only_that_of_the_row_is_drained_and_removed(
    browser: Browser, whole: Server
) -> None:
    async with Http(whole, admin_token(whole)) as admin:
        await admin.post("/v1/admin/models/load", {"name": "two"})
        path = "/v1/admin/engines/native-1"
        for model in ("one", "two"):
            unknown = await admin.post(f"{path}/drain", {"model": f"{model}x"})
            assert unknown.status_code == 404
        async with console(browser, whole, "#server") as page:
            rows = [
                engine(page, f"{model} · native").filter(has_text="native-1")
                for model in ("one", "two")
            ]
            for row in rows:
                await expect(row).to_contain_text("ready")
                await expect(row).to_contain_text("50 %")
            await deed(page, "Drain native-1 of two").click()
            await page.get_by_role("dialog").get_by_role("button", name="Drain").click()
            await expect(page.get_by_text("native-1 of two is draining.")).to_be_visible()
            await expect(rows[1]).to_contain_text("draining")
            await expect(rows[0]).to_contain_text("50 %")
            await deed(page, "Undrain native-1 of two").click()
            await expect(rows[1]).not_to_contain_text("draining")
            await deed(page, "Remove native-1 of two").click()
            await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
            await expect(rows[1]).to_have_count(0)
            await expect(deed(page, "Drain native-1")).to_be_visible()  # the only one by now
            await expect(rows[0]).to_contain_text("50 %")
        entries = (await admin.get("/v1/admin/audit?target=native-1")).json()["entries"]
        noted = [(entry["action"], entry["reason"]) for entry in entries]
        actions = ("engine.remove", "engine.resume", "engine.drain")
        assert noted == [(action, "two") for action in actions]


async def test_an_engine_is_added_and_removed_and_a_hostile_name_is_only_words(
    page: Page, pair: Server
) -> None:
    await page.get_by_role("button", name="Add an engine …").click()
    entry = page.get_by_label("As in PARLEY_ENGINES")
    await entry.fill(f"native;name={HOSTILE}")
    await entry.press("Enter")
    await expect(problem(page)).not_to_be_empty()
    assert await page.locator("img").count() == 0
    await entry.fill("native;name=third")
    await entry.press("Enter")
    await expect(engine(page, "third")).to_contain_text("ready")
    await deed(page, "Remove third").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    await expect(engine(page, "third")).to_have_count(0)
    async with Http(pair, admin_token(pair)) as admin:
        assert await audit(admin, "third") == ["engine.remove"]


async def test_who_may_not_read_what_users_write_adds_no_engine_at_an_address(
    page: Page, pair: Server
) -> None:
    async with Http(pair, admin_token(pair)) as admin:
        body = {"name": "Helper", "roles": ["admin"], "scopes": ["admin"]}
        helper = (await admin.post("/v1/admin/users", body)).json()
    await page.get_by_role("button", name="Sign out").click()
    await sign_in(page, helper["token"])
    await page.get_by_role("button", name="Add an engine …").click()
    entry = page.get_by_label("As in PARLEY_ENGINES")
    await entry.fill("openai=https://127.0.0.1:9/;model=m")
    await entry.press("Enter")
    await expect(problem(page)).to_contain_text("admin:transcripts")


async def test_of_a_drain_that_nobody_answers_nobody_claims_that_it_was_done(
    page: Page, pair: Server
) -> None:
    await page.clock.install()
    (worker,) = pair.children("server.worker")
    await deed(page, "Drain native-1").click()
    with halted(pair, worker, "worker"):
        await page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        await page.clock.run_for(DEED_MS)
        await expect(problem(page)).to_contain_text("is not known")
    async with Http(pair, admin_token(pair)) as admin:
        await admin.post("/v1/admin/engines/native-1/resume")
