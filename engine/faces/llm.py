"""`LLM`: answers to many prompts at once, without an event loop.

    with LLM(model="folder or hub id") as llm:
        for output in llm.generate(["Once upon", "Long ago"], SamplingParams(max_tokens=50)):
            print(output.outputs[0].text)

Call-compatible with vLLM's class of the same name. A call returns when all its prompts are done, in
their order; Ctrl-C ends it, and nothing of it runs on.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from engine.beam_search import BeamSearchParams
from engine.client.args import AsyncEngineArgs, EngineArgs
from engine.client.requests.inputs import Prompt
from engine.client.results.generation_result import GenerationResult
from engine.errors import ValidationError, refuse
from engine.faces.beams import BeamSearchOutput, whole_sequences
from engine.faces.blocking_calls import BlockingCalls
from engine.faces.llm_engine import LLMEngine
from engine.faces.progress import Progress, UseTqdm
from engine.faces.scores import pairs, similarity
from engine.outputs import RequestOutput
from engine.pooling import PoolingParams, PoolingRequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams

T = TypeVar("T")
Message = dict[str, Any]


class LLM(BlockingCalls):
    """An engine for batches. `shutdown`, or the end of its `with`, ends it.

    For one thread at a time. A program that forgets `shutdown()` still ends and leaves no child.
    """

    def __init__(self, model: str, **options: Any) -> None:
        """Start a core and block until it takes requests.

        `options` are those of `AsyncEngineArgs`; `disable_log_stats` is True by default. Errors are
        `AsyncLLM.from_engine_args`'s.
        """
        self._begin(AsyncEngineArgs(model, **({"disable_log_stats": True} | options)))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """As the constructor, for arguments that a program has already."""
        llm = cls.__new__(cls)
        llm._begin(engine_args)
        return llm

    def _begin(self, engine_args: EngineArgs) -> None:
        self.llm_engine = LLMEngine.from_engine_args(engine_args)
        super().__init__(self.llm_engine._engine, self.llm_engine._thread)
        self._ids = itertools.count()

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine and its core, as `AsyncLLM.shutdown` does. Idempotent."""
        self.llm_engine.shutdown(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    # ---- answers

    def get_default_sampling_params(self) -> SamplingParams:
        """Those of a call that gives none: no checkpoint changes them."""
        return SamplingParams()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The answers to one prompt or to several, in their order.

        A list of ids is one prompt. Parameters and adapters are one for all, or a list with one for
        each prompt. A request that fails has an output with finish reason "error". Raises what
        `AsyncLLM.add_request` raises, for the first prompt that it refuses, and ends the others.
        """
        many = _as_list(prompts)
        params = _for_each("sampling_params", sampling_params or SamplingParams(), len(many))
        final = [
            msgspec.structs.replace(each, output_kind=RequestOutputKind.FINAL_ONLY)
            if isinstance(each, SamplingParams)
            else each
            for each in params
        ]
        return self._ask_all(
            many, final, use_tqdm, lora_request, priority, tokenization_kwargs, "Processed prompts"
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The next answers in one conversation or in several, by the checkpoint's template.

        With `continue_final_message`, which excludes `add_generation_prompt`, the last message is
        the beginning of the answer. Contents are text. Another `chat_template` is refused.
        """
        # The process that renders templates is started with the checkpoint's, and knows no other.
        if chat_template is not None:
            raise NotImplementedError("chat_template is not implemented: the checkpoint's is used")
        if chat_template_content_format not in ("auto", "string"):
            raise NotImplementedError(
                f"chat_template_content_format={chat_template_content_format!r} is not implemented"
            )
        if continue_final_message and add_generation_prompt:
            problem = "continue_final_message and add_generation_prompt exclude each other"
            raise ValidationError(problem, "continue_final_message", True)
        variables = dict(chat_template_kwargs or {})
        if tools is not None:
            variables["tools"] = tools
        variables["add_generation_prompt"] = add_generation_prompt or continue_final_message
        conversations = [list(each) for each in _conversations(messages)]
        answers = [_begun_answer(each) if continue_final_message else "" for each in conversations]
        tokenizer = self.get_tokenizer()
        prompts = [
            tokenizer.chat_token_ids(conversation, answer, **variables)
            for conversation, answer in zip(conversations, answers, strict=True)
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: Any = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[BeamSearchOutput]:
        """The best answers to each prompt that `AsyncLLM.beam_search` finds, in their order.

        `sequences` of each has them, the best first; their tokens begin with the prompt's. At most
        `concurrency_limit` searches run at a time. Adapters and priorities are as in `generate`.
        """
        many = _as_list(prompts)
        adapters = _for_each("lora_request", lora_request, len(many))
        priorities = _for_each("priority", priority or 0, len(many))
        if concurrency_limit is not None and concurrency_limit < 1:
            raise refuse("concurrency_limit", concurrency_limit, "must be at least 1")
        room = asyncio.Semaphore(concurrency_limit or max(1, len(many)))

        async def search(index: int) -> RequestOutput:
            async with room:
                outputs = self._engine.beam_search(
                    many[index],
                    str(next(self._ids)),
                    params,
                    adapters[index],
                    priority=priorities[index],
                    is_admitted=True,
                )
                async with contextlib.aclosing(outputs):
                    return await anext(outputs)

        found = self._gather(search, len(many), use_tqdm, "Beam search")
        return [whole_sequences(output, params, self.tokenizer) for output in found]

    def generate_async(
        self,
        inputs: Prompt,
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        *,
        priority: int = 0,
    ) -> GenerationResult:
        """TensorRT-LLM's way to ask: see `GenerationResult`. Any event loop may await it, or none.

        A `LLM` that is shut down meanwhile makes its readers raise `EngineDeadError`.
        """
        return self._engine.generate_async(
            inputs,
            sampling_params,
            lora_request,
            prompt_adapter_request,
            streaming,
            priority=priority,
            loop=self._thread.loop,
        )

    # ---- vectors, classes, scores

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        pooling_task: str | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[PoolingRequestOutput]:
        """What `AsyncLLM.encode` yields for each prompt. `pooling_task` fills an absent `task`."""
        many = _as_list(prompts)
        params = [
            _with_task(each, pooling_task)
            for each in _for_each("pooling_params", pooling_params or PoolingParams(), len(many))
        ]
        return self._ask_all(
            many, params, use_tqdm, lora_request, None, tokenization_kwargs, "Processed prompts"
        )

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[PoolingRequestOutput]:
        """The embeddings of prompts: `outputs.embedding` of each is a list of floats."""
        return self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            pooling_task="embed",
            tokenization_kwargs=tokenization_kwargs,
        )

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[PoolingRequestOutput]:
        """The classes of prompts, by a checkpoint for that: `outputs.probs` has one for each."""
        return self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            pooling_task="classify",
            tokenization_kwargs=tokenization_kwargs,
        )

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: Any = None,
    ) -> list[PoolingRequestOutput]:
        """How well texts go together, one with each of several or pair by pair: `outputs.score`.

        A checkpoint that classifies into one class reads both texts of a pair as one prompt; one
        with more classes refuses. Of any other model it is the cosine of the two embeddings.
        """
        both = pairs(data_1, data_2)
        options: dict[str, Any] = {"use_tqdm": use_tqdm, "lora_request": lora_request}
        if "classify" in self.get_supported_tasks():
            prompts = [self.tokenizer.encode_pair(*pair) for pair in both]
            return self.encode(prompts, pooling_params, pooling_task="score", **options)
        texts = list(dict.fromkeys(text for pair in both for text in pair))
        embedded = self.embed(texts, pooling_params=pooling_params, **options)
        by_text = dict(zip(texts, embedded, strict=True))
        return [similarity(by_text[one], by_text[other]) for one, other in both]

    # ---- helpers

    def _ask_all(
        self,
        prompts: list[Any],
        params: list[Any],
        use_tqdm: UseTqdm,
        lora_request: Any,
        priority: Sequence[int] | None,
        tokenization_kwargs: dict[str, Any] | None,
        what: str,
    ) -> list[Any]:
        """The last output of each prompt, in their order."""
        adapters = _for_each("lora_request", lora_request, len(prompts))
        priorities = _for_each("priority", priority if priority is not None else 0, len(prompts))

        async def ask(index: int) -> Any:
            stream = await self._engine.add_request(
                str(next(self._ids)),
                prompts[index],
                params[index],
                lora_request=adapters[index],
                priority=priorities[index],
                tokenization_kwargs=tokenization_kwargs,
                is_admitted=True,  # all of them are wanted, however many must wait
            )
            try:
                return await stream.get()
            finally:
                stream.close()

        return self._gather(ask, len(prompts), use_tqdm, what)

    def _gather(
        self,
        ask: Callable[[int], Coroutine[Any, Any, T]],
        number: int,
        use_tqdm: UseTqdm,
        what: str,
    ) -> list[T]:
        """What is said to 0 and so on, and a bar meanwhile."""
        progress = Progress(use_tqdm, number, what)

        async def ask_and_count(index: int) -> T:
            output = await ask(index)
            progress.add(output)
            return output

        try:
            return self._thread.run(_all_or_none(ask_and_count, number))
        finally:
            progress.close()


async def _all_or_none(ask: Callable[[int], Coroutine[Any, Any, T]], number: int) -> list[T]:
    """The results of 0 and so on; any end of this call ends all of them."""
    tasks = [asyncio.create_task(ask(index)) for index in range(number)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _as_list(prompts: Any) -> list[Any]:
    """Text, a dict and a list of ids are one prompt; a list of such is several."""
    if isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes):
        if not prompts or not isinstance(prompts[0], int):
            return list(prompts)
    return [prompts]


def _for_each(name: str, given: Any, number: int) -> list[Any]:
    """One for each prompt. `ValidationError` if there are others than so many."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return [given] * number
    if len(given) != number:
        problem = f"{name} must be one, or as many as the {number} prompts, and are {len(given)}"
        raise ValidationError(problem, name, None)
    return list(given)


def _with_task(params: Any, task: str | None) -> Any:
    if task is None or not isinstance(params, PoolingParams) or params.task == task:
        return params
    if params.task is not None:
        raise ValidationError(f"task must be {task} here", "task", params.task)
    return PoolingParams(**(msgspec.structs.asdict(params) | {"task": task}))


def _conversations(messages: Any) -> Sequence[Sequence[Message]]:
    is_one = bool(messages) and isinstance(messages[0], dict)
    return [messages] if is_one else messages


def _begun_answer(conversation: list[Message]) -> str:
    """Take the last message, which is the beginning of the answer."""
    if not conversation or conversation[-1].get("role") != "assistant":
        problem = "continue_final_message needs a last message of the assistant"
        raise ValidationError(problem, "continue_final_message", True)
    return str(conversation.pop()["content"])
