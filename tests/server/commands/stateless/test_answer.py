"""One question, several answers: what is heard of them, and what ends them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from engine import CompletionOutput, RequestOutput
from engine.client.parsing.formats import grammar_of
from engine.errors import EngineDeadError, ValidationError
from server.commands.stateless.answer import AT_ONCE, StatelessAnswer
from server.commands.stateless.asked import Delta, Ended, Heard
from server.commands.stateless.choice import FAILED, Work
from server.engines.client import Logprob, ParsedArguments, ParsedBegin, ParsedEnd, SamplingParams
from server.generation.answers import Part
from tests.server.helpers.engines import IdleEngine


class Speaker(IdleEngine):
    """Says the words that it is given, or raises; it waits before words in `held`."""

    def __init__(self, *words: str, error: Exception | None = None) -> None:
        super().__init__()
        self._words, self._error = words, error
        self.may_go_on = asyncio.Event()
        self.held = ""
        self.asked: dict[str, SamplingParams] = {}
        self.prompts: dict[str, list[int]] = {}
        self.scores: Any = None
        self.aborted: list[str] = []
        self.ended: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **_: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        self.asked[request_id] = sampling_params
        self.prompts[request_id] = prompt["prompt_token_ids"]
        try:
            for number, word in enumerate(self._words):
                if word == self.held:
                    await self.may_go_on.wait()
                is_last = number == len(self._words) - 1
                reason: Any = "stop" if is_last else None
                answer = CompletionOutput(0, word, [number], finish_reason=reason)
                yield RequestOutput(request_id, None, None, self.scores, [answer], is_last)
            if self._error is not None:
                raise self._error
        finally:
            self.ended[request_id].set()

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


def answer_of(engine: IdleEngine, count: int = 1, **more: Any) -> StatelessAnswer:
    params = [SamplingParams(seed=number) for number in range(count)]
    settings: dict[str, Any] = {"tools": None, "is_parsed": True, "max_seconds": 0} | more
    return StatelessAnswer("resp_A", Work(engine, [[1, 2]], params, "salt", None, **settings))


async def heard_of(answer: StatelessAnswer) -> list[Heard]:
    return [heard async for heard in answer.events()]


def text_of(heard: Sequence[Heard], choice: int = 0) -> str:
    parts = [each.parts for each in heard if isinstance(each, Delta) and each.choice == choice]
    return "".join(part.text for each in parts for part in each if isinstance(part, Part))


async def test_all_that_is_said_is_heard_and_counted() -> None:
    answer = answer_of(Speaker("one ", "two ", "three"))
    heard = await heard_of(answer)
    assert text_of(heard) == "one two three" and heard[-1] == Ended(0, "stop")
    assert answer.num_output_tokens == 3


async def test_each_answer_has_a_seed_and_an_end_of_its_own() -> None:
    engine = Speaker("one ", "two")
    heard = await heard_of(answer_of(engine, 3))
    assert [text_of(heard, choice) for choice in range(3)] == ["one two"] * 3
    assert sorted(each.choice for each in heard if isinstance(each, Ended)) == [0, 1, 2]
    assert {name: params.seed for name, params in engine.asked.items()} == {
        f"resp_A-{number}": number for number in range(3)
    }


async def test_each_prompt_has_its_answers_in_its_place() -> None:
    engine = Speaker("one ", "two")
    params = [SamplingParams(seed=number) for _ in range(2) for number in range(2)]
    work = Work(engine, [[1, 2], [3]], params, "", None, None, is_parsed=False, max_seconds=0)
    answer = StatelessAnswer("resp_A", work)
    heard = await heard_of(answer)
    assert [text_of(heard, choice) for choice in range(4)] == ["one two"] * 4
    assert [answer.prompt_of(choice) for choice in range(4)] == [[1, 2], [1, 2], [3], [3]]
    assert [engine.prompts[f"resp_A-{number}"] for number in range(4)] == [[1, 2]] * 2 + [[3]] * 2
    assert (answer.num_prompt_tokens, answer.num_output_tokens) == (3, 8)


async def test_no_more_than_a_few_are_asked_for_at_once() -> None:
    engine = Speaker("one ", "two")
    engine.held = "one "
    params = [SamplingParams()] * (AT_ONCE + 1)
    prompts = [[1]] * len(params)
    work = Work(engine, prompts, params, "", None, None, is_parsed=False, max_seconds=0)
    events = StatelessAnswer("resp_A", work).events()
    first = asyncio.ensure_future(anext(events))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(engine.asked) == AT_ONCE
    engine.may_go_on.set()
    await first
    assert len([each async for each in events if isinstance(each, Ended)]) == len(params)


async def test_an_echo_comes_first_or_alone() -> None:
    for is_only, said in ((False, "Once one two"), (True, "Once ")):
        answer = answer_of(
            Speaker("one ", "two"), echoes=["Once "], is_only_echoed=is_only, is_parsed=False
        )
        assert text_of(await heard_of(answer)) == said
        assert answer.num_output_tokens == (0 if is_only else 2)


async def test_an_echo_says_how_likely_its_tokens_were() -> None:
    engine = Speaker("one")
    engine.scores = [None, {2: Logprob(-0.5, 9, "ce "), 7: Logprob(-0.25, 1, "x")}]
    params = [SamplingParams(prompt_logprobs=1)]
    work = Work(
        *(engine, [[1, 2]], params, "", None, None),
        is_parsed=False,
        max_seconds=0,
        echoes=["Once "],
    )
    echo, *_ = await heard_of(StatelessAnswer("resp_A", work))
    assert isinstance(echo, Delta) and echo.parts == [Part("Once ")] and echo.token_ids == ()
    assert echo.logprobs == [
        {"token": "<1>", "logprob": None, "top": None},
        {"token": "ce ", "logprob": -0.5, "top": [{"token": "x", "logprob": -0.25}]},
    ]


async def test_thoughts_and_calls_are_separated_from_text_where_the_model_has_such() -> None:
    written = ["<think>Hm.</think>", '<tool_call>{"name": "go", "arguments": {}}</tool_call>', "."]
    engine = Speaker(*written)
    engine.grammar = grammar_of("", name="hermes")
    heard = await heard_of(answer_of(engine, tools={"go": {}}))
    assert [part for each in heard if isinstance(each, Delta) for part in each.parts] == [
        Part("Hm.", is_reasoning=True),
        *(ParsedBegin(0, "call_0", "go"), ParsedArguments(0, "{}"), ParsedEnd(0, is_valid=True)),
        Part("."),
    ]
    assert heard[-1] == Ended(0, "tool_calls")
    plain = await heard_of(answer_of(Speaker(*written), is_parsed=False))
    assert text_of(plain) == "".join(written) and plain[-1] == Ended(0, "stop")


async def test_an_answer_that_must_call_has_no_text_when_its_call_is_cut() -> None:
    engine = Speaker("<think>Hm.</think>", '<tool_call>{"name": "g')
    engine.grammar = grammar_of("", name="hermes")
    heard = await heard_of(answer_of(engine, tools={"go": {}}, must_call=True))
    assert [part for each in heard if isinstance(each, Delta) for part in each.parts] == [
        Part("Hm.", is_reasoning=True)
    ]
    free = await heard_of(answer_of(engine, tools={"go": {}}))
    assert text_of(free).endswith('<tool_call>{"name": "g')


async def test_who_closes_it_ends_the_generation() -> None:
    engine = Speaker("one ", "two ", "three")
    engine.held = "two "
    events = answer_of(engine, 2).events()
    assert isinstance(await anext(events), Delta)
    await events.aclose()
    assert sorted(engine.aborted) == ["resp_A-0", "resp_A-1"]
    for name in engine.aborted:
        await engine.ended[name].wait()


async def test_who_hears_may_refuse_and_ends_the_generation() -> None:
    engine = Speaker("one ", "two")
    engine.held = "two"
    said: list[Heard] = []

    def hear(heard: Heard) -> None:
        said.append(heard)
        raise ValueError

    with pytest.raises(ValueError):
        await answer_of(engine, 2).tell(hear)
    assert len(said) == 1 and sorted(engine.aborted) == ["resp_A-0", "resp_A-1"]


async def test_an_answer_that_takes_too_long_is_aborted_with_what_it_has() -> None:
    engine = Speaker("one ", "two")
    engine.held = "two"
    heard = await heard_of(answer_of(engine, max_seconds=0.05))
    assert text_of(heard) == "one " and heard[-1] == Ended(0, "deadline")
    assert engine.aborted == ["resp_A-0"]


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (EngineDeadError("gone"), Ended(0, "error", problem=FAILED)),
        (
            ValidationError("that is no id", "prompt", 7),
            Ended(0, "refused", problem="that is no id", param="prompt"),
        ),
    ],
)
async def test_what_the_engine_raises_is_an_end(error: Exception, ended: Ended) -> None:
    assert await heard_of(answer_of(Speaker(error=error))) == [ended]


async def test_a_bug_is_an_end_too() -> None:
    (ended,) = await heard_of(answer_of(Speaker(error=KeyError("bug"))))
    assert ended == Ended(0, "error", problem="the server has failed")


async def test_the_end_of_the_worker_is_heard_by_who_reads() -> None:
    engine = Speaker("one ", "two")
    engine.held = "two"
    answer = answer_of(engine, 2)
    events = answer.events()
    heard: list[Heard] = [await anext(events)]
    answer.end("the server is restarting")
    heard += [each async for each in events]
    ends = [each for each in heard if isinstance(each, Ended)]
    assert ends == [Ended(n, "error", problem="the server is restarting") for n in range(2)]
    assert sorted(engine.aborted) == ["resp_A-0", "resp_A-1"]
