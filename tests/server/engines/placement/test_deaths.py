"""An engine of a group dies: its answers go on at another one, but no answer kills a third."""

import asyncio
from typing import Any

import pytest

from server.engines.client import (
    STOPPED,
    CoreState,
    RequestOutputKind,
)
from server.engines.placement import moving
from tests.helpers.patience import PATIENCE
from tests.server.helpers.scripted_links import ANSWER, PROMPT, Site, ids_of, params_of


@pytest.mark.parametrize("cut", range(0, 40, 3))
async def test_an_answer_goes_on_at_another_engine_after_any_token_with_the_same_text(
    site: Site, cut: int
) -> None:
    ids = ids_of(site)
    reader = site.read("r")
    await site.settle()
    dying, other = site.at("r")
    for token_id in ids[:cut]:
        dying.emit("r", token_id)
        await site.settle()
    assert ANSWER.startswith(reader.text.rstrip("\ufffd")) and "\ufffd" not in reader.text
    dying.die()
    await site.settle()
    (again,) = other.sent
    assert (again.prompt_token_ids, again.resume_token_ids) == (PROMPT, ids[:cut])
    assert (again.params, again.is_admitted) == (dying.sent[0].params, True)
    other.emit("r", *ids[cut:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.token_ids, reader.reason) == (ANSWER, ids, "length")
    assert reader.num_restarts == 1


async def test_what_is_read_without_a_callback_goes_on_as_well(site: Site) -> None:
    ids = ids_of(site)
    reader, dying, other = await site.begin("r", *ids[:9], on_delta=False)
    dying.die()
    await site.settle()
    other.emit("r", *ids[9:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.token_ids) == (ANSWER, ids)


async def test_half_a_stop_string_is_held_back_from_one_engine_to_the_next(site: Site) -> None:
    ids = ids_of(site, "so it ends never here")
    cut = next(n for n in range(len(ids)) if site.tokenizer.decode(ids[:n]).endswith("ends"))
    params = params_of(stop=["ends here"])
    reader, dying, other = await site.begin("r", *ids[:cut], params=params)
    assert reader.text == "so it "
    dying.die()
    await site.settle()
    assert reader.text == "so it "
    rest = ids_of(site, " here")
    other.emit("r", *rest)
    await reader.task
    assert (reader.text, reader.reason) == ("so it ", "stop")


async def test_an_answer_that_another_worker_has_begun_goes_on_after_its_tokens(
    site: Site,
) -> None:
    ids = ids_of(site)
    reader, dying, other = await site.begin("r", *ids[7:12], resume_token_ids=ids[:7])
    dying.die()
    await site.settle()
    assert other.sent[0].resume_token_ids == ids[:12]
    other.emit("r", *ids[12:], finish_reason="length")
    await reader.task
    shown = site.group.resumed_text(PROMPT, params_of(), ids[:7])
    assert shown + reader.text == ANSWER
    assert reader.token_ids == ids[7:]


async def test_answers_go_on_with_the_numbers_that_they_were_begun_with(site: Site) -> None:
    site.read("r")
    await site.settle()
    dying, other = site.at("r")
    dying.die()
    await site.settle()
    seeds = {sent.params.seed for sent in [*dying.sent, *other.sent]}
    assert len(seeds) == 1 and None not in seeds


async def test_all_answers_of_an_engine_that_dies_go_on_and_those_of_the_others_are_left_alone(
    site: Site,
) -> None:
    ids = ids_of(site)
    readers = {f"r{n}": site.read(f"r{n}", session_id=f"s{n}") for n in range(20)}
    await site.settle()
    dying, other = site.links["a"], site.links["b"]
    num_there, num_elsewhere = len(dying.sent), len(other.sent)
    assert min(num_there, num_elsewhere) > 5
    for name in readers:
        (dying if dying.ids(name) else other).emit(name, *ids[:5])
    await site.settle()
    dying.die()
    await site.settle()
    assert len(other.sent) == 20 and other.aborted == []
    for name in readers:
        other.emit(name, *ids[5:], finish_reason="length")
    await asyncio.gather(*(reader.task for reader in readers.values()))
    assert {reader.text for reader in readers.values()} == {ANSWER}
    restarts = [reader.num_restarts for reader in readers.values()]
    assert (restarts.count(1), restarts.count(0)) == (num_there, num_elsewhere)
    assert [member.num_moved for member in site.members] == [num_there, 0]


async def test_an_answer_stays_with_its_engine_while_there_is_no_other(site: Site) -> None:
    ids = ids_of(site)
    reader, dying, other = await site.begin("r", *ids[:4])
    other.die()
    dying.die()
    await site.settle()
    assert site.states == [CoreState.READY, CoreState.DEAD] and not site.group.is_ready
    dying.come()
    await site.settle()
    assert dying.sent[-1].resume_token_ids == ids[:4] and other.sent == []
    dying.emit("r", *ids[4:], finish_reason="length")
    await reader.task
    assert (reader.text, reader.num_restarts) == (ANSWER, 1)
    assert site.states == [CoreState.READY, CoreState.DEAD, CoreState.READY]


async def test_an_answer_that_waits_goes_to_the_first_engine_that_comes(site: Site) -> None:
    ids = ids_of(site)
    reader, dying, other = await site.begin("r", *ids[:4])
    other.die()
    dying.die()
    await site.settle()
    other.come()
    await site.settle()
    assert other.sent[0].resume_token_ids == ids[:4]
    dying.come()
    await site.settle()
    assert len(dying.sent) == 1
    other.emit("r", *ids[4:], finish_reason="length")
    await reader.task
    assert reader.text == ANSWER


async def test_an_answer_that_kills_two_engines_kills_no_third() -> None:
    site = Site("abc")
    await site.settle()
    reader = site.read("deadly")
    await site.settle()
    first, _ = site.at("deadly")
    first.die()
    await site.settle()
    second, _ = site.at("deadly")
    second.die()
    await reader.task
    assert (reader.reason, reader.text) == ("error", "")
    assert reader.end is not None and reader.end.error is not None
    assert "2 engines died" in reader.end.error.message
    assert sum(len(link.sent) for link in site.links.values()) == 2
    site.close()


async def test_engines_that_are_told_to_end_make_no_answer_a_suspect(site: Site) -> None:
    ids = ids_of(site)
    readers = [site.read(name) for name in ("r", "s")]
    await site.settle()
    for _ in range(2):  # before any token
        for name in "ab":
            site.links[name].die(STOPPED)
            await site.settle()
            site.links[name].come()
            await site.settle()
    for name in ("r", "s"):
        site.at(name)[0].emit(name, *ids, finish_reason="length")
    await asyncio.gather(*(reader.task for reader in readers))
    assert [reader.text for reader in readers] == [ANSWER] * 2


async def test_suspects_are_tried_one_by_one_after_all_that_are_harmless(site: Site) -> None:
    ids = ids_of(site)
    dying, other = site.links["a"], site.links["b"]
    other.die()
    readers = {name: site.read(name) for name in ("deadly", "poor", "fine")}
    await site.settle()
    dying.emit("fine", ids[0])
    await site.settle()
    other.come()
    dying.die()
    await site.settle()
    assert [sent.request_id.split("-")[0] for sent in other.sent] == ["fine"]
    other.emit("fine", ids[1])
    await site.settle()
    assert len(other.sent) == 2  # one suspect, alone
    suspect = other.sent[1].request_id.split("-")[0]
    other.emit(suspect, ids[0])
    await site.settle()
    assert {sent.request_id.split("-")[0] for sent in other.sent} == set(readers)


async def test_suspects_that_have_waited_for_an_engine_are_tried_one_by_one_too(
    site: Site,
) -> None:
    dying, other = site.links["a"], site.links["b"]
    other.die()
    for name in ("deadly", "poor"):
        site.read(name)
    await site.settle()
    other.come()
    dying.die()
    other.die()
    await site.settle()
    assert other.sent == []
    other.come()
    await site.settle()
    (tried,) = other.sent
    other.emit(tried.request_id.split("-")[0], ids_of(site)[0])
    await site.settle()
    assert len(other.sent) == 2


async def test_a_suspect_does_not_wait_for_ever_for_one_that_stands_still(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "MAX_GAP_SECONDS", 0.05)
    dying, other = site.links["a"], site.links["b"]
    other.die()
    readers = {name: site.read(name) for name in ("still", "poor")}
    await site.settle()
    other.come()
    dying.die()
    await site.settle()
    assert len(other.sent) == 1
    async with asyncio.timeout(PATIENCE):
        while len(other.sent) < 2:  # noqa: ASYNC110  (a condition of a plain object)
            await asyncio.sleep(0.01)
    last = other.sent[1].request_id.split("-")[0]
    other.emit(last, *ids_of(site), finish_reason="length")
    await readers[last].task
    assert readers[last].text == ANSWER


async def test_one_that_only_waited_its_turn_is_no_suspect(site: Site) -> None:
    site.links["b"].die()
    site.read("waiting")
    site.read("suspect")
    await site.settle()
    dying, other = site.links["a"], site.links["b"]
    dying.emit("waiting", queue_position=1)
    await site.settle()
    other.come()
    dying.die()
    await site.settle()
    assert [sent.request_id.split("-")[0] for sent in other.sent] == ["waiting"]


async def test_what_cannot_be_joined_stays_with_its_engine(site: Site) -> None:
    cases: dict[str, dict[str, Any]] = {
        "n": {"n": 2},
        "whole": {"output_kind": RequestOutputKind.FINAL_ONLY},
        "scored": {"prompt_logprobs": 1},
    }
    for name, fields in cases.items():
        site.read(name, on_delta=False, params=params_of(**fields))
    await site.settle()
    for name in cases:
        assert not site.at(name)[1].ids(name)
    for link in site.links.values():
        link.die()
        link.come()
    await site.settle()
    for name in cases:
        assert not site.at(name)[1].ids(name)


async def test_what_stays_with_its_engine_goes_on_there_after_each_death_that_followed_a_token(
    site: Site,
) -> None:
    reader = site.read("r", on_delta=False, params=params_of(n=2))
    await site.settle()
    mine, _ = site.at("r")
    for token_id in ids_of(site)[:3]:
        for child in ("0_r", "1_r"):
            mine.emit(child, token_id)
        await site.settle()
        mine.die()
        mine.come()
        await site.settle()
    for child in ("0_r", "1_r"):
        mine.emit(child, finish_reason="length")
    await reader.task
    assert reader.end is not None and reader.end.error is None
    assert {each.finish_reason for each in reader.end.outputs} == {"length"}
