"""OpenAI's streams in front of OpenVINO GenAI: MODEL PORT CACHE_GIB THREADS, in its environment.

One thread steps the pipeline and hands on what each step brought. It is as thin as it can be, so
that what is measured is the engine; nothing of Parley is imported here.
"""

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy
import openvino
import openvino_genai
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

YIELD_SECONDS = 0.0005


@dataclass
class Job:
    prompt: Any  # [1, num_tokens] int64
    config: Any
    put: Callable[[list[int] | Exception | None], object]
    is_cancelled: bool = False
    handle: Any = field(default=None)


class Stepper:
    """The only thread that touches the pipeline."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._new: list[Job] = []
        self._wake = threading.Condition()
        self._numbers = itertools.count(1)
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, job: Job) -> None:
        with self._wake:
            self._new.append(job)
            self._wake.notify()

    def _run(self) -> None:
        jobs: list[Job] = []
        while True:
            with self._wake:
                while not self._new and not jobs:
                    self._wake.wait()
                new, self._new = self._new, []
            jobs += [job for job in new if self._begin(job)]
            if self._pipeline.has_non_finished_requests():
                self._pipeline.step()
                # A step keeps the interpreter's lock: without a pause the event loop would not get
                # it, and this engine's answers would come late for no fault of its own.
                time.sleep(YIELD_SECONDS)
            jobs = [job for job in jobs if self._hand_on(job)]

    def _begin(self, job: Job) -> bool:
        try:
            number = next(self._numbers)
            job.handle = self._pipeline.add_request(number, job.prompt, job.config)
        except Exception as error:  # of any kind: its client gets it
            job.put(error)
            return False
        return True

    def _hand_on(self, job: Job) -> bool:
        """Whether it goes on."""
        if job.is_cancelled:
            job.handle.cancel()
            return False
        while job.handle.can_read():
            for output in job.handle.read().values():
                job.put(list(output.generated_ids))
        if job.handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
            return True
        job.put(None)
        return False


class Front:
    def __init__(self, folder: str, cache_gib: int, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = cache_gib
        scheduler.max_num_seqs = 64
        scheduler.enable_prefix_caching = True
        pipeline = openvino_genai.ContinuousBatchingPipeline(
            folder, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._tokenizer = pipeline.get_tokenizer()
        self._stepper = Stepper(pipeline)

    async def health(self, request: Request) -> Response:
        return JSONResponse({})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        return self._stream(numpy.array([body["prompt"]], numpy.int64), body["max_tokens"], False)

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        text = self._tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        ids = self._tokenizer.encode(text, add_special_tokens=False).input_ids.data
        return self._stream(numpy.array(ids, numpy.int64), body["max_tokens"], True)

    def _stream(self, ids: Any, num_tokens: int, is_chat: bool) -> StreamingResponse:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_tokens, True, False
        config.apply_chat_template = False
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def put(piece: object) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        job = Job(openvino.Tensor(ids), config, put)
        self._stepper.add(job)
        events = self._events(job, pieces, ids.shape[1], is_chat)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(
        self, job: Job, pieces: asyncio.Queue[Any], num_prompt: int, is_chat: bool
    ) -> AsyncIterator[str]:
        count = 0
        try:
            while (piece := await pieces.get()) is not None:
                if isinstance(piece, Exception):
                    yield event({"error": str(piece)})
                    return
                count += len(piece)
                text = self._tokenizer.decode(piece) or "\u200b"
                yield event(
                    {"choices": [{"delta": {"content": text}} if is_chat else {"text": text}]}
                )
            usage = {"prompt_tokens": num_prompt, "completion_tokens": count}
            yield event({"choices": [], "usage": usage}) + "data: [DONE]\n\n"
        finally:
            job.is_cancelled = True


def event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def main() -> None:
    folder, port, cache_gib, threads = sys.argv[1:]
    front = Front(folder, int(cache_gib), int(threads))
    routes = [
        Route("/health", front.health),
        Route("/v1/completions", front.complete, methods=["POST"]),
        Route("/v1/chat/completions", front.chat, methods=["POST"]),
    ]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
