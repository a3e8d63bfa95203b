"""An answer of an engine of texts breaks off: it goes on after its text, or is over."""

import asyncio

import pytest

from server.engines.client import (
    CANNOT_CONTINUE,
    Exactness,
    SamplingParams,
    TokenCounts,
)
from server.engines.textual.ids import encode_answer
from tests.server.engines.textual.asking import HASTY, HELLO, Open
from tests.server.engines.textual.stand_in import (
    DONE,
    Reply,
    StandIn,
    broken,
    chunk,
    said,
    usage,
)


async def test_an_answer_that_breaks_off_goes_on_after_its_text(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    assert asker.engine.exactness is Exactness.TEXT
    stand_in.replies += [broken("One, ", "two"), broken(", three"), said(", four.")]
    last = await asker.ask()
    assert asker.text == "One, two, three, four."
    assert last.outputs[0].finish_reason == "stop"
    assert last.metrics is not None and last.metrics.num_resubmits == 2
    second, third = stand_in.asked[1:]
    assert second["messages"] == [*HELLO, {"role": "assistant", "content": "One, two"}]
    assert third["messages"][-1]["content"] == "One, two, three"
    assert second["continue_final_message"] is True
    assert second["add_generation_prompt"] is False
    assert second["max_tokens"] < 100


async def test_white_space_at_the_seam_is_neither_lost_nor_said_twice(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies += [broken("One.\n"), broken("\n", "\n"), said("\n", "\n", "Two")]
    await asker.ask()
    assert asker.text == "One.\n\nTwo"
    assert [asked["messages"][-1]["content"] for asked in stand_in.asked[1:]] == ["One.", "One."]


@pytest.mark.parametrize("server", ["vllm", "system"])
@pytest.mark.parametrize("fault", ["cut", "silent", "broken"])
async def test_an_answer_that_the_engine_has_ended_has_ended_whatever_follows(
    open_engine: Open, server: str, fault: str
) -> None:
    stand_in = StandIn(server=server)
    asker = await open_engine(stand_in, patience=HASTY)
    rests: dict[str, list[bytes | asyncio.Event]] = {
        "cut": [],
        "silent": [asyncio.Event()],
        "broken": [b"data: {\n\n", DONE],
    }
    pieces = [chunk("One."), chunk(reason="stop"), *rests[fault]]
    stand_in.replies.append(Reply(pieces, is_cut=True))
    last = await asker.ask()
    assert (asker.text, last.outputs[0].finish_reason, last.error) == ("One.", "stop", None)
    assert len(stand_in.asked) == 1


async def test_an_engine_that_breaks_off_after_each_word_comes_to_an_end(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies += [broken(f"{number} ") for number in range(100)]
    last = await asker.ask(params={"max_tokens": 5})
    assert last.outputs[0].finish_reason == "error"
    assert len(stand_in.asked) < 10


async def test_an_engine_that_goes_on_with_no_answer_leaves_it_incomplete(
    open_engine: Open,
) -> None:
    stand_in = StandIn(server="system")
    asker = await open_engine(stand_in)
    assert asker.engine.exactness is Exactness.NONE
    stand_in.replies.append(broken("One, "))
    last = await asker.ask()
    assert asker.text == "One, "
    assert last.error is not None and last.error.code == CANNOT_CONTINUE
    assert len(stand_in.asked) == 1


@pytest.mark.parametrize("is_in_form", [True, False])
async def test_thoughts_and_forms_do_not_go_on_in_the_middle(
    open_engine: Open, is_in_form: bool
) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    pieces = [chunk('{"a"')] if is_in_form else [chunk(reasoning_content="Hm"), chunk("One")]
    stand_in.replies.append(Reply(pieces, is_cut=True))
    form = asker.engine.call_form({}) if is_in_form else None
    last = await asker.ask(params={"structured_outputs": form})
    assert last.error is not None and last.error.code == CANNOT_CONTINUE


async def test_an_answer_of_another_worker_goes_on_after_its_text(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies.append(Reply([chunk("two."), chunk(reason="stop"), usage(30, 1), DONE]))
    shown = encode_answer("One, ")
    last = await asker.ask(resume_token_ids=shown)
    assert asker.text == "two."
    assert stand_in.asked[0]["messages"][-1] == {"role": "assistant", "content": "One,"}
    assert last.counts == TokenCounts(30 - len(shown), 0, 1 + len(shown))
    assert asker.engine.resumed_text([], SamplingParams(), shown) == "One, "


async def test_an_answer_that_a_user_continues_goes_on_after_its_text(open_engine: Open) -> None:
    stand_in = StandIn(server="llamacpp")
    asker = await open_engine(stand_in)
    stand_in.replies.append(said(" two."))
    await asker.ask("One,")
    (asked,) = stand_in.asked
    assert asked["messages"] == [*HELLO, {"role": "assistant", "content": "One,"}]
    assert "continue_final_message" not in asked
    assert asker.text == " two."
