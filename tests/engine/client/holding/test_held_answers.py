"""Held answers of a real core: calls after so many thoughts, and the same text after its death."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams, ValidationError
from engine.client.parsing.events import CallArguments, CallBegin, CallEnd, ReasoningDelta
from engine.client.parsing.formats import grammar_of
from engine.client.parsing.parser import AnswerParser
from tests.engine.test_real_core import Supervised
from tests.helpers.patience import PATIENCE
from tests.helpers.tiny_model import build_tiny_model, give_marks

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
BUDGET = 9
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 12, "maxLength": 16}},
    "required": ["city"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
TOOLS: dict[str, dict[str, Any]] = {"weather": CITY, "map": CITY}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return give_marks(build_tiny_model(tmp_path_factory.mktemp("held")), MARKS)


@pytest.fixture
async def supervised(folder: Path) -> AsyncIterator[Supervised]:
    arguments = AsyncEngineArgs(str(folder), num_gpu_blocks_override=300, threads=1, pace=60)
    supervised = Supervised(arguments, stall_seconds=PATIENCE)
    await supervised.wait_ready()
    yield supervised
    supervised.close()


def ask(engine: AsyncLLM, number: int, resume: list[int] | None = None) -> Any:
    """A stream of tokens; every other prompt has begun a thought."""
    prompt = engine.tokenizer.encode("Hello" + "<think>" * (number % 2))
    params = SamplingParams(
        structured_outputs=engine.call_form(TOOLS, ("map", None)[number // 2], prompt),
        thinking_token_budget=BUDGET,
        temperature=1.0,
        logit_bias={0: 9.0},  # to end where it may
        seed=number,
        max_tokens=300,
        output_kind=RequestOutputKind.DELTA,
    )
    name = f"{number} {len(resume or ())}"
    return engine.generate(prompt, params, name, resume_token_ids=resume)


async def tokens_of(stream: Any) -> list[int]:
    found: list[int] = []
    async for output in stream:
        found += output.outputs[0].token_ids
    assert output.outputs[0].finish_reason == "stop", output
    return found


def check(engine: AsyncLLM, number: int, ids: list[int]) -> None:
    """It thinks no more than it may, and calls."""
    grammar = engine.answer_grammar
    begin, end = (engine.tokenizer.encode(each)[0] for each in MARKS[:2])
    has_thought = number % 2 or ids[0] == begin
    assert has_thought == (end in ids) and (not has_thought or ids.index(end) <= BUDGET + 1)
    prompt = engine.tokenizer.encode("Hello" + "<think>" * (number % 2))
    parser = AnswerParser(grammar, tools=TOOLS, prompt=engine.prompt_end(prompt, grammar.marks))
    text = engine.resumed_text(prompt, SamplingParams(), ids, grammar.marks)
    events = [*parser.feed(text), *parser.finish()]
    names = [each.name for each in events if isinstance(each, CallBegin)]
    assert names == ["map"] if number < 2 else set(names) <= TOOLS.keys()
    assert all(each.is_valid for each in events if isinstance(each, CallEnd))
    kinds = (CallBegin, CallArguments, CallEnd, ReasoningDelta)
    assert names and all(isinstance(each, kinds) for each in events)


async def test_they_are_the_same_after_the_death_of_a_core_and_where_they_are_resumed(
    supervised: Supervised,
) -> None:
    engine = supervised.engine
    assert engine.answer_grammar.format.name == "hermes"
    expected = await asyncio.gather(*(tokens_of(ask(engine, number)) for number in range(4)))
    for number, ids in enumerate(expected):
        check(engine, number, ids)

    streams = [ask(engine, number) for number in range(4)]
    begun = [[*(await anext(stream)).outputs[0].token_ids] for stream in streams]
    supervised.core.process.kill()
    rest = [asyncio.ensure_future(tokens_of(stream)) for stream in streams]
    await supervised.replace()
    whole = [first + more for first, more in zip(begun, await asyncio.gather(*rest), strict=True)]
    assert whole == expected

    beginnings = [
        (number, ids[:cut])
        for number, ids in enumerate(expected)
        for cut in (1, BUDGET // 2, BUDGET, len(ids) - 2)
    ]
    ends = await asyncio.gather(*(tokens_of(ask(engine, *each)) for each in beginnings))
    for (number, beginning), end in zip(beginnings, ends, strict=True):
        assert beginning + end == expected[number]


async def test_what_cannot_be_held_is_refused_before_anything_is_sent(
    supervised: Supervised,
) -> None:
    engine = supervised.engine
    with pytest.raises(ValidationError, match="no tool"):
        engine.call_form(TOOLS, "other")
    vars(engine)["answer_grammar"] = grammar_of("", name="llama")
    with pytest.raises(ValidationError, match="llama, has no thoughts"):
        await engine.add_request("r", [5], SamplingParams(thinking_token_budget=3))
    assert engine.get_num_unfinished_requests() == 0


async def test_a_schema_that_no_grammar_holds_ends_the_answer_by_name(
    supervised: Supervised,
) -> None:
    engine = supervised.engine
    form = engine.call_form({"f": {"properties": {"a": {"type": "array", "uniqueItems": True}}}})
    params = SamplingParams(structured_outputs=form, max_tokens=5)
    (output,) = [output async for output in engine.generate([5], params, "r")]
    assert output.error is not None and output.error.code == "grammar_refused"
    assert "uniqueItems" in output.error.message


async def test_each_of_several_answers_has_its_own_thoughts(supervised: Supervised) -> None:
    engine = supervised.engine
    prompt = engine.tokenizer.encode("Hello<think>")
    params = SamplingParams(
        n=3, thinking_token_budget=2, temperature=1.0, seed=1, max_tokens=12, ignore_eos=True
    )
    (end,) = engine.tokenizer.encode("</think>")
    outputs = [output async for output in engine.generate(prompt, params, "r")]
    answers = [answer.token_ids for answer in outputs[-1].outputs]
    texts = {tuple(ids) for ids in answers}
    assert len(texts) == len(answers) and all(end in list(ids)[:3] for ids in answers)
