"""`VLLMStandIn`: vLLM without a model, by its route for tokens or by completions."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, ClassVar

from tests.server.engines.remote.stand_in import END_ID, StandIn, event_of

METRICS = """
vllm:num_requests_running{{engine="0",model_name="m"}} {number}.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} 0.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="256"}} 1.0
"""


class VLLMStandIn(StandIn):
    """As with `--enable-scale-out`."""

    answer_path = "/inference/v1/generate"
    has_token_route: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.refuses_aborts = False
        self.is_core_dead = False
        self.aborted: set[str] = set()

    def routes(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "/v1/models": lambda _: {
                "object": "list",
                "data": [{"id": "m", "max_model_len": 1024}],
            },
            "/metrics": lambda _: METRICS.format(number=self.num_open),
            "/health": lambda _: 503 if self.is_core_dead else "",
            "/tokenize": lambda body: {"tokens": self.tokenize(body["prompt"])},
            "/inference/v1/abort_requests": self.abort,
        }

    def tokenize(self, text: str) -> list[int]:
        raise NotImplementedError  # a test gives it a tokenizer

    def abort(self, body: dict[str, Any]) -> Any:
        """It knows names by their full length, with what it has put before them."""
        if not self.has_token_route:
            return 403
        if self.refuses_aborts:
            return 500
        self.aborted.update(body["request_ids"])
        if self.pace is not None:
            self.let(self.num_open)  # they come round, and see it
        return ""

    def prompt(self, body: dict[str, Any]) -> list[int]:
        return list(body["token_ids" if self.has_token_route else "prompt"])

    def limit(self, body: dict[str, Any]) -> int:
        params = body["sampling_params"] if self.has_token_route else body
        return int(params["max_tokens"])

    async def _events(self, body: dict[str, Any], fault: str) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(super()._events(body, fault)) as events:
            async for event in events:
                if f"generate-tokens-{body['request_id']}" in self.aborted:
                    yield event_of(self._choice(body, [], "abort"))
                    break
                yield event
        yield b"data: [DONE]\n\n"
        await asyncio.sleep(0)

    def token_event(self, body: dict[str, Any], ids: list[int], *, fault: str) -> dict[str, Any]:
        """The last token comes with the reason of the end."""
        reason = "stop" if ids[-1] == END_ID else None
        if len(ids) == self.limit(body) and fault != "more than was asked for":
            reason = reason or "length"
        event = self._choice(body, ids[-1:], reason)
        event["usage"] = self._usage(body, ids)
        event["usage"]["prompt_tokens"] += fault == "lies about the prompt"
        event["usage"]["completion_tokens"] += 3 * (fault == "lies about its tokens")
        return event

    def last_event(self, body: dict[str, Any], ids: list[int], reason: str) -> dict[str, Any]:
        usage = self._usage(body, ids) | {"prompt_tokens_details": {"cached_tokens": 1}}
        return {"request_id": body["request_id"], "usage": usage, "choices": []}

    def _choice(self, body: dict[str, Any], ids: list[int], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": reason, "stop_reason": None, "token_ids": ids}
        return {"request_id": body["request_id"], "choices": [choice], "usage": None}

    def _ids(self, body: dict[str, Any]) -> list[int]:
        ids = super()._ids(body)
        return ids[: ids.index(END_ID) + 1] if END_ID in ids else ids

    def _usage(self, body: dict[str, Any], ids: list[int]) -> dict[str, Any]:
        num_prompt = len(self.prompt(body))
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": len(ids),
            "total_tokens": num_prompt + len(ids),
        }


class PlainVLLMStandIn(VLLMStandIn):
    """As without it."""

    answer_path = "/v1/completions"
    has_token_route = False
