"""What the model of `HookedCore` answers to a request that is alone, in plain Python."""

import math
from typing import Any

from engine.pooling import PoolingParams
from engine.repetition import RepetitionDetectionParams
from tests.engine.core.sampling.row_processors import follower
from tests.engine.helpers.fakes import EOS
from tests.engine.helpers.interleavings.forms import (
    FAILING,
    FAILS_AT,
    REFUSED_FORM,
    length_of,
)

FIRST_OF_CYCLES = 300  # from here on tokens follow each other in circles of three
CLASS_WEIGHTS = [[0.01, 0.5], [-0.02, 1.0], [0.03, -1.0]]


def successor(last: int, ignore_eos: bool) -> int:
    """What follows a token, mostly the next number."""
    if last >= FIRST_OF_CYCLES:
        return last + 1 if last % 3 < 2 else last - 2
    return EOS if last % 17 == 0 and not ignore_eos else last + 1


def candidates(last: int, number: int) -> list[tuple[int, float, int]]:
    """The best that may follow, for a beam search: token, logprob and rank. Some end a beam."""
    ids = [1 + (last * 7 + 13 * place) % 900 for place in range(number)]
    if last % 3 == 0:
        ids[-1] = EOS
    return [(token, -0.3 * place - last % 7 / 10, place) for place, token in enumerate(ids, 1)]


def hidden_state(token: int) -> list[float]:
    return [float(token), 1.0]


def expected_answer(fields: dict[str, Any], max_model_len: int) -> tuple[list[int], str]:
    """Tokens and finish reason."""
    prompt, resumed = fields["prompt"], fields["resume_token_ids"]
    tokens = list(resumed)
    limit = min(fields["max_tokens"], max_model_len - len(prompt))
    while (reason := _end(tokens, fields, limit)) is None:
        if not prompt:
            return [], "error"
        if (form := fields.get("structured_outputs")) is not None:
            tokens, reason = _in_form(form.regex, prompt, tokens, limit)
            return tokens[len(resumed) :], reason
        args = fields.get("extra_args") or {}
        if "fault" in args and len(tokens) == 2:
            return tokens[len(resumed) :], "error"
        if "follow" in args:
            tokens.append(follower(prompt, tokens))
        elif fields.get("logprobs"):
            tokens.append(candidates([*prompt, *tokens][-1], fields["logprobs"])[0][0])
        else:
            tokens.append(successor([*prompt, *tokens][-1], fields["ignore_eos"]))
    return tokens[len(resumed) :], reason


def _in_form(text: str, prompt: list[int], tokens: list[int], limit: int) -> tuple[list[int], str]:
    """An answer that is held to one of `FORMS`, and why it ends."""
    if text == REFUSED_FORM or (text.startswith(FAILING) and len(tokens) >= FAILS_AT):
        return tokens, "error"
    while len(tokens) < limit:
        if text.startswith(FAILING) and len(tokens) >= FAILS_AT:
            return tokens, "error"
        if len(tokens) >= length_of(text):
            return [*tokens, EOS], "stop"
        tokens = [*tokens, successor([*prompt, *tokens][-1], ignore_eos=True)]
    return tokens, "length"


def _end(tokens: list[int], fields: dict[str, Any], limit: int) -> str | None:
    """Why the answer is over, if it is."""
    if not tokens:
        return None
    if tokens[-1] == EOS and not fields["ignore_eos"]:
        return "stop"
    if len(tokens) >= limit:
        return "length"
    return "repetition" if _is_repeated(tokens, fields.get("repetition_detection")) else None


def _is_repeated(tokens: list[int], params: RepetitionDetectionParams | None) -> bool:
    if params is None:
        return False
    sizes = range(max(1, params.min_pattern_size), params.max_pattern_size + 1)
    return any(
        len(tokens) >= size * params.min_count
        and tokens[-size * params.min_count :] == tokens[-size:] * params.min_count
        for size in sizes
    )


def expected_numbers(prompt: list[int], pooling: PoolingParams) -> list[float]:
    """An embedding, or the probability of each class."""
    states = [hidden_state(token) for token in prompt]
    mean = [sum(column) / len(states) for column in zip(*states, strict=True)]
    vector = {"LAST": states[-1], "CLS": states[0], "MEAN": mean}[pooling.pooling_type]
    if not pooling.is_classified:
        return [number / math.hypot(*vector) for number in vector]
    products = [sum(a * b for a, b in zip(row, vector, strict=True)) for row in CLASS_WEIGHTS]
    if pooling.task == "score":
        return [1 / (1 + math.exp(-number)) for number in products]
    powers = [math.exp(number) for number in products]
    return [power / sum(powers) for power in powers]
