"""The dialect of SGLang's own route: `/generate` with `input_ids`, `/abort_request`.

Its stream says all ids so far in each event, or only the new ones
(`--incremental-streaming-output`); which of the two shows by its count. It takes the name of a
request in an abort for the beginning of names: ours have one length.
"""

from typing import TYPE_CHECKING, Any

from engine.errors import ValidationError
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
from server.engines.remote.wire.problems import BadStatus, Broken, Misfit

if TYPE_CHECKING:
    from engine.client.text.tokenizer import Tokenizer

SUPPORTED = (
    *("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("ignore_eos", "min_tokens", "logit_bias", "logprobs", "structured_outputs"),
)
FORMS = {"json": "json_schema", "regex": "regex", "grammar": "ebnf"}
RULE = "::="  # of a grammar in EBNF, as llama.cpp writes it
INFO_PATHS = ("/server_info", "/get_server_info")  # of later, and of earlier versions
MAX_SEED = 1 << 31


class SGLang:
    """One server's."""

    name = "sglang"

    def __init__(self, tokenizer: "Tokenizer", model: str | None) -> None:
        self._max_model_len = 0

    async def probe(self, ask: Ask) -> RemoteFacts:
        info = await self._info(ask)
        state = _first_state(info)
        length = integer_of(info.get("max_req_input_len")) or integer_of(info.get("context_length"))
        tokens = integer_of(info.get("max_total_num_tokens"))
        self._max_model_len = length or tokens
        if not self._max_model_len:
            raise Misfit("it is no SGLang server: it tells no length of its context")
        seats = integer_of(state.get("effective_max_running_requests_per_dp"))
        seats = seats or integer_of(info.get("max_running_requests")) or 256
        return RemoteFacts(
            max_model_len=self._max_model_len, max_num_seqs=seats, num_kv_tokens=tokens or None
        )

    async def look(self, ask: Ask) -> RemoteLoad:
        """A look that computes nothing: `/health_generate` would."""
        try:
            loads = await ask(Call("/get_load"))
        except BadStatus as problem:
            if problem.status != 404:
                raise
            await ask(Call("/health"))
            return RemoteLoad()
        each = [load for load in loads if isinstance(load, dict)] if isinstance(loads, list) else []
        if not each:
            return RemoteLoad()
        running = sum(integer_of(load.get("num_reqs")) for load in each)
        waiting = sum(integer_of(load.get("num_waiting_reqs")) for load in each)
        return RemoteLoad(num_running=max(0, running - waiting), num_waiting=waiting)

    async def tokenize(self, ask: Ask, text: str) -> list[int] | None:
        try:
            reply = await ask(Call("/tokenize", {"prompt": text, "add_special_tokens": False}))
        except BadStatus as problem:
            if problem.status != 404:
                raise
            return None  # of a version that has no such route
        if not isinstance(reply, dict):
            raise Misfit("it is no SGLang server: /tokenize gives no object")
        return ids_of(reply.get("tokens"))

    def call(self, request: AddRequest, name: str) -> Call:
        params = request.params
        check_supported(self.name, request, SUPPORTED)
        if params.logprobs == -1:
            problem = "logprobs of all tokens are not available with engines of the kind"
            raise ValidationError(f"{problem} {self.name}", "logprobs", -1)
        sampling: dict[str, Any] = {
            "max_new_tokens": remaining_tokens(request, self._max_model_len),
            "min_new_tokens": max(0, params.min_tokens - len(request.resume_token_ids)),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "min_p": params.min_p,
            "repetition_penalty": params.repetition_penalty,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "ignore_eos": params.ignore_eos,
            "stop_token_ids": params.stop_token_ids or [],
            "sampling_seed": (params.seed or 0) % MAX_SEED,
            "skip_special_tokens": False,
        }
        if params.logit_bias:
            sampling["logit_bias"] = {str(key): bias for key, bias in params.logit_bias.items()}
        if params.structured_outputs is not None:
            sampling |= _form(request)
        body: dict[str, Any] = {
            "input_ids": [*request.prompt_token_ids, *request.resume_token_ids],
            "sampling_params": sampling,
            "stream": True,
            "rid": name,
        }
        if params.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": params.logprobs}
        return Call("/generate", body)

    def piece(self, request: AddRequest, name: str, num_tokens: int) -> Call | None:
        return None  # its stream leaves nothing out

    def reader(self, request: AddRequest) -> Reader:
        return SGLangReader(has_logprobs=request.params.logprobs is not None)

    def abort(self, name: str) -> Call | None:
        return Call("/abort_request", {"rid": name}) if name else None

    async def _info(self, ask: Ask) -> dict[str, Any]:
        for path in INFO_PATHS:
            try:
                info = await ask(Call(path))
            except BadStatus as problem:
                if problem.status != 404:
                    raise
            else:
                if isinstance(info, dict):
                    return info
        raise Misfit(f"it is no SGLang server: it has no {INFO_PATHS[0]}")


class SGLangReader:
    """Reads the events of one stream."""

    def __init__(self, *, has_logprobs: bool) -> None:
        self._has_logprobs = has_logprobs
        self._num_seen = 0

    def read(self, event: bytes) -> Step | None:
        content = read_json(event)
        if "error" in content:
            error = content["error"]
            return Step(
                error=str(error.get("message", error) if isinstance(error, dict) else error)
            )
        about, ids = content.get("meta_info"), ids_of(content.get("output_ids"))
        if not isinstance(about, dict):
            raise Broken("an event without meta_info")
        number = integer_of(about.get("completion_tokens"), len(ids))
        num_new = number - self._num_seen
        if num_new < 0 or num_new > len(ids):
            raise Broken("it counts other tokens than it has sent")
        self._num_seen = number
        step = Step(
            token_ids=ids[len(ids) - num_new :],
            num_prompt_tokens=_number(about.get("prompt_tokens")),
            num_cached_tokens=integer_of(about.get("cached_tokens")),
        )
        if self._has_logprobs:
            step.logprobs = _logprobs(about, num_new)
        self._end(step, about.get("finish_reason"))
        return step

    def _end(self, step: Step, reason: Any) -> None:
        if reason is None:
            return
        kind = reason.get("type") if isinstance(reason, dict) else None
        if kind == "abort":
            message = reason.get("message")
            if message:
                step.error = str(message)
            else:
                step.finish_reason = "abort"
        elif kind in ("stop", "length"):
            step.finish_reason = kind
        else:
            raise Broken(f"it ended for a reason that is none: {reason}")


def _form(request: AddRequest) -> dict[str, str]:
    """The form of an answer. Raises `ValidationError` for one that this kind has no word for."""
    form = request.params.structured_outputs
    assert form is not None
    kind, text = form.source()
    is_other_grammar = kind == "grammar" and RULE not in text  # in Lark's way to write it
    if kind not in FORMS or is_other_grammar or form.begun:
        problem = f"structured_outputs.{form.kind} is not available with engines of the kind sglang"
        raise ValidationError(problem, "structured_outputs")
    return {FORMS[kind]: text}


def _logprobs(about: dict[str, Any], number: int) -> list[list[tuple[int, float, int]]]:
    """For each new token: itself, then the best ones; what is of earlier ones comes before."""
    try:
        chosen = about["output_token_logprobs"]
        best = about.get("output_top_logprobs") or [[]] * len(chosen)
        if min(len(chosen), len(best)) < number:
            raise Broken("tokens without their logprobs")
        pairs = zip(chosen[len(chosen) - number :], best[len(best) - number :], strict=True)
        return [_entries(own, list(top or ())) for own, top in pairs]
    except (LookupError, TypeError, ValueError, OverflowError):
        raise Broken("logprobs that are none") from None


def _entries(own: list[Any], top: list[list[Any]]) -> list[tuple[int, float, int]]:
    ranked = [(int(each[1]), float(each[0])) for each in top]
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(ranked, 1)}
    chosen, logprob = int(own[1]), float(own[0])
    entries = [(chosen, logprob, ranks.get(chosen, len(ranked) + 1))]
    return entries + [(i, p, ranks[i]) for i, p in ranked if i != chosen]


def _first_state(info: dict[str, Any]) -> dict[str, Any]:
    states = info.get("internal_states")
    first = states[0] if isinstance(states, list) and states else None
    return first if isinstance(first, dict) else {}


def _number(value: Any) -> int | None:
    return value if type(value) is int else None
