"""What a request may look like when it comes in: forms of prompts, and checks against the model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from engine.client.parsing.marks import Marks
from engine.client.text.tokenizer import Tokenizer
from engine.errors import ValidationError, check_text, refuse
from engine.ipc import Ready
from engine.pooling import GENERATING_TASKS, PoolingParams, check_dimensions, task_problem
from engine.sampling_params import RequestOutputKind, SamplingParams

MAX_ID_CHARACTERS = 1024
MIN_PRIORITY, MAX_PRIORITY = -(1 << 63), (1 << 63) - 1


class TextPrompt(TypedDict):
    """A prompt as text; special tokens in it are parsed."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as ids, taken as they are. A text beside them is only echoed.

    What vLLM's renderers make has also its `type`, "token", and may say when it came in.
    """

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    type: NotRequired[str]
    arrival_time: NotRequired[float]


Prompt = str | list[int] | TextPrompt | TokensPrompt | None


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    text: str | None
    token_ids: list[int] | None  # they win over the text
    cache_salt: str = ""
    arrival_time: Any = None


class InputPreprocessor:
    """From any form of a prompt to the ids that the model reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def preprocess(self, prompt: Prompt) -> TokensPrompt:
        """Raises `ValidationError` for what is no prompt."""
        parsed = parse_prompt(prompt)
        ids = parsed.token_ids
        if ids is None:
            ids = self.tokenizer.encode(parsed.text or "")
        return tokens_prompt(parsed, ids)

    async def preprocess_async(self, prompt: Prompt) -> TokensPrompt:
        """As `preprocess`, with long texts in another thread."""
        parsed = parse_prompt(prompt)
        ids = parsed.token_ids
        if ids is None:
            ids = await self.tokenizer.encode_async(parsed.text or "")
        return tokens_prompt(parsed, ids)


def parse_prompt(
    prompt: Any, prompt_token_ids: list[int] | None = None, prompt_text: str | None = None
) -> ParsedPrompt:
    """Any form of a prompt as text or ids. `ValidationError` says what is wrong with it."""
    salt = arrival_time = None
    if isinstance(prompt, Mapping):
        _check_keys(prompt)
        salt, arrival_time = prompt.get("cache_salt"), prompt.get("arrival_time")
        prompt_token_ids = prompt_token_ids or prompt.get("prompt_token_ids")
        prompt = prompt.get("prompt")
    elif isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes):
        prompt_token_ids, prompt = prompt_token_ids or list(prompt), None
    if prompt is not None and not isinstance(prompt, str):
        raise NotImplementedError(f"a {type(prompt).__name__} as prompt is not implemented")
    if prompt_text is not None and not isinstance(prompt_text, str):
        raise refuse("prompt_text", prompt_text, "must be a string")
    text = prompt if prompt is not None else prompt_text
    if prompt_token_ids is None and text is None:
        raise ValidationError("a prompt needs text or token ids", "prompt", prompt)
    if salt is not None and not isinstance(salt, str):
        raise refuse("cache_salt", salt, "must be a string")
    for name, value in (("prompt", prompt), ("prompt_text", prompt_text), ("cache_salt", salt)):
        check_text(name, value or "")
    token_ids = checked_ids("prompt_token_ids", prompt_token_ids)
    return ParsedPrompt(text, token_ids, salt or "", arrival_time)


def check_request_id(request_id: Any) -> None:
    """Refuse an id whose text is too long, or is none."""
    text = str(request_id)
    if len(text) > MAX_ID_CHARACTERS:
        raise refuse("request_id", text, f"must have at most {MAX_ID_CHARACTERS} characters")
    check_text("request_id", text)


def check_rank(rank: Any) -> None:
    """Refuse the number of an engine beside the only one."""
    if rank is not None and (type(rank) is not int or rank != 0):
        raise refuse("data_parallel_rank", rank, "must be 0: there is one engine")


def check_order(priority: Any, arrival_time: Any) -> None:
    """Refuse a priority that is no integer, and a time that is no number of seconds."""
    if type(priority) is not int or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise refuse("priority", priority, "must be an integer of 64 bits")
    if arrival_time is None:
        return
    if isinstance(arrival_time, bool) or not isinstance(arrival_time, int | float):
        raise refuse("arrival_time", arrival_time, "must be seconds since 1970")
    if not math.isfinite(arrival_time):
        raise refuse("arrival_time", arrival_time, "must be finite")


def check_tokenization(options: Any, token_ids: object) -> None:
    """Refuse `tokenization_kwargs` that would have no effect."""
    if options is not None and not isinstance(options, Mapping):
        raise refuse("tokenization_kwargs", options, "must be a dict")
    if options and token_ids is not None:
        problem = "have no effect on token ids"
        raise refuse("tokenization_kwargs", dict(options), problem)
    unknown = sorted(map(str, (options or {}).keys() - {"add_special_tokens"}))
    if unknown:
        raise NotImplementedError(f"tokenization_kwargs {unknown} are not implemented")
    if options and not isinstance(options["add_special_tokens"], bool):
        raise refuse("tokenization_kwargs", dict(options), "must say True or False")


def checked_ids(name: str, token_ids: Any) -> list[int] | None:
    """A list of one's own with these ids. `ValidationError` if they are no integers."""
    if token_ids is None:
        return None
    try:
        ids = list(token_ids)
    except TypeError:
        raise refuse(name, token_ids, "must be integers") from None
    if not all(type(token_id) is int for token_id in ids):
        raise ValidationError(f"{name} must be integers", name, None)
    return ids


def check_params(params: Any, max_logprobs: int, vocab_size: int | None = None) -> None:
    """Refuse what no request to this engine can have."""
    if not isinstance(params, SamplingParams):
        raise NotImplementedError(f"{type(params).__name__} is not implemented")
    for name, given in (
        ("bad_words_token_ids", "bad_words"),
        ("thought_tokens", "thinking_token_budget"),
    ):
        if getattr(params, name) is not None:
            raise ValidationError(f"{name} is written by the engine: give {given}", name, None)
    for name in ("logprobs", "prompt_logprobs"):
        number = getattr(params, name)
        if number is not None and max_logprobs != -1 and not 0 <= number <= max_logprobs:
            raise ValidationError(f"{name} must be at most {max_logprobs}", name, number)
    rows = params.prompt_logprob_token_ids or [[]]
    if max_logprobs != -1 and len(rows[0]) > max_logprobs:
        problem = f"prompt_logprob_token_ids must have at most {max_logprobs} ids a row"
        raise ValidationError(problem, "prompt_logprob_token_ids", len(rows[0]))
    if vocab_size is not None and max(max(row, default=0) for row in rows) >= vocab_size:
        problem = f"prompt_logprob_token_ids must be below the vocabulary's size, {vocab_size}"
        raise ValidationError(problem, "prompt_logprob_token_ids", None)
    for name in _TOKEN_IDS:
        if vocab_size is not None and max(getattr(params, name) or (0,)) >= vocab_size:
            problem = f"{name} must be below the vocabulary's size, {vocab_size}"
            raise ValidationError(problem, name, getattr(params, name))


def supported_tasks(ready: Ready) -> tuple[str, ...]:
    """What the model can be asked for; cores of earlier versions do not say it."""
    if ready.tasks:
        return tuple(ready.tasks)
    return GENERATING_TASKS if ready.embedding_size else ("generate",)


def check_pooling(resume_token_ids: Sequence[int]) -> None:
    """Refuse what no prompt that is pooled can have."""
    if resume_token_ids:
        problem = "resume_token_ids are of an answer, and a prompt that is pooled has none"
        raise ValidationError(problem, "resume_token_ids", None)


def check_prompt(
    token_ids: Sequence[int],
    resume_token_ids: Sequence[int],
    params: SamplingParams,
    ready: Ready,
    pooling: PoolingParams | None = None,
) -> None:
    """Refuse a prompt that the model cannot read or the cache cannot hold, with its answer.

    One that is pooled has none.
    """
    if pooling is not None:
        check_dimensions(pooling, ready.embedding_size)
    if (problem := task_problem(pooling, supported_tasks(ready))) is not None:
        raise ValidationError(problem, "task", None)
    if not token_ids:
        raise ValidationError("the prompt is empty", "prompt", "")
    length = len(token_ids) + len(resume_token_ids)
    num_needed = length + (pooling is None)
    if num_needed > ready.max_model_len:
        raise ValidationError(
            f"the prompt has {length} tokens, and the model's context {ready.max_model_len}",
            "prompt",
            length,
        )
    if num_needed > ready.num_blocks * ready.block_size:
        num_slots = ready.num_blocks * ready.block_size
        problem = f"the prompt has {length} tokens, and the KV cache {num_slots}"
        raise ValidationError(problem, "prompt", length)
    check_scored_rows(params, len(token_ids))
    room = ready.max_model_len - len(token_ids)
    if params.min_tokens > room:
        problem = f"must be at most {room}, what the context leaves for the answer"
        raise refuse("min_tokens", params.min_tokens, problem)
    for name, ids in (("prompt", token_ids), ("resume_token_ids", resume_token_ids)):
        if ids and not 0 <= min(ids) <= max(ids) < ready.vocab_size:
            raise ValidationError("token ids must be of the model's vocabulary", name, None)


def check_scored_rows(params: SamplingParams, num_prompt_tokens: int) -> None:
    """Refuse rows of ids that are not those of the prompt's tokens which predict another."""
    rows = params.prompt_logprob_token_ids
    if rows is None:
        return
    start = params.prompt_logprob_start or 0
    num_scored = num_prompt_tokens - 1 - start
    if num_scored < 0:
        problem = f"must be below {num_prompt_tokens}, the prompt's tokens"
        raise refuse("prompt_logprob_start", start, problem)
    if len(rows) not in (1, num_scored):
        problem = f"must have {num_scored} rows, or one list of ids for all of them"
        raise refuse("prompt_logprob_token_ids", f"{len(rows)} rows", problem)


def bad_word_ids(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The token sequences that write these words, at the start of a text and after a space."""
    forms = (f"{space}{word.lstrip()}" for word in words for space in ("", " "))
    found = {tuple(tokenizer.encode(form, add_special_tokens=False)) for form in forms if form}
    return [list(ids) for ids in sorted(found)]


_TOKEN_IDS = (
    "stop_token_ids",
    "logit_bias",
    "allowed_token_ids",
    "logprob_token_ids",
    "trace_decode_token_ids",
)


_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_MADE_KEYS = ("type", "arrival_time", "prompt_token_offsets")  # of vLLM's renderers, besides
# Keys of vLLM's prompts for what is not text.
_ABSENT_INPUTS = frozenset(
    ("prompt_embeds", "multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")
)


def _check_keys(prompt: Mapping[Any, Any]) -> None:
    for key, value in prompt.items():
        if key in _ABSENT_INPUTS:
            if value is not None and not (isinstance(value, dict) and not value):
                raise NotImplementedError(f"a prompt with {key} is not implemented")
        elif key == "type" and value != "token":
            raise NotImplementedError(f"a prompt of type {value!r} is not implemented")
        elif key not in _KEYS and key not in _MADE_KEYS:
            raise refuse("prompt", key, f"has keys {', '.join(_KEYS)}")


def tokens_prompt(parsed: ParsedPrompt, token_ids: list[int]) -> TokensPrompt:
    """A prompt whose text, if it has one, has these ids."""
    prompt = TokensPrompt(prompt_token_ids=token_ids)
    if parsed.text is not None:
        prompt["prompt"] = parsed.text
    if parsed.cache_salt:
        prompt["cache_salt"] = parsed.cache_salt
    return prompt


def check_marks(marks: Any, params: SamplingParams | PoolingParams) -> None:
    """`ValidationError` for what is none, or for an answer without a text of its own."""
    if marks is None:
        return
    if not isinstance(marks, Marks):
        raise refuse("marks", marks, "must be Marks")
    if not isinstance(params, SamplingParams) or params.n != 1 or not params.detokenize:
        raise refuse("marks", marks, "needs n = 1 and detokenize")


def check_callbacks(
    on_progress: Any, on_delta: Any, params: SamplingParams | PoolingParams
) -> None:
    """`ValidationError` for what cannot be called, or for outputs that nobody would hear of."""
    for name, callback in (("on_progress", on_progress), ("on_delta", on_delta)):
        if callback is not None and not callable(callback):
            raise refuse(name, callback, "must be a function")
    if on_delta is not None and (
        not isinstance(params, SamplingParams)
        or params.n != 1
        or params.output_kind is not RequestOutputKind.DELTA
    ):
        raise refuse("on_delta", on_delta, "needs n = 1 and output_kind DELTA")
