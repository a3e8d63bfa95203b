"""`Tokenizer`: text to token ids and back, with the methods people know from transformers.

Over the `tokenizers` library alone: importing transformers would cost every worker 500 MiB.

What a user types never becomes a control token: `apply_chat_template` keeps the contents of
messages apart from the template's markers (`content_guard.py`). For a conversation without such
texts the ids are those of transformers. Raw prompts (`encode`) are the caller's own, and parsed as
there.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, overload

import tokenizers

from engine.client.templates.chat_template import (
    FALLBACK_STOP,
    FALLBACK_TEMPLATE,
    ChatTemplate,
    Message,
)
from engine.client.text.byte_decoder import TokenBytes, joins_bytes, token_of_bytes
from engine.client.text.content_guard import ContentGuard, ControlTokens, Twin
from engine.client.text.encoding import TEMPLATE_OPTIONS, Encoding, encoding_of, refuse_options
from engine.client.text.piecewise_encoding import PiecewiseEncoder
from engine.client.text.size_bound import SizeBound
from engine.client.text.tokenizer_folder import read_folder, try_template
from engine.client.text.turns import Turns
from engine.errors import PromptTooLongError, ValidationError, check_text, refuse
from engine.folder.model_files import reading

# Encoding a shorter text takes less time on the event loop than a trip to another thread.
INLINE_CHARACTERS = 512
# A text of more characters for each token that may be is likely too long: words have some four.
LIKELY_CHARACTERS = 5
PIECE_CHARACTERS = 8192  # of such a text are counted at a time
CUT_TOKENS = 32  # more than a cut in the middle of a text may add, besides the bytes of a token
NO_MAX_LENGTH = int(1e30)  # as transformers has it


class Tokenizer:
    """The tokenizer of one checkpoint folder. Its methods may be called from any thread.

    Raises `UnsupportedModelError` for a folder without a tokenizer that we can read.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        found = read_folder(self._folder)
        self._config = found.config
        self._backend = found.backend
        self.special_tokens_map = found.special_tokens
        self.has_chat_template = found.chat_template is not None
        self.chat_template = ChatTemplate(found.chat_template or FALLBACK_TEMPLATE)
        self._template_file = found.template_file
        with reading(found.backend_file):
            self._control = ControlTokens(self._backend, self.chat_template.source)
            added = self._backend.get_added_tokens_decoder().values()
            self._bound = SizeBound(self._backend, added)
        self._turns = Turns("tokenizer")

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the chat template reads definitions of tools."""
        return self.has_chat_template and _READS_TOOLS.search(self.chat_template.source) is not None

    def try_chat_template(self) -> None:
        """Raise `UnsupportedModelError` if its template is broken, or leaves its bounds."""
        try_template(self.chat_template, self._template_file)

    def close(self) -> None:
        """End the process that renders the template. It comes back when it is needed."""
        self.chat_template.close()

    def __await__(self) -> Generator[None, None, Self]:
        """`await engine.get_tokenizer()` gives the same as `engine.get_tokenizer()`."""
        return self
        yield

    def __len__(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def vocab_size(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=False)

    @property
    def bos_token_id(self) -> int | None:
        return self._special_id("bos_token")

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens_map.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens_map.get("eos_token")

    @property
    def pad_token(self) -> str | None:
        return self.special_tokens_map.get("pad_token")

    @property
    def unk_token(self) -> str | None:
        return self.special_tokens_map.get("unk_token")

    @property
    def name_or_path(self) -> str:
        return str(self._folder)

    @property
    def model_max_length(self) -> int:
        """What the checkpoint says of its context; `NO_MAX_LENGTH` if it says nothing."""
        value = self._config.get("model_max_length")
        return int(value) if isinstance(value, int | float) else NO_MAX_LENGTH

    def get_vocab(self) -> dict[str, int]:
        """Token → id, added tokens included."""
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocabulary

    @property
    def eos_token_id(self) -> int | None:
        return self._special_id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        return self._special_id("pad_token")

    @cached_property
    def all_special_ids(self) -> list[int]:
        tokens = self._backend.get_added_tokens_decoder()
        return sorted(token_id for token_id, token in tokens.items() if token.special)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that `decode(skip_special_tokens=True)` leaves out."""
        return frozenset(self.all_special_ids)

    @cached_property
    def byte_values(self) -> dict[int, int]:
        """id → byte of the tokens that stand for one byte of a character, `<0xE2>` and so on."""
        values = {}
        for byte in range(256):
            name = f"<0x{byte:02X}>"
            token_id = self._backend.token_to_id(name)
            if token_id is not None and self._backend.decode([token_id]) != name:
                values[token_id] = byte
        return values

    @cached_property
    def token_bytes(self) -> TokenBytes | None:
        """id → its bytes, where decoding only joins these; otherwise None."""
        return TokenBytes(self._backend) if joins_bytes(self._backend) else None

    @cached_property
    def visible_bytes(self) -> TokenBytes | None:
        """The same for `decode(skip_special_tokens=True)`."""
        if not joins_bytes(self._backend):
            return None
        return TokenBytes(self._backend, self.special_ids)

    def bytes_of_id(self, token_id: int) -> bytes | None:
        """What a token adds to the bytes of a text; None if that depends on what is before it."""
        if self.token_bytes is not None:
            return self.token_bytes[token_id]
        byte = self.byte_values.get(token_id)
        return None if byte is None else bytes([byte])

    def id_of_bytes(self, content: bytes) -> int | None:
        """The token that stands for these bytes in any place; None if there is none."""
        if self.token_bytes is None:
            return self._byte_ids.get(content)
        token_id: int | None = self._backend.token_to_id(token_of_bytes(content))
        is_it = token_id is not None and self.token_bytes[token_id] == content
        return token_id if is_it else None

    @cached_property
    def _byte_ids(self) -> dict[bytes, int]:
        return {bytes([byte]): token_id for token_id, byte in self.byte_values.items()}

    @property
    def chat_stop(self) -> tuple[str, ...]:
        """Stop strings that answers in a chat need; none unless the fallback template is used."""
        return () if self.has_chat_template else FALLBACK_STOP

    @property
    def response_template(self) -> object:
        """What the checkpoint says of how its answers are read; None if it says nothing."""
        return self._config.get("response_template")

    @cached_property
    def added_tokens(self) -> list[tuple[int, str, bool]]:
        """Id and text of the tokens beside the vocabulary's own, and whether answers show it."""
        tokens = self._backend.get_added_tokens_decoder().items()
        return [(token_id, token.content, not token.special) for token_id, token in tokens]

    # ---- text ↔ ids

    def encode(self, text: str, add_special_tokens: bool = True, **options: Any) -> list[int]:
        """The ids of a text. Special tokens in it are parsed, the model's own are put around it.

        `options`, here and below, are those of transformers: refused by name, unless they ask for
        nothing.
        """
        refuse_options("encode", options)
        return _encode(self._backend, text, add_special_tokens)

    def encode_pair(self, text: str, pair: str) -> list[int]:
        """The ids of two texts that a model compares, with the model's own tokens around them."""
        for name, value in (("text", text), ("pair", pair)):
            if not isinstance(value, str):
                raise refuse(name, value, "must be a string")
            check_text(name, value)
        ids: list[int] = self._backend.encode(text, pair).ids
        return ids

    async def encode_async(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        max_length: int | None = None,
        owner: str = "",
    ) -> list[int]:
        """As `encode`, in another thread when the text is long; there, owners take turns.

        More ids than `max_length` are `PromptTooLongError`: made into a list, a few million of them
        would stop the event loop for longer than it takes to count them. A text that is hopelessly
        long is refused by its size or its beginning, so that it does not delay the next texts.
        """
        if len(text) <= INLINE_CHARACTERS:
            return _encode(self._backend, text, add_special_tokens, max_length)

        def encode() -> list[int]:
            if max_length is not None:
                self._refuse_by_size(text, max_length)
                _refuse_by_beginning(self._backend, text, max_length)
            return _encode(self._backend, text, add_special_tokens, max_length)

        return await self._turns.run(owner, encode)

    def decode(
        self,
        token_ids: Sequence[int] | int,
        skip_special_tokens: bool = False,
        *,
        spaces_between_special_tokens: bool = True,
        **options: Any,
    ) -> str:
        """The text of ids. Only some decoders put spaces between special tokens at all."""
        if options:
            refuse_options("decode", options)
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        if skip_special_tokens or spaces_between_special_tokens:
            try:
                return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
            except (OverflowError, TypeError):
                raise refuse("token_ids", list(ids), "must be token ids") from None
        parts: list[list[int]] = []
        for token_id in ids:
            if not parts or (token_id in self.special_ids and parts[-1][-1] in self.special_ids):
                parts.append([])
            parts[-1].append(token_id)
        return "".join(self._backend.decode(p, skip_special_tokens=False) for p in parts)

    def batch_decode(
        self,
        sequences: Sequence[Sequence[int] | int],
        skip_special_tokens: bool = False,
        **options: Any,
    ) -> list[str]:
        """The text of each."""
        return [self.decode(ids, skip_special_tokens, **options) for ids in sequences]

    def __call__(
        self, text: str | list[str], add_special_tokens: bool = True, **options: Any
    ) -> Encoding:
        """`input_ids` and `attention_mask` of one text or of several."""
        refuse_options("tokenizer", options)
        if isinstance(text, str):
            return encoding_of(self.encode(text, add_special_tokens))
        return encoding_of([self.encode(each, add_special_tokens) for each in text])

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text as the vocabulary writes them."""
        return self.convert_ids_to_tokens(self.encode(text, add_special_tokens))

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str: ...
    @overload
    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]: ...
    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]:
        """The tokens as the vocabulary writes them; `""` for an id without one."""
        if isinstance(ids, int):
            return self._backend.id_to_token(ids) or ""
        return [self._backend.id_to_token(i) or "" for i in ids]

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int | None]: ...
    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        if isinstance(tokens, str):
            return self._backend.token_to_id(tokens)
        return [self._backend.token_to_id(token) for token in tokens]

    # ---- conversations

    @overload
    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        *,
        tokenize: Literal[True] = True,
        add_generation_prompt: bool = False,
        return_dict: Literal[False] = False,
        **variables: Any,
    ) -> list[int]: ...
    @overload
    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        *,
        tokenize: Literal[True] = True,
        add_generation_prompt: bool = False,
        return_dict: Literal[True],
        **variables: Any,
    ) -> Encoding: ...
    @overload
    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        *,
        tokenize: Literal[False],
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str: ...
    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = False,
        **variables: Any,
    ) -> str | list[int] | Encoding:
        """Render a conversation as ids or, with `tokenize=False`, as text.

        `return_dict` puts the ids into an `Encoding`.

        Only in the ids is what users typed kept apart from the template's tokens: in text it cannot
        be. `variables` reach the template. Raises `ValidationError` when the template refuses.
        """
        options = {name: variables.pop(name) for name in TEMPLATE_OPTIONS if name in variables}
        refuse_options("apply_chat_template", options)
        if return_dict and not tokenize:
            raise ValidationError("return_dict needs tokenize=True", "return_dict", return_dict)
        variables |= {"add_generation_prompt": add_generation_prompt}
        if tokenize:
            ids = self._encode_chat(conversation, variables)
            return encoding_of(ids) if return_dict else ids
        return self._render(conversation, variables)

    def chat_token_ids(
        self,
        messages: Sequence[Message],
        answer: str = "",
        *,
        owner: str | None = None,
        max_length: int | None = None,
        **variables: Any,
    ) -> list[int]:
        """The prompt that asks for the next answer in a conversation, as ids.

        `answer` is what that answer says already: the model continues after it. What was encoded
        for the same `owner` before, such as the earlier turns, is remembered; None remembers
        nothing. With `max_length`, a conversation that is far too long raises `PromptTooLongError`
        and is not encoded; one that is a little too long may still come out.
        """
        variables.setdefault("add_generation_prompt", True)
        return self._encode_chat(messages, variables, answer, owner, max_length)

    async def apply_chat_template_async(
        self,
        messages: Sequence[Message],
        answer: str = "",
        *,
        owner: str | None = None,
        max_length: int | None = None,
        **variables: Any,
    ) -> list[int]:
        """As `chat_token_ids`, in another thread, where owners take turns."""
        return await self._turns.run(
            owner or "",
            lambda: self.chat_token_ids(
                messages, answer, owner=owner, max_length=max_length, **variables
            ),
        )

    def _encode_chat(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        answer: str = "",
        owner: str | None = None,
        max_length: int | None = None,
    ) -> list[int]:
        begun: Message = {"role": "assistant", "content": answer}
        guard = ContentGuard(self._control, [*messages, begun], variables)
        *protected, begun = guard.messages
        text = self._render(protected, guard.variables) + begun["content"]
        add_special_tokens = not self.has_chat_template  # templates write their own
        if max_length is not None:
            self._refuse_by_size(guard.restore(text), max_length)
        if not guard.is_needed:
            if max_length is not None:
                _refuse_by_beginning(self._backend, text, max_length)
            if owner is not None and not add_special_tokens:
                return self._piecewise.encode(text, owner)
            return _encode(self._backend, text, add_special_tokens)
        text = guard.restore(self._twin.mark(text))
        if max_length is not None:
            _refuse_by_beginning(self._twin.backend, text, max_length)
        return _encode(self._twin.backend, text, add_special_tokens)

    def _render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        return self.chat_template.render(messages, **{**self.special_tokens_map, **variables})

    @cached_property
    def _twin(self) -> Twin:
        return Twin(self._backend, self._control)

    @cached_property
    def _piecewise(self) -> PiecewiseEncoder:
        return PiecewiseEncoder(
            lambda piece: _encode(self._backend, piece, add_special_tokens=False),
            self._backend.get_added_tokens_decoder().values(),
        )

    def _refuse_by_size(self, text: str, max_length: int) -> None:
        num_tokens = self._bound.min_tokens(text) if len(text) > max_length else 0
        if num_tokens > max_length:
            raise PromptTooLongError(num_tokens, max_length)

    def _special_id(self, name: str) -> int | None:
        text = self.special_tokens_map.get(name)
        return None if text is None else self._backend.token_to_id(text)


# In a tag of Jinja, not in its text or in a comment.
_READS_TOOLS = re.compile(r"\{[%{](?:(?![%}]\}).)*?\btools\b", re.DOTALL)


def _encode(
    backend: tokenizers.Tokenizer,
    text: str,
    add_special_tokens: bool,
    max_length: int | None = None,
) -> list[int]:
    # The batch calls let other threads run meanwhile; `encode` keeps the interpreter lock.
    try:
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    except TypeError:
        if not isinstance(text, str):
            raise refuse("prompt", text, "must be a string") from None
        check_text("prompt", text)
        raise
    if max_length is not None and len(encoding) > max_length:
        raise PromptTooLongError(len(encoding), max_length, is_exact=True)
    return encoding.ids


def _refuse_by_beginning(backend: tokenizers.Tokenizer, text: str, max_length: int) -> None:
    """Raise `PromptTooLongError` as soon as the beginning of a long text is too long already.

    So the work for a text is bounded by what fits, not by what was sent.
    """
    if len(text) <= LIKELY_CHARACTERS * max_length:
        return
    added = backend.get_added_tokens_decoder().values()
    longest = max((len(token.content.encode()) for token in added), default=0)
    num_tokens = 0
    for start in range(0, len(text), PIECE_CHARACTERS):
        piece = text[start : start + PIECE_CHARACTERS]
        (encoding,) = backend.encode_batch_fast([piece], add_special_tokens=False)
        num_tokens += len(encoding) - CUT_TOKENS - longest
        if num_tokens > max_length:
            raise PromptTooLongError(num_tokens, max_length)
