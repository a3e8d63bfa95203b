"""Each view and state of the admin page, as a function that brings a page into it."""

from collections.abc import Awaitable, Callable
from typing import Any

from playwright.async_api import Locator, Route, expect

from tests.end_to_end.clients.http_client import admin_token
from tests.end_to_end.looks.stage import LIVE, NOW, WORKER, Stage

State = Callable[[Stage], Awaitable[None]]
ADMIN_STATES: dict[str, State] = {}


def state(function: State) -> State:
    ADMIN_STATES["admin-" + function.__name__.replace("_", "-")] = function
    return function


@state
async def sign_in(stage: Stage) -> None:
    await stage.page.goto(stage.server.url + "/admin")
    await expect(stage.page.get_by_label("Admin token")).to_be_visible()


@state
async def refused(stage: Stage) -> None:
    await sign_in(stage)
    await stage.page.get_by_label("Admin token").fill("wrong")
    await stage.page.get_by_role("button", name="Sign in").click()
    await expect(stage.page.get_by_role("alert")).to_be_visible()


async def signed_in(stage: Stage) -> None:
    await sign_in(stage)
    await stage.page.get_by_label("Admin token").fill(admin_token(stage.server))
    await stage.page.get_by_role("button", name="Sign in").click()
    await expect(stage.page.get_by_role("button", name="Sign out")).to_be_visible()
    await expect(stage.page.locator(".vital.good")).to_have_count(3)


@state
async def nobody(stage: Stage) -> None:
    """Being answered."""
    await signed_in(stage)
    await stage.page.get_by_role("searchbox", name="Find").fill("usr_nobody")
    await stage.page.keyboard.press("Enter")
    await expect(stage.page.get_by_text("Nothing fits.")).to_be_visible()


@state
async def live(stage: Stage) -> None:
    """One answer is being written, and a few chats rest."""
    for title in ("Boats", "A very long title, which no column of any width holds as a whole " * 2):
        await stage.chat(title, "Why?", "Because.")
    await stage.ask("Tides")
    await signed_in(stage)
    await stage.page.get_by_role("button", name="All", exact=True).click()
    await expect(answering(stage)).to_be_visible()


def answering(stage: Stage) -> Locator:
    return stage.page.get_by_role("row").filter(has_text="answering").first


@state
async def drawer(stage: Stage) -> None:
    await live(stage)
    await answering(stage).get_by_role("button").first.click()
    await expect(stage.page.get_by_role("complementary")).to_contain_text("first token")


@state
async def watch(stage: Stage) -> None:
    await drawer(stage)
    drawn = stage.page.get_by_role("complementary")
    await drawn.get_by_role("button", name="Watch live").click()
    await expect(drawn.get_by_role("log")).to_contain_text("writing")


@state
async def evict(stage: Stage) -> None:
    await drawer(stage)
    await stage.page.get_by_role("button", name="Evict …").click()
    await expect(stage.page.get_by_role("dialog")).to_be_visible()


@state
async def stopped(stage: Stage) -> None:
    """A notice says so."""
    await live(stage)
    await answering(stage).get_by_role("button", name="Stop").click()
    await expect(stage.page.get_by_text("Stopped.")).to_be_visible()


@state
async def figures(stage: Stage) -> None:
    """Plots of the last quarter of an hour."""
    await signed_in(stage)
    await stage.page.get_by_role("link", name="Figures").click()
    await expect(stage.page.locator(".plot canvas")).to_have_count(8)
    await stage.page.wait_for_function(DRAWN)


# A canvas of the last chart has something on it: the plots are drawn one after the other.
DRAWN = """() => {
    const canvas = [...document.querySelectorAll(".plot canvas")].at(-1);
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return data.some((value) => value > 0);
}"""


@state
async def figures_table(stage: Stage) -> None:
    await figures(stage)
    await stage.page.get_by_role("button", name="Table", exact=True).click()
    await expect(stage.page.get_by_role("table", name="Figures")).to_be_visible()


@state
async def server(stage: Stage) -> None:
    """Engines, workers and models."""
    await signed_in(stage)
    await stage.page.get_by_role("link", name="Server").click()
    await expect(stage.page.get_by_role("table", name="Engines")).to_contain_text("ready")
    await expect(stage.page.get_by_role("table", name="Workers")).to_contain_text("running")
    await expect(stage.page.get_by_role("heading", name="Models")).to_be_visible()


@state
async def found(stage: Stage) -> None:
    """By a part of a title."""
    await live(stage)
    await stage.page.get_by_role("searchbox", name="Find").fill("boat")
    await stage.page.keyboard.press("Enter")
    await expect(stage.page.locator(".found")).to_contain_text("Titles with")
    await expect(stage.page.get_by_role("button", name="Boats")).to_be_visible()


@state
async def away(stage: Stage) -> None:
    """Redis and the engine are."""
    await live(stage)
    told: dict[str, Any] = {}

    async def tell(route: Route) -> None:
        told.update(await (await route.fetch()).json())
        worker = {**told["replicas"][0], "id": "harbour-4242-5f3a9c", "engine": "unavailable"}
        worker.update(seen_at=told["now"] - 300, engine_since=told["now"] - 12_000, **WORKER)
        told["redis"].update(state="unavailable", since=int(NOW.timestamp() * 1000) - 8000)
        told.update(live=LIVE, replicas=[worker], engines=[{**told["engines"][0], "state": "dead"}])
        await route.fulfill(json=told)

    await stage.page.route("**/v1/admin/health", tell)
    await expect(stage.page.locator(".vital.bad")).to_have_count(2)
    await expect(stage.page.locator(".trouble")).to_be_visible()


@state
async def lost(stage: Stage) -> None:
    """The server does not answer: what is shown is not of now."""
    await live(stage)
    await stage.page.route("**/v1/admin/**", lambda route: route.abort())
    await expect(stage.page.locator(".trouble.lost")).to_be_visible()
    await expect(stage.page.locator(".vitals.old")).to_be_visible()
