"""A stop, or a reader that leaves, ends an answer of a group, also between two engines."""

import asyncio

import pytest

from tests.server.helpers.scripted_links import PROMPT, Site, ids_of, params_of


async def test_a_stop_ends_an_answer_at_the_engine_that_writes_it(site: Site) -> None:
    reader, mine, other = await site.begin("r", *ids_of(site, "Once upon"))
    await site.group.abort("r")
    await reader.task
    assert (reader.text, reader.reason) == ("Once upon", "abort")
    assert len(mine.aborted) == 1 and not (other.aborted or other.sent)


async def test_a_stop_while_an_answer_moves_ends_it(site: Site) -> None:
    reader, dying, other = await site.begin("r", *ids_of(site, "Once upon"))
    dying.die()
    await site.group.abort("r")
    await reader.task
    await site.settle()
    assert (reader.text, reader.reason) == ("Once upon", "abort")
    assert other.sent == []


@pytest.mark.parametrize("is_dead", [True, False])
async def test_an_answer_that_is_stopped_between_two_engines_is_free_if_the_first_has_said_so(
    site: Site, is_dead: bool
) -> None:
    reader, mine, other = await site.begin("r", *ids_of(site, "Once upon"))
    if is_dead:
        mine.die()
    else:
        site.change(site.place_of("r"), is_draining=True, must_move=True)
    other.stall()
    await site.settle()
    await site.group.abort("r")
    await reader.task
    assert (reader.text, reader.reason, other.sent) == ("Once upon", "abort", [])
    assert reader.end is not None and reader.end.metrics is not None
    assert reader.end.metrics.core_confirmed is not is_dead


async def test_a_stop_ends_an_answer_that_waits_for_its_trial(site: Site) -> None:
    dying, other = site.links["a"], site.links["b"]
    other.die()
    readers = [site.read(name) for name in ("r1", "r2")]
    await site.settle()
    other.come()
    dying.die()
    await site.settle()
    waiting = "r2" if other.ids("r1") else "r1"
    await site.group.abort(waiting)
    reader = readers[int(waiting[1]) - 1]
    await reader.task
    assert (reader.reason, other.ids(waiting)) == ("abort", [])


async def test_a_reader_that_leaves_ends_its_answer(site: Site) -> None:
    reader = site.read("r")
    await site.settle()
    mine, _ = site.at("r")
    reader.task.cancel()
    await site.settle()
    assert len(mine.aborted) == 1
    assert not any(member.num_answers for member in site.members)


async def test_when_a_reader_has_closed_its_answer_no_engine_writes_it_any_more(
    site: Site,
) -> None:
    outputs = site.group.generate({"prompt_token_ids": PROMPT}, params_of(), "r")
    reading = asyncio.ensure_future(anext(outputs))
    await site.settle()
    mine, _ = site.at("r")
    mine.emit("r", ids_of(site, "Once")[0])
    await reading
    await outputs.aclose()
    assert [member.num_answers for member in site.members] == [0, 0]
