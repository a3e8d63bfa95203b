"""The dialect of `vllm serve`, whatever that runs on: one processor, or several hosts by Ray.

With `--enable-scale-out` it takes and gives token ids by a route of its own, and another one ends
an answer. Without, `/v1/completions` takes a prompt of ids and gives the answer's beside its text;
then an answer is ended by closing its connection, which vLLM does not confirm.
"""

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import ValidationError
from engine.grammar.params import StructuredOutputsParams
from engine.ipc import AddRequest
from server.engines.remote.dialects.dialect import (
    MAX_COUNT,
    Ask,
    Reader,
    RemoteFacts,
    RemoteLoad,
    Step,
    check_supported,
    ids_of,
    integer_of,
    remaining_tokens,
)
from server.engines.remote.wire.exchange import Call
from server.engines.remote.wire.problems import BadStatus, Broken, Lie, Misfit, Silent

if TYPE_CHECKING:
    from engine.client.text.tokenizer import Tokenizer

GENERATE, ABORT = "/inference/v1/generate", "/inference/v1/abort_requests"
COMPLETIONS = "/v1/completions"
PREFIX = "generate-tokens-"  # with which it knows what it was asked by `GENERATE`
ABSENT_STATUSES = (403, 404, 405)  # of a route that is switched off, or that it has not yet
SUPPORTED = (
    *("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("ignore_eos", "min_tokens", "logit_bias", "allowed_token_ids"),
    *("repetition_detection", "structured_outputs"),
)  # not bad_words: of " some" it forbids fewer spellings than we do
MAX_SEED = 1 << 63
REASONS = ("stop", "length", "abort", "repetition")
SERVER_ERROR = 500
OWN_GRAMMAR = "%llguidance"  # how the form of a call begins, which not all its libraries read
GUIDANCE = "--structured-outputs-config.backend guidance"  # which does
CORE = "EngineCore"  # in what it says when that has died
MAX_NAMED = 5  # models in a line of the log
LOAD_SECONDS = 3.0  # between two looks at its metrics, which take it some milliseconds to write
MAX_METRICS_LENGTH = 1 << 20  # characters of these that are read
MAX_DIGITS = 12  # of a size among them
# None of these looks at a byte more than a few times, whatever the metrics say.
LABELS, NUMBER = rb"\{([^}\n]*)\}", rb" ([0-9.eE+-]+)$"
RUNNING = re.compile(rb"^vllm:num_requests_running" + LABELS + NUMBER, re.M)
WAITING = re.compile(rb"^vllm:num_requests_waiting" + LABELS + NUMBER, re.M)
USAGE = re.compile(rb"^vllm:kv_cache_usage_perc" + LABELS + NUMBER, re.M)
CACHE = re.compile(rb"^vllm:cache_config_info" + LABELS, re.M)
LABEL = re.compile(rb'\b(\w{1,64})="([^"]*)"')


class VLLM:
    """One server's. `model` is the name of a model there; None: that of the `name` that it has
    here, or the only one.
    """

    name = "vllm"

    def __init__(self, tokenizer: "Tokenizer", model: str | None, name: str = "") -> None:
        self._wanted, self._name = model, name
        self._model = ""
        self._max_model_len = 0
        self._has_token_route = False
        self._load, self._loaded_at = RemoteLoad(), 0.0  # and when that was, by time.monotonic()

    async def probe(self, ask: Ask) -> RemoteFacts:
        model, max_model_len = _served(await ask(Call("/v1/models")), self._wanted, self._name)
        has_token_route = await _finds(ask, Call(ABORT, {"request_ids": []}))
        self.join(model, max_model_len, has_token_route=has_token_route)
        return RemoteFacts(
            max_model_len=max_model_len, num_kv_tokens=cache_tokens(await _metrics(ask))
        )

    def join(self, model: str, max_model_len: int, *, has_token_route: bool) -> None:
        """From now on it is asked for this model, by this route."""
        self._model, self._max_model_len = model, max_model_len
        self._has_token_route = has_token_route

    async def look(self, ask: Ask) -> RemoteLoad:
        """Its door may answer for a while when the process behind it has died."""
        try:
            await ask(Call("/health"))
        except BadStatus as problem:
            raise Broken(f"its core is not well: {problem}") from None
        if time.monotonic() - self._loaded_at >= LOAD_SECONDS:
            self._load, self._loaded_at = load_of(await _metrics(ask)), time.monotonic()
        return self._load

    async def tokenize(self, ask: Ask, text: str) -> list[int] | None:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        try:
            reply = await ask(Call("/tokenize", body))
        except BadStatus as problem:
            if problem.status not in (404, 501):
                raise
            return None  # of a server without a tokenizer (`--tokens-only`)
        if not isinstance(reply, dict):
            raise Misfit("it is no vLLM server: /tokenize gives no object")
        return ids_of(reply.get("tokens"))

    def call(self, request: AddRequest, name: str) -> Call:
        scored = ("logprobs",) if self._has_token_route else ()
        check_supported(self.name, request, (*SUPPORTED, *scored))
        prompt = [*request.prompt_token_ids, *request.resume_token_ids]
        body: dict[str, Any] = {
            "request_id": name,
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "priority": request.priority,
        }
        if request.cache_salt:  # a user, whose name is nobody else's business
            body["cache_salt"] = hashlib.sha256(request.cache_salt.encode()).hexdigest()
        params = _params(request, remaining_tokens(request, self._max_model_len))
        if self._has_token_route:
            params["detokenize"] = False
            return Call(GENERATE, body | {"token_ids": prompt, "sampling_params": params})
        return Call(COMPLETIONS, body | {"prompt": prompt, "return_token_ids": True} | params)

    def piece(self, request: AddRequest, name: str, num_tokens: int) -> Call | None:
        return None  # its stream leaves nothing out

    def reader(self, request: AddRequest) -> Reader:
        form = request.params.structured_outputs
        return VLLMReader(
            prompt=[*request.prompt_token_ids, *request.resume_token_ids],
            has_logprobs=request.params.logprobs is not None,
            has_own_grammar=form is not None and (form.grammar or "").startswith(OWN_GRAMMAR),
        )

    def abort(self, name: str) -> Call | None:
        if not (name and self._has_token_route):
            return None
        return Call(ABORT, {"request_ids": [PREFIX + name]})


def _params(request: AddRequest, num_tokens: int) -> dict[str, Any]:
    """As both routes name them. Nothing is left to the defaults of a checkpoint."""
    params = request.params
    asked: dict[str, Any] = {
        "max_tokens": num_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(0, params.top_k),
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "ignore_eos": params.ignore_eos,
        "min_tokens": max(0, params.min_tokens - len(request.resume_token_ids)),
        "stop_token_ids": params.stop_token_ids or [],
    }
    if params.seed is not None and not params.is_greedy:
        asked["seed"] = _seed(params.seed, len(request.resume_token_ids))
    for name in ("allowed_token_ids", "logprobs"):
        if (value := getattr(params, name)) is not None:
            asked[name] = value
    if params.logit_bias:
        asked["logit_bias"] = {str(key): bias for key, bias in params.logit_bias.items()}
    if params.repetition_detection is not None:
        asked["repetition_detection"] = msgspec.structs.asdict(params.repetition_detection)
    if params.structured_outputs is not None:
        asked["structured_outputs"] = _form(params.structured_outputs)
    if params.logprobs == -1 or params.logprob_token_ids:
        problem = "logprobs of all tokens, or of given ones, are not available with"
        raise ValidationError(f"{problem} engines of the kind vllm", "logprobs")
    return asked


def _seed(seed: int, num_resumed: int) -> int:
    """Another one for an answer that goes on: its first draws were those of its first tokens."""
    if not num_resumed:
        return seed % MAX_SEED
    digest = hashlib.blake2b(b"%d %d" % (seed, num_resumed), digest_size=8).digest()
    return int.from_bytes(digest, "big") % MAX_SEED


def _form(form: StructuredOutputsParams) -> dict[str, Any]:
    """Raises `ValidationError` for one that begins in the prompt: vLLM has no word for that."""
    if form.begun:
        problem = "an answer that the prompt has begun cannot be held to a form by vLLM"
        raise ValidationError(problem, "structured_outputs")
    asked: dict[str, Any] = {form.kind: getattr(form, form.kind)}
    if form.kind == "json":  # also where it is True or False, which vLLM does not take
        asked["json"] = form.source()[1]
    for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
        if value := getattr(form, name):
            asked[name] = value
    return asked


# ---- what it says -------------------------------------------------------------------------------


class _Scored(msgspec.Struct):
    token_id: int
    logprob: float
    rank: int | None = None


class _Position(_Scored):
    top_logprobs: list[_Scored] = []


class _Logprobs(msgspec.Struct):
    content: list[_Position] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None  # as it has read them; in the first event alone
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str
    code: int = SERVER_ERROR


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


class VLLMReader:
    """Reads the events of one stream. The last token waits for the usage, which follows it."""

    def __init__(
        self, *, prompt: Sequence[int], has_logprobs: bool, has_own_grammar: bool = False
    ) -> None:
        self._prompt = prompt
        self._has_logprobs = has_logprobs
        self._has_own_grammar = has_own_grammar
        self._num_seen = 0  # tokens
        self._last: Step | None = None

    def read(self, event: bytes) -> Step | None:
        try:
            content = _decode(event)
        except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested without an end
            raise Broken("an event that is none of vLLM's") from None
        if content.error is not None:
            raise self._failure(content.error)
        if not content.choices:
            return self._end(content.usage)
        choice = content.choices[0]
        if choice.token_ids is None:
            raise Broken("it gives no token ids, as vLLM does from 0.10.2 on")
        if choice.prompt_token_ids not in (None, self._prompt):
            raise Lie("it has read other tokens than it was sent")
        if self._last is not None:
            raise Broken("it goes on after its end")
        step = Step(choice.token_ids)
        self._num_seen += len(choice.token_ids)
        if content.usage is not None:
            step.num_prompt_tokens = content.usage.prompt_tokens
            if content.usage.completion_tokens not in (None, self._num_seen):
                raise Broken("it counts other tokens than it has sent")
        if self._has_logprobs:
            step.logprobs = _entries(choice)
        if choice.finish_reason is None:
            return step
        if choice.finish_reason not in REASONS:
            raise Broken(f"it ended for a reason that is none: {choice.finish_reason}")
        step.finish_reason = choice.finish_reason
        self._last = step
        return None

    def _failure(self, error: _Error) -> BadStatus | Broken:
        """It says so in a reply that has begun well: its own status is what counts."""
        if error.code < SERVER_ERROR:
            return BadStatus(error.code, error.message)
        if self._has_own_grammar and not self._num_seen and CORE not in error.message:
            return BadStatus(400, f"it takes calls of tools as a form with {GUIDANCE} only")
        return Broken(f"it has failed: {error.message}")

    def _end(self, usage: _Usage | None) -> Step | None:
        last, self._last = self._last, None
        if last is not None and usage is not None and usage.prompt_tokens_details is not None:
            last.num_cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
        return last


def _entries(choice: _Choice) -> list[list[tuple[int, float, int]]]:
    """For each token: itself, then the best ones."""
    scores = choice.logprobs.content if choice.logprobs is not None else None
    number = len(choice.token_ids or ())
    if scores is None or len(scores) != number:
        raise Broken("tokens without their logprobs")
    return [
        [
            (own.token_id, own.logprob, own.rank or 0),
            *(
                (each.token_id, each.logprob, each.rank or 0)
                for each in own.top_logprobs
                if each.token_id != own.token_id
            ),
        ]
        for own in scores
    ]


def _served(models: Any, wanted: str | None, ours: str) -> tuple[str, int]:
    """The name of the model there, and its context. Raises `Misfit`."""
    listed = models.get("data") if isinstance(models, dict) else None
    if not isinstance(listed, list):
        raise Misfit("it is no vLLM server: /v1/models lists nothing")
    found = {
        each["id"]: each
        for each in listed
        if isinstance(each, dict) and isinstance(each.get("id"), str)
    }
    name = _chosen(found, ours) if wanted is None else wanted
    if name is None or name not in found:
        raise Misfit(f"it serves no model {wanted!r}" if wanted else "it serves no model")
    max_model_len = integer_of(found[name].get("max_model_len"))
    if not max_model_len:
        raise Misfit("it is no vLLM server: /v1/models tells no max_model_len")
    return name, max_model_len


def _chosen(found: Mapping[str, Mapping[str, Any]], ours: str) -> str | None:
    """One of the same name, or the only one, whatever its names and adapters are."""
    if ours in found:
        return ours
    bases = [name for name, each in found.items() if each.get("parent") is None]
    roots = {str(found[name].get("root") or name) for name in bases}
    if len(roots) > 1:
        names = ", ".join(bases[:MAX_NAMED])
        raise Misfit(f"it serves {names}, and no model {ours}: ;model=NAME says which it is")
    return next(iter(bases), None)


async def _finds(ask: Ask, call: Call) -> bool:
    """Whether it has a route. Raises `RemoteProblem`."""
    try:
        await ask(call)
    except BadStatus as problem:
        if problem.status not in ABSENT_STATUSES:
            raise
        return False
    return True


async def _metrics(ask: Ask) -> bytes:
    """Empty where it tells none, or not in time."""
    try:
        text = await ask(Call("/metrics"))
    except (BadStatus, Silent):
        return b""
    return text[:MAX_METRICS_LENGTH].encode() if isinstance(text, str) else b""


def load_of(metrics: bytes) -> RemoteLoad:
    """Of all that work side by side under its address."""
    running, waiting, usage = (
        [_number(each) for _, each in gauge.findall(metrics)] for gauge in (RUNNING, WAITING, USAGE)
    )
    return RemoteLoad(
        num_running=int(sum(running)) if running else None,
        num_waiting=int(sum(waiting)) if waiting else None,
        kv_usage=sum(usage) / len(usage) if usage else None,
    )


def _number(text: bytes) -> float:
    """Of a gauge; what is none counts for nothing."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 <= number <= MAX_COUNT else 0.0


def cache_tokens(metrics: bytes) -> int | None:
    """How many tokens fit into its cache, or into those of several in parallel."""
    total = 0
    for found in CACHE.findall(metrics):
        labels = dict(LABEL.findall(found))
        sizes = [labels.get(name, b"") for name in (b"num_gpu_blocks", b"block_size")]
        if all(size.isdigit() and len(size) <= MAX_DIGITS for size in sizes):
            total += int(sizes[0]) * int(sizes[1])
    return total or None
