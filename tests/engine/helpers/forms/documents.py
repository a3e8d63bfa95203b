"""Whether a schema's masks would let a model write a document, spelled as well as may be."""

import json
from collections.abc import Iterator
from itertools import islice, permutations, product
from typing import Any

import llguidance
from llguidance import LLMatcher

MAX_ORDERS = 24  # of the properties of an object, and of the spellings of a value


def accepts(tokenizer: llguidance.LLTokenizer, matcher: LLMatcher, text: str) -> bool:
    """Whether an answer may be this text. The matcher stays as it is."""
    walked = matcher.deep_copy()
    walked.consume_tokens(tokenizer.greedy_tokenize(text))
    return not walked.is_error() and walked.is_accepting()


def takes(tokenizer: llguidance.LLTokenizer, matcher: LLMatcher, document: Any) -> bool:
    """Whether an answer may be a spelling of it: properties in any order, 2.0 also as 2."""
    return any(
        accepts(tokenizer, matcher, json.dumps(each, ensure_ascii=is_ascii))
        for each in islice(_spellings(document), MAX_ORDERS**2)
        for is_ascii in (False, True)
    )


def _spellings(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for order in islice(permutations(value.items()), MAX_ORDERS):
            spelled = (list(_spellings(each)) for _, each in order)
            for values in islice(product(*spelled), MAX_ORDERS):
                yield dict(zip([name for name, _ in order], values, strict=True))
    elif isinstance(value, list):
        for values in islice(product(*map(list, map(_spellings, value))), MAX_ORDERS):
            yield list(values)
    else:
        yield value
        if isinstance(value, float) and value.is_integer():
            yield int(value)
