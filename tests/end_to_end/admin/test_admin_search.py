"""The console's search where no index helps: it says how far it has looked, and looks on."""

import itertools
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, expect

from sessions.store.store import SessionStore
from tests.end_to_end.admin.test_admin_page import page as page  # the fixture
from tests.end_to_end.browser.test_browser import browser as browser  # the fixture
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.site.harness import Server
from tests.helpers.patience import PATIENCE
from tests.sessions.helpers.many_sessions import session_ids, store_many_sessions

pytestmark = [*needs_browser, pytest.mark.slow]

SEED = 7
NUM_SESSIONS = 5_000  # one page looks at 2,000


@pytest.fixture
async def oldest(two_workers: Server) -> AsyncIterator[str]:
    """The oldest of many sessions, whose title is Needle."""
    store = await SessionStore.open(two_workers.redis_url, timeout_seconds=PATIENCE)
    await store_many_sessions(store, NUM_SESSIONS, SEED)
    ids = list(itertools.islice(session_ids(SEED), NUM_SESSIONS))
    index = store.keys.all_sessions(ids[0])
    await store.client.calls(
        ("ZADD", index, 1, ids[0]),
        ("HSET", store.keys.session(ids[0], "m"), "title", "Needle", "updated_at", 1),
    )
    yield ids[0]
    for start in range(0, NUM_SESSIONS, 500):
        some = ids[start : start + 500]
        await store.client.calls(
            *(("ZREM", store.keys.all_sessions(sid), sid) for sid in some),
            *(("UNLINK", store.keys.session(sid, "m")) for sid in some),
        )
    await store.close()


async def test_a_title_is_looked_for_further_until_it_is_found_or_all_were_seen(
    page: Page, oldest: str
) -> None:
    box = page.get_by_role("searchbox", name="Find")
    await box.fill("needle")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("None among the 2,000 of 5,")).to_be_visible()
    await page.get_by_role("button", name="Look at older ones").click()
    await expect(page.get_by_role("row").filter(has_text="Needle")).to_be_visible()
    assert "after=" in page.url  # a reload shows the same
    await box.fill("zephyr")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Look at older ones").click()
    await expect(page.get_by_text("Nothing fits, to the oldest chat.")).to_be_visible()


async def test_all_sessions_can_stand_from_the_longest_unused(page: Page, oldest: str) -> None:
    await page.get_by_role("button", name="All", exact=True).click()
    await page.get_by_role("columnheader", name="Age").get_by_role("button").click()
    await expect(page.get_by_role("row").nth(1)).to_contain_text("Needle")
    await page.get_by_role("button", name="Older").click()
    await expect(page.get_by_text("Page 2")).to_be_visible()
    await page.get_by_role("columnheader", name="Age").get_by_role("button").click()
    await expect(page.get_by_text("Page 1")).to_be_visible()
    await expect(page.get_by_role("row").filter(has_text="Needle")).to_have_count(0)
