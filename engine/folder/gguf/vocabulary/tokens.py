"""`Tokens`: the vocabulary of a GGUF file, checked, and what all kinds of tokenizers do with it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, processors

from engine.folder.gguf.metadata import Metadata
from engine.folder.model_config import MAX_SIZE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds, as llama.cpp has them
MAX_WORK = 1 << 30  # characters in all ways to cut each token in two; 10 million are usual

_TAKING_NONE = frozenset(("<unk>", "<s>", "<|endoftext|>"))
_TOKENS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Texts and kinds by token id."""

    texts: list[str]
    kinds: Sequence[float]
    takes_spaces: bool = False  # those found whole take the spaces and line ends after them, too

    def added(self, first: int = 0) -> list[tuple[int, AddedToken]]:
        """From this id on those that are found in a text before it is cut into words."""
        return [
            (index, self._added(self.texts[index], is_special=kind != USER_DEFINED))
            for index, kind in enumerate(self.kinds[first:], first)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ]

    def _added(self, text: str, is_special: bool) -> AddedToken:
        takes_spaces = self.takes_spaces and text not in _TAKING_NONE
        return AddedToken(text, special=is_special, rstrip=takes_spaces, normalized=False)


def read_tokens(metadata: Metadata, num_rows: int) -> Tokens:
    """Raises `UnsupportedModelError` unless there is a text for each id, and no two are alike."""
    texts = metadata.texts(_TOKENS)
    if not texts:
        metadata.refuse(f"{_TOKENS} is missing: it has no tokenizer")
    if len(texts) > min(num_rows, MAX_SIZE):
        metadata.refuse(f"{_TOKENS} has {len(texts)} tokens, the embeddings {num_rows} rows")
    kinds: Sequence[float] = metadata.numbers(_KINDS) or [NORMAL] * len(texts)
    if len(kinds) != len(texts):
        metadata.refuse(f"{_KINDS} has {len(kinds)} kinds, there are {len(texts)} tokens")
    if sum(len(text) ** 2 for text in texts) > MAX_WORK:
        metadata.refuse(f"{_TOKENS} has tokens that are too long")
    texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]
    if len(set(texts)) < len(texts):
        twice = next(text for text, count in Counter(texts).items() if count > 1)
        metadata.refuse(f"{_TOKENS} holds {twice!r} twice")
    return Tokens(texts, kinds, takes_spaces=_is_phi3(metadata))


def _is_phi3(metadata: Metadata) -> bool:
    """Phi 3 and 3.5 of all models, and no later one: its tokens, as SentencePiece has them."""
    return metadata.architecture == "phi3" and metadata.text("tokenizer.ggml.model") == "llama"


def add_tokens(backend: Tokenizer, tokens: Tokens, metadata: Metadata, first: int = 0) -> None:
    """Add those that are found whole. Each must get the id that the file gives it."""
    added = tokens.added(first)
    backend.add_tokens([token for _, token in added])
    for token_id, token in added:
        if backend.token_to_id(token.content) != token_id:
            metadata.refuse(f"{_TOKENS}: {token.content!r} cannot have the id {token_id}")


def add_ends(backend: Tokenizer, tokens: Tokens, metadata: Metadata, adds_bos: bool) -> None:
    """Let a text begin with bos and end with eos, if the file says so.

    `adds_bos` is what its kind of tokenizer does where it says nothing.
    """
    bos, eos = metadata.token_id("bos"), metadata.token_id("eos")
    if not metadata.flag("tokenizer.ggml.add_bos_token", adds_bos):
        bos = None
    if not metadata.flag("tokenizer.ggml.add_eos_token", False):
        eos = None
    ends = [each for each in (bos, eos) if each is not None]
    for token_id in ends:
        if token_id >= len(tokens.texts):
            metadata.refuse(f"begins or ends texts with the token {token_id}, which has no text")
    if ends:
        before = [tokens.texts[bos]] if bos is not None else []
        after = [tokens.texts[eos]] if eos is not None else []
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(tokens.texts[each], each) for each in dict.fromkeys(ends)],
        )
