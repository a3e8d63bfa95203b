"""`SamplingParams`: how one request's tokens are chosen and where they end.

Names, defaults and meanings are vLLM's. A value is validated where it is built and raises
`ValidationError` naming the parameter. The struct goes over the wire as it is, so building it again
in the core repeats the checks. What depends on the model (vocabulary, context) is checked when a
request is added.
"""

import copy
import enum
import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from engine.errors import ValidationError, check_text, refuse
from engine.grammar.params import StructuredOutputsParams
from engine.grammar.thoughts import ThoughtTokens
from engine.repetition import RepetitionDetectionParams

logger = logging.getLogger(__name__)

MIN_TEMPERATURE = 0.01  # below it, logits / temperature overflows in half precision
GREEDY_EPSILON = 1e-5  # below it, sampling is greedy
MAX_LOGPROB_TOKEN_IDS = 128
MAX_ANSWERS = 16_384  # to one prompt
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 64) - 1  # what one msgpack integer holds


class RequestOutputKind(enum.IntEnum):
    """What each `RequestOutput` of a stream holds."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # only what is new
    FINAL_ONLY = 2  # one output, at the end


class SamplingParams(msgspec.Struct, array_like=True, kw_only=True):
    """Parameters of one request. Build with keywords; a wrong value raises `ValidationError`."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1: off
    min_p: float = 0.0
    seed: int | None = None  # -1 is None; without one, the client draws one for each request
    stop: str | list[str] | None = None  # a list after construction
    stop_token_ids: list[int] | None = None  # a list without duplicates after construction
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: up to the end of the context
    min_tokens: int = 0
    logprobs: int | None = None  # -1: the whole vocabulary
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_clone: bool = False  # recorded: they are copied, which checks them, in any case
    structured_outputs: StructuredOutputsParams | None = None  # the form that it must have
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None  # sent where the core has logits processors
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    trace_decode_token_ids: list[int] | None = None  # test hook: exactly these come out
    watermarking: Any = None
    routed_experts_prompt_start: int | None = None
    # [num_rows, num_ids] after construction, padded with -1; a single row holds for every row
    prompt_logprob_token_ids: list[list[int]] | None = None
    prompt_logprob_start: int | None = None  # the first row to score
    bad_words_token_ids: list[list[int]] | None = None  # of `bad_words`; the engine fills it in
    thought_tokens: ThoughtTokens | None = None  # what the budget is of; likewise

    def __post_init__(self) -> None:
        self._check_types()
        self._normalize()
        self._check_sampling()
        self._check_lengths()
        self._check_lists()
        self._check_logprobs()
        self._check_features()
        if self.is_greedy:
            self._make_greedy()

    @classmethod
    def from_optional(
        cls, logit_bias: dict[int, float] | dict[str, float] | None = None, **values: Any
    ) -> "SamplingParams":
        """Like the constructor, but `None` means the default; biases are clamped to ±100.

        An explicit `max_tokens=None` is kept, because there it has a meaning of its own.
        """
        given = {k: v for k, v in values.items() if v is not None or k == "max_tokens"}
        if logit_bias is not None:
            given["logit_bias"] = _clamp_bias(logit_bias)
        return cls(**given)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_EPSILON

    @property
    def needs_answer(self) -> bool:
        """Whether what may come next depends on the tokens of the answer themselves."""
        return bool(
            self.has_penalties
            or self.bad_words_token_ids
            or self.trace_decode_token_ids
            or self.thinking_token_budget is not None
        )

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def scores_prompt(self) -> bool:
        """Whether logprobs of the prompt's tokens are asked for, of the best or of given ids."""
        return self.prompt_logprobs is not None or self.prompt_logprob_token_ids is not None

    @property
    def first_scored_row(self) -> int:
        """The first token of the prompt after which they are wanted."""
        return 0 if self.prompt_logprobs is not None else self.prompt_logprob_start or 0

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as the list that construction made of it."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def clone(self) -> "SamplingParams":
        """A copy whose lists and dicts are its own. `ValidationError` if a value was made wrong."""
        try:
            sent = copy.copy(self)
            sent.extra_args = None
            copied = msgspec.convert(msgspec.to_builtins(sent), SamplingParams)
            copied.extra_args = copy.deepcopy(self.extra_args)
            _check_extra_args(copied.extra_args)
            return copied
        except NotImplementedError:  # an absent feature, refused by its own name
            raise
        except Exception as error:  # an attribute may have been set to anything
            raise cannot_be_sent(error, SamplingParams) from None

    def _check_types(self) -> None:
        for name in _BOOLEANS:
            if not isinstance(getattr(self, name), bool):
                raise refuse(name, getattr(self, name), "must be True or False")
        skip = self.skip_reading_prefix_cache
        if skip is not None and not isinstance(skip, bool):
            raise refuse("skip_reading_prefix_cache", skip, "must be True or False")
        for name in _ID_LISTS:
            setattr(self, name, _as_list(name, getattr(self, name), "token ids"))
        self.prompt_logprob_token_ids = _as_rows(self.prompt_logprob_token_ids)
        for name in ("stop", "bad_words"):
            if isinstance(value := getattr(self, name), tuple):
                setattr(self, name, list(value))
        if not isinstance(self.repetition_detection, RepetitionDetectionParams | None):
            problem = "must be RepetitionDetectionParams"
            raise refuse("repetition_detection", self.repetition_detection, problem)
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            problem = "must be StructuredOutputsParams"
            raise refuse("structured_outputs", self.structured_outputs, problem)
        if not isinstance(self.logit_bias, dict | None):
            raise refuse("logit_bias", self.logit_bias, "must be a dict of token ids")
        for name in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, float) and type(value) is not float:  # of numpy, for one
                setattr(self, name, float(value))

    def _normalize(self) -> None:
        if self.seed == -1:
            self.seed = None
        self.stop = self.stop_strings
        self.bad_words = [] if self.bad_words is None else self.bad_words
        self.logprobs = 1 if self.logprobs is True else self.logprobs
        if self.logprobs is None and self.logprob_token_ids:
            self.logprobs = 0  # the chosen token's, and those asked for
        self.prompt_logprobs = 1 if self.prompt_logprobs is True else self.prompt_logprobs
        if self.skip_reading_prefix_cache is None:
            self.skip_reading_prefix_cache = self.scores_prompt
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError:
            raise refuse("output_kind", self.output_kind, "is no RequestOutputKind") from None

    def _check_sampling(self) -> None:
        _check_number("presence_penalty", self.presence_penalty, -2, 2)
        _check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_number("repetition_penalty", self.repetition_penalty, 0, math.inf)
        if self.repetition_penalty == 0:
            raise refuse("repetition_penalty", 0, "must be above 0")
        _check_number("temperature", self.temperature, 0, 2)
        if 0 < self.temperature < MIN_TEMPERATURE:
            logger.warning("temperature %g is computed as %g", self.temperature, MIN_TEMPERATURE)
            self.temperature = MIN_TEMPERATURE
        _check_number("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise refuse("top_p", 0, "must be above 0")
        _check_integer("top_k", self.top_k, -1)
        _check_number("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            _check_integer("seed", self.seed, MIN_INTEGER, MAX_INTEGER)

    def _check_lengths(self) -> None:
        _check_integer("n", self.n, 1, MAX_ANSWERS)
        _check_integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1)
            if self.min_tokens > self.max_tokens:
                raise refuse("min_tokens", self.min_tokens, "must not exceed max_tokens")
        if self.thinking_token_budget is not None:
            _check_integer("thinking_token_budget", self.thinking_token_budget, 0)
        if self.stream_interval is not None:
            _check_integer("stream_interval", self.stream_interval, 1)

    def _check_lists(self) -> None:
        _check_strings("stop", self.stop)
        _check_strings("bad_words", self.bad_words)
        self.bad_words = list(dict.fromkeys(self.bad_words or []))
        _check_extra_args(self.extra_args)
        _check_ids("stop_token_ids", self.stop_token_ids)
        self.stop_token_ids = list(dict.fromkeys(self.stop_token_ids or []))
        _check_ids("allowed_token_ids", self.allowed_token_ids)
        _check_ids("trace_decode_token_ids", self.trace_decode_token_ids)
        for ids in self.bad_words_token_ids or ():
            _check_ids("bad_words_token_ids", _as_list("bad_words_token_ids", ids, "token ids"))
            if not ids:
                raise refuse("bad_words_token_ids", ids, "must not hold an empty list")
        if self.allowed_token_ids == []:
            raise refuse("allowed_token_ids", [], "must not be empty")
        if self.stop and not self.detokenize:
            raise refuse("stop", self.stop, "needs detokenize=True")
        _check_ids("logit_bias", self.logit_bias)
        for bias in (self.logit_bias or {}).values():
            _check_number("logit_bias", bias, -math.inf, math.inf)

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_integer(name, value, -1)
        _check_ids("logprob_token_ids", self.logprob_token_ids)
        if len(self.logprob_token_ids or ()) > MAX_LOGPROB_TOKEN_IDS:
            raise refuse("logprob_token_ids", self.logprob_token_ids, "holds more than 128 ids")
        if self.prompt_logprob_start is not None:
            _check_integer("prompt_logprob_start", self.prompt_logprob_start, 0)
            if self.prompt_logprob_token_ids is None:
                problem = "needs prompt_logprob_token_ids"
                raise refuse("prompt_logprob_start", self.prompt_logprob_start, problem)

    def _check_features(self) -> None:
        for name in _ABSENT_FEATURES:
            value = getattr(self, name)
            if value is not None and not (name in _OFF_AT_ZERO and value == 0):
                raise NotImplementedError(f"SamplingParams.{name} is not implemented")

    def _make_greedy(self) -> None:
        if self.n > 1:
            raise refuse("n", self.n, "must be 1 when sampling is greedy")
        self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0


_BOOLEANS = (
    "ignore_eos",
    "flat_logprobs",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "skip_clone",
)
_ID_LISTS = (
    "stop_token_ids",
    "allowed_token_ids",
    "logprob_token_ids",
    "trace_decode_token_ids",
    "bad_words_token_ids",
)
_NUMBERS = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "min_p",
)
_OFF_AT_ZERO = ("routed_experts_prompt_start",)  # vLLM's default
_ABSENT_FEATURES = (
    "watermarking",
    "routed_experts_prompt_start",
)


def cannot_be_sent(
    error: Exception, kind: type[msgspec.Struct], parameter: str | None = None
) -> ValidationError:
    """Why a struct of ours cannot be encoded or read, naming the field if it is known."""
    if isinstance(error.__cause__, ValidationError):  # of a `__post_init__`
        return error.__cause__
    names = list(kind.__struct_fields__)
    if kind.__struct_config__.tag is not None:
        names.insert(0, "")
    place = _PLACE.search(str(error))
    name = names[int(place[1])] if place and int(place[1]) < len(names) else parameter
    if name == "params" and place and place[2]:
        name = SamplingParams.__struct_fields__[int(place[2])]
    problem = str(error).partition(" - at `")[0]
    return ValidationError(f"{name or 'the request'} cannot be sent: {problem}", name)


_PLACE = re.compile(r"at `\$\[(\d+)\](?:\[(\d+)\])?")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(name, value, "must be a number")
    if not math.isfinite(value) or not low <= value <= high:
        raise refuse(name, value, f"must be finite and between {low:g} and {high:g}")


def _check_integer(name: str, value: object, low: int, high: int = MAX_INTEGER) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(name, value, "must be an integer")
    if not low <= value <= high:
        is_low = value < low and high == MAX_INTEGER
        limit = f"at least {low}" if is_low else f"between {low} and {high}"
        raise refuse(name, value, f"must be {limit}")


def _check_strings(name: str, values: object) -> None:
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise refuse(name, values, "must be strings")
    if "" in values:
        raise refuse(name, values, "must not hold an empty string")
    for value in values:
        check_text(name, value)


def _check_ids(name: str, values: Iterable[object] | None) -> None:
    for value in values or ():
        _check_integer(name, value, 0)


def _as_list(name: str, value: object, what: str) -> list[Any] | None:
    if value is None:
        return None
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        raise refuse(name, value, f"must be a list of {what}")
    return list(value)


def _as_rows(value: Any) -> list[list[int]] | None:
    """Ids for each row of a prompt as rows of one length; one list of ids is a single row."""
    name = "prompt_logprob_token_ids"
    if value is None:
        return None
    if hasattr(value, "tolist"):  # an array of numpy, which this module does not import
        value = value.tolist()
    rows: list[Any] = _as_list(name, value, "token ids for each row") or []
    if rows and not any(isinstance(row, Collection) for row in rows):
        rows = [rows]
    rows = [_as_list(name, row, "token ids") for row in rows]
    num_ids = max(map(len, rows), default=0)
    if num_ids == 0:
        raise refuse(name, value, "must not be empty")
    if not all(type(token_id) is int and token_id >= -1 for row in rows for token_id in row):
        raise ValidationError(f"{name} must hold token ids, or -1 for none", name)
    return [[*row, *[-1] * (num_ids - len(row))] for row in rows]


def _check_extra_args(value: object) -> None:
    """Refuse integers that no transport of vLLM's could carry. Other contents are the caller's."""
    if not isinstance(value, dict | None):
        raise refuse("extra_args", value, "must be a dict")
    pending: list[Any] = [value]
    seen: set[int] = set()  # containers may be shared, or hold themselves
    while pending:
        each = pending.pop()
        if isinstance(each, int) and not MIN_INTEGER <= each <= MAX_INTEGER:
            raise refuse("extra_args", each, "integers must have at most 64 bits")
        if isinstance(each, dict | list | tuple) and id(each) not in seen:
            seen.add(id(each))
            pending += [*each, *each.values()] if isinstance(each, dict) else each


def _clamp_bias(logit_bias: dict[int, float] | dict[str, float]) -> dict[int, float]:
    clamped: dict[int, float] = {}
    if not isinstance(logit_bias, dict):
        raise refuse("logit_bias", logit_bias, "must be a dict of token ids")
    for key, bias in logit_bias.items():
        try:
            clamped[int(key)] = min(100.0, max(-100.0, bias))
        except (ValueError, TypeError):
            problem = "must have token ids as keys and numbers as values"
            raise refuse("logit_bias", {key: bias}, problem) from None
    return clamped
