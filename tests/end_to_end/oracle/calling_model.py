"""A tiny checkpoint that calls a tool at each question, and answers when that has given back."""

from pathlib import Path

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
# Where an answer begins and ends: a token follows the one before it, as in the model that counts.
TOKENS = ("<unk>", "<asked>", *CALL, "<end>", "<given>", *ANSWER, "<over>")
CONTROL = ("<unk>", "<asked>", "<end>", "<given>", "<over>")
CHAT_TEMPLATE = (
    "{# It writes <tool_call> and </tool_call>. #}{% if tools %}{% endif %}"
    "{% if messages[-1].role == 'tool' %}<given>{% else %}<asked>{% endif %}"
)


def build_calling_model(folder: Path) -> Path:
    """Write the model: whatever it is asked, it calls `current_time`, and says the same then."""
    tokenizer = Tokenizer(
        models.WordLevel({token: place for place, token in enumerate(TOKENS)}, unk_token="<unk>")
    )
    tokenizer.add_special_tokens(list(CONTROL))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    ends = [TOKENS.index("<end>"), TOKENS.index("<over>")]
    return build_oracle_model(
        folder,
        vocab=len(TOKENS),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
        eos_token_ids=ends,
    )
