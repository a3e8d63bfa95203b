"""Turns conversations and prose into token ids with a loss mask, and packs them into rows.

What a user types is never learned, only read: the mask is 0 there, so the model spends nothing on
typing errors. Nor is the end of an answer that was stopped in the middle.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from bench.demo_model.generator.talk import Talker, Turn

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
KIND_TO_WEIGHT = {"talk": 56, "short": 12, "medium": 11, "long": 6, "raw": 15}
BEGINNINGS_KIND_TO_WEIGHT = {"talk": 55, "short": 15, "medium": 10, "long": 13, "raw": 7}
ENCODE_BATCH = 64  # documents tokenized together


class Document:
    """Pieces of text, each with its part in the loss."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, bool]] = []

    def add(self, text: str, learned: bool) -> None:
        if text:
            self.pieces.append((text, learned))

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


def chat_document(turns: Sequence[Turn]) -> Document:
    """The turns as the chat template writes them."""
    document = Document()
    for turn in turns:
        document.add(f"{TURN_START}{turn.role}\n", False)
        document.add(turn.text, turn.role == "assistant")
        document.add(TURN_END, turn.role == "assistant" and turn.complete)
        document.add("\n", False)
    return document


def raw_document(opener: str, text: str) -> Document:
    """Prose without a chat around it."""
    document = Document()
    document.add(opener, False)
    document.add(text, True)
    document.add(END_OF_TEXT, True)
    return document


class Corpus:
    """An endless stream of documents; the seed fixes all of them."""

    def __init__(
        self,
        rules: Mapping[str, Sequence[str]],
        seed: int,
        kind_to_weight: Mapping[str, int] = KIND_TO_WEIGHT,
    ) -> None:
        self.rng = random.Random(seed)
        self.talker = Talker(rules, self.rng)
        self.kinds = list(kind_to_weight)
        self.weights = list(kind_to_weight.values())

    def document(self) -> Document:
        kind = self.rng.choices(self.kinds, self.weights)[0]
        if kind == "talk":
            return chat_document(self.talker.conversation())
        if kind == "raw":
            return raw_document(*self.talker.raw_text())
        return chat_document(self.talker.story_conversation(kind))


def encode(
    tokenizer: Tokenizer, documents: Sequence[Document]
) -> list[tuple[list[int], list[int]]]:
    """Ids and loss flags of each document; pieces are encoded apart, as the chat template does."""
    texts = [text for document in documents for text, _ in document.pieces]
    encodings = iter(tokenizer.encode_batch(texts, add_special_tokens=False))
    encoded = []
    for document in documents:
        ids: list[int] = []
        learned: list[int] = []
        for _, flag in document.pieces:
            piece = next(encodings).ids
            ids += piece
            learned += [int(flag)] * len(piece)
        encoded.append((ids, learned))
    return encoded


class Packer:
    """Fills rows of one length with documents, end to end, and remembers where each begins.

    With `from_start` every row begins with a document, and what does not fit is dropped: all that
    is learned can be seen from its own beginning. Without it long documents run on from row to row.
    """

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, length: int, from_start: bool = False
    ) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.length = length
        self.from_start = from_start
        self._ids: list[int] = []
        self._learned: list[int] = []
        self._document: list[int] = []
        self._count = 0

    def batch(self, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, loss flags and document numbers, each [num_rows, length + 1]."""
        # A row that runs on shares its last token with the next: first a target, then an input.
        stride = self.length + 1 if self.from_start else self.length
        size = (num_rows - 1) * stride + self.length + 1
        while len(self._ids) < size:
            documents = [self.corpus.document() for _ in range(ENCODE_BATCH)]
            for ids, learned in encode(self.tokenizer, documents):
                self._append(ids, learned)
        streams = (self._ids, self._learned, self._document)
        rows_ids, rows_learned, rows_document = (
            torch.tensor(stream[:size]).unfold(0, self.length + 1, stride) for stream in streams
        )
        for stream in streams:
            del stream[: num_rows * stride]
        return rows_ids, rows_learned, rows_document

    def _append(self, ids: list[int], learned: list[int]) -> None:
        if self.from_start:
            room = self.length + 1 - len(self._ids) % (self.length + 1)
            ids, learned = ids[:room], learned[:room]
        self._ids += ids
        self._learned += learned
        self._document += [self._count] * len(ids)
        self._count += 1


def attention_mask(document: Tensor, window: int) -> Tensor:
    """Which position sees which: its own document, the last `window` tokens, nothing ahead.

    `document` is [rows, length]; the result is [rows, 1, length, length], True where visible.
    """
    length = document.shape[1]
    position = torch.arange(length)
    distance = position[:, None] - position[None, :]
    near = (distance >= 0) & (distance < window)
    same = document[:, :, None] == document[:, None, :]
    return (same & near).unsqueeze(1)
