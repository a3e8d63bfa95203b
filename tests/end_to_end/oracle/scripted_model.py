"""A tiny checkpoint that says by heart what a test wants to see: thoughts, calls of tools, text."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from tests.helpers.tiny_model import build_oracle_model

Pieces = Sequence[str]  # a token each
NUMBERED = "\N{SYMBOL FOR NULL}"  # what follows it in a token is its number, and no text

# `<think>` and `<tool_call>` are no tokens here: what spells them is one. A call of a script whose
# answers were given goes on with the next part, as a model does that reads what its tools gave.
_BEGINS = """\
{#- <think> </think> <tool_call> </tool_call> #}{% if tools %}{% endif %}\
{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}\
{% set place = namespace(given=0) %}\
{% for each in messages %}{% if each.role == 'tool' %}\
{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}\
{% set place.given = place.given + 1 %}{% endif %}\
{% elif each.role == 'user' %}{% set place.given = 0 %}{% endif %}{% endfor %}\
{% set wanted = (asked[-1].content | trim) ~ '/' ~ place.given %}"""


def build_scripted_model(folder: Path, scripts: Mapping[str, Sequence[Pieces]]) -> Path:
    """Write the model. `scripts`: a question, and the parts of its answer; between two of them its
    calls are answered. It has nothing to say to any other question.
    """
    tokens = ["<unk>", "<end>"]
    tests = ["{% if false %}"]
    for question, part, pieces in _parts(scripts):
        begin = f"<begin{len(tests)}>"
        tests.append(f"{{% elif wanted == {question + '/' + str(part)!r} %}}{begin}")
        tokens.append(begin)
        for piece in pieces:  # may stand in several places, and a token only in one
            tokens.append(f"{piece}{NUMBERED}{len(tokens)}")
        tokens.append(f"<end{len(tests)}>")
    tokenizer = Tokenizer(
        models.WordLevel({token: place for place, token in enumerate(tokens)}, unk_token="<unk>")
    )
    marks = [token for token in tokens if token.startswith(("<begin", "<end", "<unk"))]
    tokenizer.add_special_tokens(marks)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), "isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(Regex(NUMBERED + r"\d+"), ""), decoders.Fuse()]
    )
    return build_oracle_model(
        folder,
        vocab=len(tokens),
        tokenizer=tokenizer,
        chat_template=_BEGINS + "".join(tests) + "{% else %}<unk>{% endif %}",
        eos_token_ids=[place for place, token in enumerate(tokens) if token.startswith("<end")],
    )


def words(text: str) -> list[str]:
    """A text in pieces as long as words."""
    return [piece for line in text.splitlines(keepends=True) for piece in _cut(line)]


def call(name: str, arguments: str, size: int = 6) -> list[str]:
    """A call as Hermes and Qwen write it; the arguments in pieces of so many characters."""
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    head = f'<tool_call>\n{{"name": "{name}", "arguments": '
    return [head, *pieces, "}", "\n</tool_call>"]


def _cut(line: str) -> Iterator[str]:
    word = ""
    for character in line:
        word += character
        if character.isspace():
            yield word
            word = ""
    if word:
        yield word


def _parts(scripts: Mapping[str, Sequence[Pieces]]) -> Iterator[tuple[str, int, Pieces]]:
    for question, parts in scripts.items():
        for number, pieces in enumerate(parts):
            yield question, number, pieces
