"""`Choice`: one answer of the engine, read until its end."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from server.commands.stateless.asked import Delta, Ended
from server.engines.client import (
    EngineClient,
    EngineError,
    Logprob,
    LoRARequest,
    ParsedEnd,
    RequestOutput,
    SamplingParams,
    ValidationError,
)
from server.generation.answers import AnswerReader, Part, Said, Tools
from server.generation.logprobs import prompt_logprobs, token_logprobs

logger = structlog.get_logger("server")

FAILED = "the engine has failed"
REFUSALS = frozenset(("grammar_refused", "unsupported_parameter", "invalid_request"))
ENDS = {"stop": "stop", "length": "length", "repetition": "length"}  # of the engine


@dataclass(frozen=True, slots=True)
class Work:
    """What the engine is asked, once for each answer: so many answers to the first prompt, then as
    many to the next.
    """

    engine: EngineClient
    prompts: Sequence[list[int]]
    params: Sequence[SamplingParams]  # of each answer
    cache_salt: str
    lora_request: LoRARequest | None
    tools: Tools | None  # that the model was offered
    is_parsed: bool  # whether thoughts and calls are separated from text
    max_seconds: float  # of an answer; 0: no limit
    must_call: bool = False  # the answers are held to calls
    echoes: Sequence[str] = ()  # what the answers begin with: the text of each prompt
    is_only_echoed: bool = False  # nothing follows it
    session_id: str | None = None  # what shares its keys and values

    def prompt_number(self, number: int) -> int:
        """The place of the prompt of the answer of this number."""
        return number * len(self.prompts) // len(self.params)


class Choice:
    """The answer of this number. `hear` takes what it says, in the turn in which it comes."""

    def __init__(
        self, number: int, request_id: str, work: Work, hear: Callable[[Delta], None]
    ) -> None:
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.num_prompt_tokens: int | None = None  # None: as many as the prompt has ids
        self._number = number
        self._request_id = request_id
        self._work = work
        self._hear = hear
        self._has_called = False
        self._prompt = work.prompts[work.prompt_number(number)]
        self._params = work.params[number]
        self._echo: str | None = None  # that was not said yet
        if work.echoes:
            self._echo = work.echoes[work.prompt_number(number)]
        self._reader: AnswerReader | None = None
        if work.is_parsed and not work.engine.answer_grammar.is_plain:
            self._reader = AnswerReader(
                work.engine, self._prompt, work.tools, must_call=work.must_call
            )

    async def produce(self) -> Ended:
        """Ask for it, and take all of it. Never raises for what the engine does."""
        try:
            async with asyncio.timeout(self._work.max_seconds or None):
                ended = await self._read()
        except TimeoutError:
            await self.abort()
            ended = Ended(self._number, "deadline")
        except ValidationError as error:
            param = error.parameter or ""
            ended = Ended(self._number, "refused", problem=f"{error}", param=param)
        except EngineError as error:
            logger.warning("generation failed", error=type(error).__name__, id=self._request_id)
            ended = Ended(self._number, "error", problem=FAILED)
        if self._reader is not None:
            self._take_parts(self._reader.finish(), (), ())
        is_call = self._has_called and ended.reason == "stop"
        return ended._replace(reason="tool_calls") if is_call else ended

    async def abort(self) -> None:
        """End it before its next token; no-op if it has ended."""
        await self._work.engine.abort(self._request_id)

    async def _read(self) -> Ended:
        work, ended = self._work, Ended(self._number, "error", problem=FAILED)
        if self._echo is not None and not self._is_scored:
            self._say_echo(())
        outputs = work.engine.generate(
            {"prompt_token_ids": self._prompt, "cache_salt": work.cache_salt},
            self._params,
            self._request_id,
            lora_request=work.lora_request,
            is_admitted=True,  # it was admitted before its prompt was made
            on_delta=None if self._is_scored else self._take,
            marks=None if self._reader is None else self._reader.marks,
            session_id=work.session_id,
        )
        async for output in outputs:
            if self._echo is not None and output.prompt_logprobs is not None:
                first = work.engine.get_tokenizer().decode(self._prompt[:1])
                scores = prompt_logprobs(output.prompt_logprobs, self._prompt, first)
                self._say_echo(scores)
            for answer in output.outputs:
                self._take(answer.text, answer.token_ids, answer.logprobs)
            if output.finished:
                ended = self._end_of(output)
        return ended

    @property
    def _is_scored(self) -> bool:
        """Whether the engine says how likely the prompt was; it has no callback for that."""
        return self._params.prompt_logprobs is not None

    def _say_echo(self, scores: Sequence[Mapping[str, Any]]) -> None:
        self._hear(Delta(self._number, [Part(self._echo or "")], (), scores))
        self._echo = None

    def _end_of(self, output: RequestOutput) -> Ended:
        self.num_cached_tokens = output.num_cached_tokens or 0
        if (counts := output.counts) is not None:  # of an engine whose tokens are not known here
            self.num_tokens, self.num_prompt_tokens = counts.num_output, counts.num_prompt
            self.num_cached_tokens = counts.num_cached
        answer = output.outputs[0]
        reason = ENDS.get(answer.finish_reason or "", "error")
        if reason != "error":
            return Ended(self._number, reason, answer.stop_reason)
        if output.error is None or output.error.code not in REFUSALS:
            return Ended(self._number, "error", problem=FAILED)
        param = "" if output.error.code == "invalid_request" else "structured_outputs"
        return Ended(self._number, "refused", problem=output.error.message, param=param)

    def _take(
        self,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[Mapping[int, Logprob]] | None = None,
    ) -> None:
        if self._work.is_only_echoed:
            return
        self.num_tokens += len(token_ids)
        parts: Sequence[Said]
        if self._reader is not None:
            parts = self._reader.feed(text)
        else:
            parts = [Part(text)] if text else []
        self._take_parts(parts, token_ids, token_logprobs(logprobs, token_ids))

    def _take_parts(
        self,
        parts: Sequence[Said],
        token_ids: Sequence[int],
        logprobs: Sequence[Mapping[str, object]],
    ) -> None:
        self._has_called |= any(isinstance(part, ParsedEnd) and part.is_valid for part in parts)
        if parts or token_ids:
            self._hear(Delta(self._number, parts, token_ids, logprobs))
