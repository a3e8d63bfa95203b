"""`Encoding`, and the options of transformers' tokenizers that ours does not have."""

from collections.abc import Mapping
from typing import Any


class Encoding(dict[str, Any]):
    """What a call of a tokenizer gives: a dict whose values are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"an encoding has no {name!r}") from None


def encoding_of(ids: list[int] | list[list[int]]) -> Encoding:
    """The encoding of one text or of several, all of whose ids are to be attended to."""
    masks = [[1] * len(each) if isinstance(each, list) else 1 for each in ids]
    return Encoding(input_ids=ids, attention_mask=masks)


def refuse_options(function: str, options: Mapping[str, Any]) -> None:
    """`NotImplementedError` for what asks for something, `TypeError` for what is no option."""
    for name, value in options.items():
        if name not in _OPTIONS:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        if not any(value is each for each in (None, False, _OPTIONS[name])):
            raise NotImplementedError(f"{function}({name}={value!r}) is not implemented")


TEMPLATE_OPTIONS = (
    "chat_template",
    "continue_final_message",
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_tensors",
    "tokenizer_kwargs",
    "truncation",
)
# Each with a value, besides None and False, that changes nothing.
_OPTIONS: dict[str, Any] = {
    "chat_template": None,
    "clean_up_tokenization_spaces": None,
    "continue_final_message": None,
    "is_split_into_words": None,
    "max_length": None,
    "pad_to_multiple_of": None,
    "padding": None,
    "padding_side": None,
    "return_assistant_tokens_mask": None,
    "return_attention_mask": True,
    "return_length": None,
    "return_offsets_mapping": None,
    "return_overflowing_tokens": None,
    "return_special_tokens_mask": None,
    "return_tensors": None,
    "return_token_type_ids": None,
    "stride": 0,
    "text_pair": None,
    "text_target": None,
    "tokenizer_kwargs": None,
    "truncation": None,
    "use_source_tokenizer": None,
    "verbose": True,
}
