"""An engine over another link than the socket of a core: all above the link stays the same."""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.client.async_llm import AsyncLLM
from engine.client.requests.core_link import CoreListener, CoreState, Exactness
from engine.errors import EngineGenerateError, ValidationError
from engine.ipc import AddRequest, ClientMessage, Ready, SchedulerStats, SequenceOutput
from engine.sampling_params import SamplingParams
from tests.engine.helpers.connected_engine import DELTA, PROMPT, A, B, C, texts
from tests.engine.helpers.scripted_core import ScriptedCore, make_ready


class ScriptedLink:
    """A link to no core at all, which says what a test lets it say.

    It is joined from the start. `refusal` is what it raises for each request, if it is set.
    """

    exactness = Exactness.TOKENS

    def __init__(self) -> None:
        self.state = CoreState.READY
        self.ready: Ready | None = make_ready()
        self.stats: SchedulerStats | None = None
        self.heard_at: float | None = None
        self.refusal: ValidationError | None = None
        self.sent: list[AddRequest] = []
        self.aborted: list[str] = []
        self.is_closed = False
        self._listener: CoreListener | None = None

    def listen(self, listener: CoreListener) -> None:
        self._listener = listener

    def attach(self) -> None:
        pass

    def send(self, message: ClientMessage) -> bool:
        assert isinstance(message, AddRequest)
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(message)
        return self.ready is not None

    def check(self, params: SamplingParams) -> None:
        pass

    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> None:
        self.aborted += request_ids

    def call(self, name: str, *args: Any) -> Awaitable[Any]:
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(EngineGenerateError(f"no {name} here"))
        return answer

    async def wait_ready(self) -> None:
        pass

    def core_has_exited(self) -> bool:
        return self.ready is None

    def close(self) -> None:
        self.is_closed = True

    # ---- for the test

    def emit(self, *token_ids: int, **more: Any) -> None:
        """Tokens for the latest request."""
        assert self._listener is not None
        output = SequenceOutput(self.sent[-1].request_id, list(token_ids), **more)
        self._listener.on_core_outputs([output])

    def tell_silence(self, *request_ids: str) -> None:
        assert self._listener is not None
        self._listener.on_core_silent(request_ids)

    def replace(self) -> None:
        """The core dies, and the next one is there at once."""
        assert self._listener is not None and self.ready is not None
        epoch = self.ready.epoch + 1
        self.ready, self.state = None, CoreState.DEAD
        self._listener.on_core_state(self.state, "it died")
        self.ready, self.state = make_ready(epoch=epoch), CoreState.READY
        self._listener.on_core_state(self.state, "")


@pytest.fixture
def link() -> ScriptedLink:
    return ScriptedLink()


@pytest.fixture
def engine(link: ScriptedLink, model: Path) -> Iterator[AsyncLLM]:
    engine = AsyncLLM.connect(link, model=str(model))
    yield engine
    engine.shutdown()
    assert link.is_closed


async def test_an_answer_goes_on_over_any_link_after_its_core_has_died(
    engine: AsyncLLM, link: ScriptedLink
) -> None:
    stream = await engine.add_request("r", PROMPT, DELTA)
    link.emit(A, B)
    link.replace()
    assert [each.resume_token_ids for each in link.sent] == [[], [A, B]]
    link.emit(C, finish_reason="length")
    assert texts([output async for output in stream]) == "abc"


async def test_the_engine_tells_how_exactly_its_link_lets_an_answer_go_on(
    engine: AsyncLLM, core: ScriptedCore, model: Path
) -> None:
    assert engine.exactness is Exactness.TOKENS
    native = AsyncLLM.connect(core.address, model=str(model))
    assert native.exactness is Exactness.EXACT
    native.shutdown()


async def test_what_a_link_refuses_is_refused_by_name_and_leaves_nothing_open(
    engine: AsyncLLM, link: ScriptedLink
) -> None:
    link.refusal = ValidationError("this engine has no such thing", "logit_bias")
    with pytest.raises(ValidationError, match="no such thing") as refused:
        await engine.add_request("r", PROMPT, DELTA)
    assert refused.value.parameter == "logit_bias"
    assert engine.get_num_unfinished_requests() == 0


async def test_an_answer_that_the_next_core_refuses_ends_with_what_it_has(
    engine: AsyncLLM, link: ScriptedLink
) -> None:
    stream = await engine.add_request("r", PROMPT, DELTA)
    link.emit(A)
    link.refusal = ValidationError("this engine has no such thing", "logit_bias")
    link.replace()
    outputs = [output async for output in stream]
    assert texts(outputs) == "a"
    assert outputs[-1].outputs[0].finish_reason == "error"
    assert outputs[-1].error is not None and "no such thing" in outputs[-1].error.message


async def test_an_answer_of_which_nobody_will_say_that_it_has_ended_ends_at_once(
    engine: AsyncLLM, link: ScriptedLink
) -> None:
    stream = await engine.add_request("r", PROMPT, DELTA)
    other = await engine.add_request("other", PROMPT, DELTA)
    await engine.abort("r")
    link.tell_silence(*link.aborted, link.sent[-1].request_id, "unknown")
    (last,) = [output async for output in stream]
    assert last.outputs[0].finish_reason == "abort"
    assert last.metrics is not None and not last.metrics.core_confirmed
    link.emit(A, finish_reason="length")  # nobody has asked that one to end
    assert texts([output async for output in other]) == "a"


async def test_a_utility_that_an_engine_lacks_is_an_error_of_the_call_alone(
    engine: AsyncLLM,
) -> None:
    with pytest.raises(EngineGenerateError, match="no pause here"):
        await engine.pause_generation()
    assert engine.is_ready
