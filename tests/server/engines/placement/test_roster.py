"""Engines come and go, drain and are resumed, and their answers move or end where they are."""

import asyncio

import msgspec
import pytest

from server.engines.client import (
    CoreState,
    Exactness,
    SamplingParams,
    StructuredOutputsParams,
    ValidationError,
)
from tests.server.helpers.scripted_links import ANSWER, Site, ids_of, params_of


async def test_an_engine_that_drains_takes_nothing_new_and_ends_what_it_has(site: Site) -> None:
    ids = ids_of(site)
    reader = site.read("r", session_id="s")
    await site.settle()
    mine, other = site.at("r")
    name = site.place_of("r")
    mine.emit("r", *ids[:5])
    site.change(name, is_draining=True)
    await site.settle()
    assert mine.aborted == []
    mine.emit("r", *ids[5:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.num_restarts) == (ANSWER, 0)
    for number in range(9):
        site.read(f"more{number}", session_id=f"s{number}")
    site.read("same", session_id="s")
    await site.settle()
    assert len(mine.sent) == 1 and len(other.sent) == 10
    site.change(name, is_draining=False)
    for number in range(9):
        site.read(f"again{number}")
    await site.settle()
    assert len(mine.sent) > 1


async def test_an_engine_that_is_to_keep_nothing_hands_its_answers_over(site: Site) -> None:
    ids = ids_of(site)
    reader, _, other = await site.begin("r", *ids[:11])
    site.change(site.place_of("r"), is_draining=True, must_move=True)
    await site.settle()
    assert other.sent[0].resume_token_ids == ids[:11]
    other.emit("r", *ids[11:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.token_ids) == (ANSWER, ids)


async def test_an_engine_that_is_removed_hands_its_answers_over_and_is_closed(
    site: Site,
) -> None:
    ids = ids_of(site)
    reader, mine, other = await site.begin("r", *ids[:11])
    site.remove(site.place_of("r"))
    await site.settle()
    assert mine.is_closed and other.sent[0].resume_token_ids == ids[:11]
    other.emit("r", *ids[11:], finish_reason="length")
    await reader.task
    assert reader.text == ANSWER


@pytest.mark.parametrize("is_removed", [True, False])
async def test_answers_leave_an_engine_as_soon_as_another_one_takes_them(
    site: Site, is_removed: bool
) -> None:
    ids = ids_of(site)
    reader, mine, other = await site.begin("r", *ids[:11])
    name = site.place_of("r")
    other.stall()
    if is_removed:
        site.remove(name)
    else:
        site.change(name, is_draining=True, must_move=True)
    await site.settle()
    mine.emit("r", *ids[11:13])
    await site.settle()
    assert mine.aborted == [] == other.sent
    other.come()
    await site.settle()
    assert other.sent[0].resume_token_ids == ids[:13]
    other.emit("r", *ids[13:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.token_ids) == (ANSWER, ids)
    assert mine.is_closed is is_removed


async def test_answers_of_an_engine_that_dies_after_it_was_removed_wait_for_no_deadline(
    site: Site,
) -> None:
    ids = ids_of(site)
    reader, mine, other = await site.begin("r", *ids[:11])
    other.stall()
    site.remove(site.place_of("r"))
    await site.settle()
    mine.die()
    other.come()
    await site.settle()
    assert other.sent[0].resume_token_ids == ids[:11]
    other.emit("r", *ids[11:], finish_reason="length")
    await reader.task
    assert reader.text == ANSWER


async def test_answers_of_a_dead_engine_go_on_when_the_pause_of_another_one_is_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.engines.placement.group.LOOK_SECONDS", 0.0)
    ids = ids_of(site)
    reader, mine, other = await site.begin("r", *ids[:11])
    paused = next(member for member in site.members if site.links[member.name] is other)
    now = asyncio.get_running_loop().time()
    for _ in range(3):
        paused.breaker.fail(now)
    mine.die()
    await site.settle()
    assert other.sent == []
    paused.breaker.succeed()
    await site.settle()
    assert other.sent[0].resume_token_ids == ids[:11]
    other.emit("r", *ids[11:], finish_reason="length")
    await reader.task
    assert reader.text == ANSWER


async def test_an_answer_that_fails_while_it_is_moved_goes_on_all_the_same(site: Site) -> None:
    ids = ids_of(site)
    reader, mine, other = await site.begin("r", *ids[:11])
    mine.emit("r", finish_reason="error", error=("engine_error", "it broke off"))
    site.change(site.place_of("r"), is_draining=True, must_move=True)
    await site.settle()
    assert other.sent[0].resume_token_ids == ids[:11]
    other.emit("r", *ids[11:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.reason) == (ANSWER, "length")


@pytest.mark.parametrize("exactness", [Exactness.TOKENS, Exactness.TEXT])
async def test_an_answer_with_a_form_stays_where_no_other_engine_could_go_on_with_it(
    site: Site, exactness: Exactness
) -> None:
    form = StructuredOutputsParams(json_object=True)
    reader, mine, other = await site.begin(
        "r", *ids_of(site, "{}"), params=params_of(structured_outputs=form)
    )
    other.exactness = exactness
    site.change(site.place_of("r"), is_draining=True, must_move=True)
    await site.settle()
    assert mine.aborted == [] == other.sent
    mine.emit("r", finish_reason="stop")
    await reader.task
    assert (reader.text, reader.reason) == ("{}", "stop")


async def test_an_answer_that_is_too_long_for_another_engine_stays_or_waits_for_its_own(
    site: Site,
) -> None:
    ids = ids_of(site)
    reader, mine, other = await site.begin("r", *ids[:11])
    assert other.ready is not None
    other.ready = msgspec.structs.replace(other.ready, max_model_len=10)
    other._enter(CoreState.READY, "")
    site.change(site.place_of("r"), is_draining=True, must_move=True)
    await site.settle()
    assert mine.aborted == [] == other.sent
    site.change(site.place_of("r"), is_draining=False, must_move=False)
    mine.die()
    await site.settle()
    assert other.sent == []
    mine.come()
    await site.settle()
    assert mine.sent[-1].resume_token_ids == ids[:11]
    mine.emit("r", *ids[11:], finish_reason="length")
    await reader.task
    assert reader.text == ANSWER


@pytest.mark.parametrize("number", [0, 11])
async def test_an_answer_that_an_added_engine_cannot_go_on_with_stays_or_waits_for_its_own(
    site: Site, number: int
) -> None:
    def check(params: SamplingParams) -> None:
        raise ValidationError("no penalties here", "presence_penalty")

    ids = ids_of(site)
    reader, mine, other = await site.begin("r", *ids[:number])
    other.check = check  # type: ignore[method-assign]  # it refuses all
    site.change(site.place_of("r"), is_draining=True, must_move=True)
    await site.settle()
    assert mine.aborted == [] == other.sent
    site.change(site.place_of("r"), is_draining=False, must_move=False)
    mine.die()
    await site.settle()
    assert other.sent == []
    mine.come()
    await site.settle()
    mine.emit("r", *ids[number:], finish_reason="length")
    await reader.task
    assert reader.text == ANSWER


async def test_an_engine_that_is_added_takes_answers(site: Site) -> None:
    site.add("c")
    await site.settle()
    for number in range(30):
        site.read(f"r{number}", session_id=f"s{number}")
    await site.settle()
    assert [len(site.links[name].sent) > 5 for name in "abc"] == [True] * 3


async def test_one_that_is_still_made_ready_is_not_asked(site: Site) -> None:
    site.add("c", options=None)
    assert [member.name for member in site.members] == ["a", "b"]
    site.change("c", options={})
    assert [member.name for member in site.members] == ["a", "b", "c"]
