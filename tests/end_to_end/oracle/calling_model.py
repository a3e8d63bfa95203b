"""A tiny checkpoint that calls tools at each question, and answers when they have given back."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from tests.helpers.tiny_model import build_oracle_model

CALL = (
    "<tool_call>\n",
    '{"name": "current_time", ',
    '"arguments": {"zo',
    'ne": "UTC"}}',
    "\n</tool_call>",
)
ANSWER = ("Now you know ", "the time ", "there.")
CHAT_TEMPLATE = (
    "{# It writes <tool_call> and </tool_call>. #}{% if tools %}{% endif %}"
    "{% if messages[-1].role == 'tool' %}<given>{% else %}<asked>{% endif %}"
)


def words_of(*calls: tuple[str, dict[str, Any]]) -> list[str]:
    """The tokens that make these calls; each is there once."""
    said = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
    return [f"<tool_call>\n{one}\n</tool_call>" for one in said]


def build_calling_model(folder: Path, calls: Sequence[str] = CALL) -> Path:
    """Write the model: to every question it makes these calls, and says the same then.

    By default it calls `current_time`.
    """
    # Where an answer begins and ends: a token follows the one before it, as in the model that
    # counts.
    tokens = ("<unk>", "<asked>", *calls, "<end>", "<given>", *ANSWER, "<over>")
    tokenizer = Tokenizer(
        models.WordLevel({token: place for place, token in enumerate(tokens)}, unk_token="<unk>")
    )
    tokenizer.add_special_tokens(["<unk>", "<asked>", "<end>", "<given>", "<over>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    ends = [tokens.index("<end>"), tokens.index("<over>")]
    return build_oracle_model(
        folder,
        vocab=len(tokens),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
        eos_token_ids=ends,
    )
