"""The page in real Chromium when the server cannot do what was asked: nothing is shown as done."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext, Page, WebSocketRoute, expect

from tests.end_to_end.browser.test_browser import answers, ask, signed_in, until
from tests.end_to_end.browser.test_browser import browser as browser  # the fixtures
from tests.end_to_end.browser.test_browser import context as context
from tests.end_to_end.browser.test_browser import pytestmark as needs_browser
from tests.end_to_end.clients.http_client import Http, admin_token
from tests.end_to_end.clients.operators import for_new_user
from tests.end_to_end.site.harness import Server
from tests.helpers.tiny_model import oracle_word

pytestmark = [*needs_browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def narrow(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with little context, which soon gives up on Redis."""
    data = tmp_path_factory.mktemp("narrow") / "data"
    limits = {"PARLEY_REDIS_TIMEOUT_SECONDS": "1", "PARLEY_MAX_MODEL_LEN": "1024"}
    server = Server(data, oracle_model, None, **limits, PARLEY_PACE="100")
    try:
        yield server.start()
    finally:
        server.close()


@contextmanager
def redis_away(server: Server) -> Iterator[None]:
    """Its Redis takes what it is sent and answers nothing."""
    (redis,) = server.children("redis-server")
    redis.suspend()
    server.history.fault("redis stop")
    try:
        yield
    finally:
        redis.resume()


async def has_no_chat(http: Http) -> bool:
    answer = await http.get("/v1/sessions")
    return not answer.json()["sessions"]


async def choose(page: Page, title: str, item: str) -> None:
    """An item of the menu of a chat in the list."""
    await page.get_by_role("link", name=title, exact=True).hover()
    await page.get_by_role("button", name=f"Options for {title}", exact=True).click()
    await page.get_by_role("menuitem", name=item).click()


@pytest.mark.slow
async def test_a_rename_and_a_deletion_while_redis_is_away_are_done_when_it_is_back(
    browser: Browser, narrow: Server
) -> None:
    server = await for_new_user(narrow)
    async with Http(server) as http:
        for title in ("Tides", "Boats"):
            await http.new_session(title=title)
    async with signed_in(browser, server) as context:
        page = await context.new_page()
        await page.goto(server.url)
        titles = page.locator("nav .title")
        await expect(titles).to_have_text(["Boats", "Tides"])
        with redis_away(server):
            await choose(page, "Tides", "Rename")
            await page.get_by_label("Name of the chat").fill("Low tides")
            await page.keyboard.press("Enter")
            await choose(page, "Boats", "Delete")
            await expect(page.get_by_text("nothing new can be sent yet")).to_be_visible()
            await expect(page.get_by_text("Undo")).to_be_hidden()  # it is sent only now
        await expect(page.get_by_text("nothing new can be sent yet")).to_be_hidden()
        await expect(titles).to_have_text(["Low tides"])
        await page.reload()
        await expect(titles).to_have_text(["Low tides"])


@pytest.mark.slow
async def test_a_refusal_stands_in_its_chat_and_goes_when_its_cause_does(
    browser: Browser, narrow: Server
) -> None:
    server = await for_new_user(narrow)
    async with Http(server) as http:
        ids = {title: (await http.new_session(title=title))["id"] for title in ("Tides", "Boats")}
    async with signed_in(browser, server) as context:
        page = await context.new_page()
        for title in ("Boats", "Tides"):
            await page.goto(f"{server.url}/#{ids[title]}")
            await expect(page.get_by_role("heading", name=title)).to_be_visible()
        refusal = page.locator(".refusal")
        with redis_away(server):
            await ask(page, "How high is the water?")
            await page.get_by_role("link", name="Boats").click()
            toast = page.get_by_text("“Tides”: The server cannot save right now")
            await expect(toast).to_be_visible()
            await expect(refusal).to_have_count(0)
            await page.get_by_role("button", name="Open", exact=True).click()
            await expect(refusal).to_contain_text("The server cannot save right now")
            draft = page.get_by_role("textbox", name="Message")
            await expect(draft).to_have_value("How high is the water?")
        await expect(refusal).to_have_count(0)
        await expect(draft).to_have_value("How high is the water?")


async def test_a_refusal_for_an_answer_in_progress_goes_when_that_answer_ends(
    context: BrowserContext, server: Server
) -> None:
    """The page learns of the other answer, asked for on another device, with the refusal."""
    held: list[str] = []
    refused = asyncio.Event()
    is_late = False

    def route(socket: WebSocketRoute) -> None:
        def pass_on(message: str | bytes) -> None:
            held.append(str(message))
            if "response_in_progress" in held[-1]:
                refused.set()
            while held and (refused.is_set() or not is_late):
                socket.send(held.pop(0))

        socket.connect_to_server().on_message(pass_on)

    page = await context.new_page()
    await page.route_web_socket(re.compile("/v1/ws$"), route)
    async with Http(server) as http:
        session = (await http.new_session())["id"]
        await page.goto(f"{server.url}/#{session}")
        await expect(page.get_by_text("What shall we talk about?")).to_be_visible()
        is_late = True
        await http.begin(session, oracle_word(0))
        await ask(page, oracle_word(1))
        refusal = page.get_by_text("An answer is still being written")
        await expect(refusal).to_be_visible()
        await page.get_by_role("button", name="Stop", exact=True).click()
        await expect(answers(page).last).to_contain_text("Stopped")
        await expect(refusal).to_be_hidden()


async def test_an_evicted_chat_stays_in_the_list_and_says_that_it_is_locked(
    context: BrowserContext, server: Server
) -> None:
    async with Http(server) as http, Http(server, admin_token(server)) as admin:
        session = (await http.new_session(title="Evicted"))["id"]
        page = await context.new_page()
        await page.goto(f"{server.url}/#{session}")
        await expect(page.get_by_role("heading", name="Evicted")).to_be_visible()
        path = f"/v1/admin/sessions/{session}/evict"
        await admin.post(path, {"reason": "spam", "lock": True})
        await expect(page.get_by_text("An administrator closed this chat: spam")).to_be_visible()
        await expect(page.locator(".toast")).to_have_count(0)
        await expect(page.get_by_role("link", name="Evicted")).to_be_visible()
        await page.get_by_role("button", name="Open it again").click()
        await expect(page.locator(".refusal")).to_contain_text("An administrator locked this chat")
        assert page.url.endswith(session)


async def test_an_eviction_ends_one_chat_and_not_the_tab(
    context: BrowserContext, server: Server
) -> None:
    async with Http(server) as http, Http(server, admin_token(server)) as admin:
        session = (await http.new_session(title="Closed"))["id"]
        page = await context.new_page()
        await page.goto(f"{server.url}/#{session}")
        await expect(page.get_by_role("heading", name="Closed")).to_be_visible()
        await admin.post(f"/v1/admin/sessions/{session}/evict", {"reason": "spam"})
        closed = page.get_by_text("An administrator closed this chat: spam")
        await expect(closed).to_be_visible()
        await page.get_by_role("button", name="New chat").first.click()
        await expect(closed).to_have_count(0)
        await ask(page, oracle_word(1))
        await expect(answers(page).last).to_contain_text(oracle_word(5).strip())
        await page.get_by_role("button", name="Stop", exact=True).click()
        await page.locator(f'nav a[href="#{session}"]').click()
        await expect(closed).to_be_visible()
        await ask(page, oracle_word(1))  # to go on there opens it again
        await expect(answers(page).last).to_contain_text(oracle_word(5).strip())
        await page.get_by_role("button", name="Stop", exact=True).click()


async def test_a_first_message_that_no_model_reads_leaves_no_chat_behind(
    browser: Browser, narrow: Server
) -> None:
    server = await for_new_user(narrow)
    async with signed_in(browser, server) as context:
        page = await context.new_page()
        await page.goto(server.url)
        for num_words, said in ((20_000, "too long"), (2_000, "does not fit")):
            text = oracle_word(0) * num_words
            await ask(page, text)
            await expect(page.locator(".refusal")).to_contain_text(said)
            await expect(page.get_by_role("textbox", name="Message")).to_have_value(text)
            await expect(page.locator("nav .title")).to_have_count(0)
            assert "#" not in page.url
        await page.reload()
        await expect(page.get_by_role("textbox", name="Message")).to_have_value(text)
        async with Http(server) as http:
            await until(lambda: has_no_chat(http))


async def test_a_chat_that_a_refusal_leaves_behind_goes_even_if_the_page_goes_first(
    browser: Browser, narrow: Server
) -> None:
    server = await for_new_user(narrow)

    def lose_deletions(socket: WebSocketRoute) -> None:
        connection = socket.connect_to_server()
        socket.on_message(lambda m: None if "session.delete" in str(m) else connection.send(m))

    async with signed_in(browser, server) as context, Http(server) as http:
        page = await context.new_page()
        await page.route_web_socket(re.compile("/v1/ws$"), lose_deletions)
        await page.goto(server.url)
        await ask(page, oracle_word(0) * 2_000)
        await expect(page.locator(".refusal")).to_contain_text("does not fit")
        assert not await has_no_chat(http)
        await page.close()
        page = await context.new_page()
        await page.goto(server.url)
        await until(lambda: has_no_chat(http))
        await expect(page.locator("nav .title")).to_have_count(0)


async def test_a_draft_after_a_first_message_that_is_refused_goes_with_it_to_the_new_chat(
    browser: Browser, narrow: Server
) -> None:
    server = await for_new_user(narrow)
    refused, is_read = asyncio.Event(), asyncio.Event()

    def route(socket: WebSocketRoute) -> None:
        async def pass_on(message: str | bytes) -> None:
            if "context_length_exceeded" in str(message):
                refused.set()
                await is_read.wait()
            socket.send(message)

        socket.connect_to_server().on_message(pass_on)

    async with Http(server) as http:
        await http.new_session(title="Tides")
    async with signed_in(browser, server) as context:
        page = await context.new_page()
        await page.route_web_socket(re.compile("/v1/ws$"), route)
        await page.goto(server.url)
        draft = page.get_by_role("textbox", name="Message")
        text = oracle_word(0) * 2_000
        await ask(page, text)
        await refused.wait()
        await draft.fill("And another thing")
        await page.get_by_role("link", name="Tides", exact=True).click()
        await expect(draft).to_have_value("")
        is_read.set()
        await page.get_by_role("button", name="Open", exact=True).click()
        await expect(draft).to_have_value(f"{text}\n\nAnd another thing")
