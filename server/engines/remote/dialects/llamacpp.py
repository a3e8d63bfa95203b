"""The dialect of llama.cpp's `llama-server`: `/completion` with token arrays and `return_tokens`.

Its stream leaves tokens out: while the text ends amid a character it sends nothing, and then the
last token alone. How many it has left out shows by its count. Where bytes tell what they are they
are put in; else they are asked for again in a reply that comes as a whole, which has all.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from engine.errors import ValidationError
from engine.grammar.params import StructuredOutputsParams
from engine.ipc import AddRequest
from server.engines.remote.dialects.dialect import (
    Ask,
    Reader,
    RemoteFacts,
    RemoteLoad,
    Step,
    check_supported,
    ids_of,
    integer_of,
    read_json,
    remaining_tokens,
)
from server.engines.remote.wire.exchange import Call
from server.engines.remote.wire.problems import BadStatus, Broken, Misfit, Silent

if TYPE_CHECKING:
    from engine.client.text.tokenizer import Tokenizer

SUPPORTED = (
    *("top_p", "top_k", "min_p", "repetition_penalty", "ignore_eos", "logit_bias"),
    *("logprobs", "structured_outputs"),
)
MAX_SEED = (1 << 32) - 1  # which is none: it draws one then
REASONS = {"eos": "stop", "limit": "length", "word": "stop", "none": "abort"}
RULE = "::="  # of a grammar in GBNF; others are in Lark's way to write it
MAX_WAYS = 100  # of writing some bytes, that are looked at
MAX_MISSING_BYTES = 24  # of the tokens that a stream left out: else they are asked for again


class LlamaCpp:
    """One server's."""

    name = "llamacpp"

    def __init__(self, tokenizer: "Tokenizer", model: str | None) -> None:
        self._tokenizer = tokenizer
        self._model = model  # of a router of several; None: there is one
        self._max_model_len = 0
        self._num_slots = 1
        self._has_slots = True  # its route may be switched off

    async def probe(self, ask: Ask) -> RemoteFacts:
        try:
            props = await ask(Call("/props"))
        except BadStatus as problem:
            if problem.status != 404:
                raise
            raise Misfit("it is no llama.cpp server: it has no /props") from None
        settings = props.get("default_generation_settings") if isinstance(props, dict) else None
        if not isinstance(settings, dict) or "n_ctx" not in settings:
            raise Misfit("it is no llama.cpp server: /props does not tell n_ctx")
        self._max_model_len = integer_of(settings["n_ctx"])
        if not self._max_model_len:
            raise Misfit("it has no context")
        self._num_slots = max(1, integer_of(props.get("total_slots"), 1))
        self._has_slots = True
        await self.look(ask)
        return RemoteFacts(
            max_model_len=self._max_model_len,
            max_num_seqs=self._num_slots,
            num_kv_tokens=self._max_model_len * self._num_slots,
        )

    async def look(self, ask: Ask) -> RemoteLoad:
        if not self._has_slots:
            await ask(Call("/health"))
            return RemoteLoad()
        try:
            slots = await ask(Call("/slots"))
        except BadStatus as problem:
            if problem.status not in (404, 501):
                raise
            self._has_slots = False
            return await self.look(ask)
        except Silent:  # they wait for the batch that it computes, which may take a minute
            await ask(Call("/health"))
            return RemoteLoad()
        if not isinstance(slots, list):
            raise Broken("/slots gives no list")
        running = [slot for slot in slots if isinstance(slot, dict) and slot.get("is_processing")]
        tokens = sum(integer_of(slot.get("n_prompt_tokens")) for slot in running)
        total = self._max_model_len * self._num_slots
        return RemoteLoad(num_running=len(running), kv_usage=tokens / total)

    async def tokenize(self, ask: Ask, text: str) -> list[int] | None:
        reply = await ask(Call("/tokenize", {"content": text, "add_special": False}))
        if not isinstance(reply, dict):
            raise Misfit("it is no llama.cpp server: /tokenize gives no object")
        return ids_of(reply.get("tokens"))

    def call(self, request: AddRequest, name: str) -> Call:
        return self._call(request, remaining_tokens(request, self._max_model_len), is_stream=True)

    def piece(self, request: AddRequest, name: str, num_tokens: int) -> Call | None:
        return self._call(request, num_tokens, is_stream=False)

    def reader(self, request: AddRequest) -> Reader:
        params = request.params
        is_held = params.structured_outputs is not None
        return LlamaCppReader(self._tokenizer, params.logprobs, is_held_to_form=is_held)

    def abort(self, name: str) -> Call | None:
        return None  # it looks once a second whether somebody still listens

    def _call(self, request: AddRequest, num_tokens: int, *, is_stream: bool) -> Call:
        params = request.params
        check_supported(self.name, request, SUPPORTED)
        if params.logprobs == -1:
            problem = "logprobs of all tokens are not available with engines of the kind"
            raise ValidationError(f"{problem} {self.name}", "logprobs", -1)
        body: dict[str, Any] = {
            "prompt": [*request.prompt_token_ids, *request.resume_token_ids],
            "n_predict": num_tokens,
            "stream": is_stream,
            "return_tokens": True,
            "cache_prompt": True,
            "temperature": params.temperature,
            "top_p": params.top_p,
            # Else it draws by the chances of all tokens, of which one is left: 1.5 ms a token.
            "top_k": 1 if params.is_greedy else max(0, params.top_k),
            "min_p": params.min_p,
            "typical_p": 1.0,
            "repeat_penalty": params.repetition_penalty,
            "repeat_last_n": -1 if params.repetition_penalty != 1 else 0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": (params.seed or 0) % MAX_SEED,
            "ignore_eos": params.ignore_eos,
        }
        if is_stream:
            body["return_progress"] = True
        if params.logit_bias:
            body["logit_bias"] = [[token_id, bias] for token_id, bias in params.logit_bias.items()]
        if params.logprobs is not None:
            body["n_probs"] = max(1, params.logprobs)
        if params.structured_outputs is not None:
            body |= _form(params.structured_outputs)
        if self._model is not None:
            body["model"] = self._model
        return Call("/completion", body)


class LlamaCppReader:
    """Reads the events of one stream, or a whole reply as one event.

    An answer that is held to a form cannot be asked for again from its middle. There tokens that
    were left out are any that write the same text: the usual ones, if they do.
    """

    def __init__(
        self, tokenizer: "Tokenizer", num_logprobs: int | None, *, is_held_to_form: bool = False
    ) -> None:
        self._is_held_to_form = is_held_to_form
        self._tokenizer = tokenizer
        self._num_logprobs = num_logprobs
        self._num_seen = 0  # tokens, of its own count
        self._hidden = Step()  # what is held back of a token without text

    def read(self, event: bytes) -> Step | None:
        if not event:
            return None
        content = read_json(event)
        if "error" in content:
            return Step(error=_message(content["error"]))
        if isinstance(progress := content.get("prompt_progress"), dict):
            return self._progress(content, progress)
        if content.get("stop") is True:
            return self._last(content)
        return self._next(content)

    def _progress(self, content: dict[str, Any], progress: dict[str, Any]) -> Step:
        """The token that such an event names is none."""
        cached = integer_of(progress.get("cache"))
        return Step(
            num_prompt_tokens=_prompt_tokens(content),
            num_cached_tokens=cached,
            num_computed_tokens=integer_of(progress.get("processed")),
        )

    def _next(self, content: dict[str, Any]) -> Step | None:
        ids, number = ids_of(content.get("tokens")), integer_of(content.get("tokens_predicted"))
        step = self._release()
        step.num_prompt_tokens = _prompt_tokens(content)
        if not ids:
            return step if step.token_ids else None
        num_missing = number - self._num_seen - len(ids)
        if num_missing < 0:
            raise Broken("it counts fewer tokens than it has sent")
        self._num_seen = number
        text = content.get("content")
        scores = self._scores(content, len(ids))
        if num_missing:
            missing = None
            if scores is None and isinstance(text, str):
                is_any = self._is_held_to_form
                missing = missing_ids(self._tokenizer, text, num_missing, ids, is_any=is_any)
            if missing is None:
                step.finish_reason = "gap"
                return step
            ids = [*missing, *ids]
        if text == "":
            self._hidden = Step(ids, logprobs=scores)
            return step
        _add(step, ids, scores)
        return step

    def _last(self, content: dict[str, Any]) -> Step:
        reason = REASONS.get(str(content.get("stop_type")), "stop")
        step = self._release()
        step.num_prompt_tokens = _prompt_tokens(content)
        step.finish_reason = reason
        ids = ids_of(content.get("tokens"))
        if ids:  # of a whole reply
            _add(step, ids, self._scores(content, len(ids)))
        elif integer_of(content.get("tokens_predicted"), self._num_seen) > self._num_seen:
            step.finish_reason = "gap"  # it ended amid a character
        return step

    def _release(self) -> Step:
        held, self._hidden = self._hidden, Step()
        return held

    def _scores(
        self, content: dict[str, Any], num_tokens: int
    ) -> list[list[tuple[int, float, int]]] | None:
        if self._num_logprobs is None:
            return None
        given = content.get("completion_probabilities")
        if not isinstance(given, list) or len(given) != num_tokens:
            raise Broken("tokens without their logprobs")
        try:
            return [_entries(each, self._num_logprobs) for each in given]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise Broken("logprobs that are none") from None


def missing_ids(
    tokenizer: "Tokenizer",
    text: str,
    num_missing: int,
    ids: Sequence[int],
    *,
    is_any: bool = False,
) -> list[int] | None:
    """The ids before `ids` that make their bytes `text`; None if that is not certain.

    With `is_any` the usual ones, or any.
    """
    ends = [tokenizer.bytes_of_id(token_id) for token_id in ids]
    content, end = text.encode(), b"".join(each or b"" for each in ends)
    if None in ends or not content.endswith(end) or "\ufffd" in text:
        return None
    content = content[: len(content) - len(end)]
    if len(content) > MAX_MISSING_BYTES:
        return None
    ways = list(islice(_ways(tokenizer, content, num_missing), MAX_WAYS))
    usual = tokenizer.encode(text, add_special_tokens=False)[:num_missing] if is_any else []
    if usual in ways:
        return usual
    return ways[0] if len(ways) == 1 or (ways and is_any) else None


def _ways(tokenizer: "Tokenizer", content: bytes, num_tokens: int) -> Iterator[list[int]]:
    """How so many tokens can write these bytes."""
    for length in range(1, len(content) + 1 if num_tokens else 0):
        token_id = tokenizer.id_of_bytes(content[:length])
        if token_id is not None:
            if num_tokens == 1 and length == len(content):
                yield [token_id]
            elif num_tokens > 1:
                for rest in _ways(tokenizer, content[length:], num_tokens - 1):
                    yield [token_id, *rest]


def _form(form: StructuredOutputsParams) -> dict[str, Any]:
    """That of an answer. Raises `ValidationError` for one that this kind has no word for."""
    kind, text = form.source()
    if kind == "grammar" and RULE in text and not form.begun:
        return {"grammar": text}
    schema = orjson.loads(text) if kind == "json" else None
    if not isinstance(schema, dict) or "x-guidance" in schema or form.begun:
        problem = f"structured_outputs.{form.kind} is not available with engines of the kind"
        raise ValidationError(f"{problem} llamacpp", "structured_outputs")
    return {"json_schema": schema}


def _add(step: Step, ids: list[int], scores: list[list[tuple[int, float, int]]] | None) -> None:
    step.token_ids = [*step.token_ids, *ids]
    if scores is not None:
        step.logprobs = [*(step.logprobs or ()), *scores]


def _entries(position: dict[str, Any], number: int) -> list[tuple[int, float, int]]:
    """The chosen token first, then the best ones. One that is not among these has the next rank."""
    best = [(int(each["id"]), float(each["logprob"])) for each in position["top_logprobs"]]
    chosen = int(position["id"])
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(best, 1)}
    rank = ranks.get(chosen, len(best) + 1)
    entries = [(chosen, float(position["logprob"]), rank)]
    entries += [(i, p, ranks[i]) for i, p in best[:number] if i != chosen]
    return entries


def _prompt_tokens(content: dict[str, Any]) -> int | None:
    number = content.get("tokens_evaluated")
    return number if type(number) is int else None


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
