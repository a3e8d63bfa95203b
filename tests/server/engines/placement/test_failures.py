"""An engine of a group fails with an answer: another one is asked, or that is its end."""

from engine.ipc import ClientMessage
from server.engines.client import (
    CANNOT_CONTINUE,
    ValidationError,
)
from tests.server.helpers.scripted_links import ANSWER, Site, ids_of


async def test_an_answer_that_an_engine_cannot_continue_goes_to_the_next_one() -> None:
    site = Site("abc")
    await site.settle()
    ids = ids_of(site)
    reader, dying, _ = await site.begin("r", *ids[:3])
    dying.die()
    await site.settle()
    unable, _ = site.at("r")
    unable.emit("r", finish_reason="error", error=(CANNOT_CONTINUE, "it would begin anew"))
    await site.settle()
    able, _ = site.at("r")
    assert able not in (dying, unable)
    able.emit("r", *ids[3:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.reason) == (ANSWER, "length")
    site.close()


async def test_an_answer_that_an_engine_refuses_in_its_middle_goes_to_the_next_one() -> None:
    def refuse(message: ClientMessage) -> bool:
        raise ValidationError("a message of 3000000 bytes", "request")

    site = Site("abc")
    await site.settle()
    ids = ids_of(site)
    reader, dying, _ = await site.begin("r", *ids[:3])
    first, second = (link for link in site.links.values() if link is not dying)
    first.send = second.send = refuse  # type: ignore[method-assign]  # they refuse all
    dying.die()
    await site.settle()
    assert reader.error is None
    dying.come()
    await site.settle()
    dying.emit("r", *ids[3:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.reason) == (ANSWER, "length")
    assert len(site.group.members) == sum(member.takes_new for member in site.group.members)
    site.close()


async def test_where_no_engine_can_continue_an_answer_it_ends_with_what_it_has(
    site: Site,
) -> None:
    reader = site.read("r")
    await site.settle()
    mine, other = site.at("r")
    site.change("b" if mine is site.links["a"] else "a", is_draining=True)
    mine.emit("r", *ids_of(site)[:3])
    mine.emit("r", finish_reason="error", error=(CANNOT_CONTINUE, "it would begin anew"))
    await reader.task
    assert reader.reason == "error" and other.sent == []
    assert reader.end is not None and reader.end.error is not None
    assert reader.end.error.code == CANNOT_CONTINUE


async def test_an_engine_that_cannot_be_reached_is_passed_over(site: Site) -> None:
    site.links["a"].can_send = False
    readers = [site.read(f"r{n}", session_id=f"s{n}") for n in range(10)]
    await site.settle()
    assert len(site.links["b"].sent) == 10
    assert all(reader.error is None for reader in readers)


async def test_an_engine_that_fails_again_and_again_is_asked_nothing_for_a_while(
    site: Site,
) -> None:
    failing, other = site.links["a"], site.links["b"]
    for number in range(20):
        site.read(f"r{number}", session_id=f"s{number}")
        await site.settle()
        if failing.ids(f"r{number}"):
            failing.emit(f"r{number}", finish_reason="error", error=("engine_error", "500"))
            await site.settle()
    assert len(failing.sent) == 3
    assert len(other.sent) == 20


async def test_an_error_of_the_answer_itself_is_its_end(site: Site) -> None:
    reader = site.read("r")
    await site.settle()
    mine, other = site.at("r")
    mine.emit("r", finish_reason="error", error=("grammar_refused", "no such form"))
    await reader.task
    assert reader.reason == "error" and other.sent == []


async def test_an_error_that_every_engine_has_with_it_is_reported_after_the_second(
    site: Site,
) -> None:
    reader = site.read("r")
    await site.settle()
    mine, other = site.at("r")
    for link in (mine, other):
        link.emit("r", finish_reason="error", error=("engine_error", "not finite"))
        await site.settle()
    assert reader.reason == "error"
    assert len(mine.sent) == len(other.sent) == 1
