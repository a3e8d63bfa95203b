"""Penalties: which tokens a sequence has seen, and how often, for the op `penalize`."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.core.scheduling.sequence import Sequence
from engine.sampling_params import SamplingParams

Ids = npt.NDArray[np.int64]
Counts = npt.NDArray[np.float32]


class SeenTokens:
    """The different tokens of a sequence, and how often each is in its answer."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # by token
        self._ids: Ids = np.empty(0, np.int64)
        self._counts: Counts = np.empty(0, np.float32)
        self._num_read = 0  # tokens of the sequence

    def of(self, sequence: Sequence) -> tuple[Ids, Counts]:
        """Ids [n] and counts [n], 0 for what is in the prompt alone. True until it is asked again.

        A sequence only grows, so that it is read once, and its new tokens one by one.
        """
        if self._num_read == 0:
            self._read_all(sequence)
        for position in range(self._num_read, sequence.num_tokens):
            token = sequence.token_ids[position]
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._make_room()
            self._ids[place] = token
            self._counts[place] += position >= sequence.num_prompt_tokens
        self._num_read = sequence.num_tokens
        num_seen = len(self._places)
        return self._ids[:num_seen], self._counts[:num_seen]

    def _read_all(self, sequence: Sequence) -> None:
        tokens = np.array(sequence.token_ids, np.int64)
        self._ids, places = np.unique(tokens, return_inverse=True)
        in_answer = places[sequence.num_prompt_tokens :]
        self._counts = np.bincount(in_answer, minlength=len(self._ids)).astype(np.float32)
        self._places = {token: place for place, token in enumerate(self._ids.tolist())}
        self._num_read = len(tokens)

    def _make_room(self) -> None:
        more = max(256, len(self._ids))
        self._ids = np.append(self._ids, np.zeros(more, np.int64))
        self._counts = np.append(self._counts, np.zeros(more, np.float32))


class Penalties:
    """What the rows of one step are penalized for, put together for one call of the op."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._ids: list[Ids] = []
        self._counts: list[Counts] = []
        self._factors: list[tuple[float, float, float]] = []

    def add(self, row: int, params: SamplingParams, ids: Ids, counts: Counts) -> None:
        """Row by row, in their order."""
        self._rows.append(row)
        self._ids.append(ids)
        self._counts.append(counts)
        self._factors.append(
            (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        )

    def columns(self) -> list[Tensor]:
        """The arguments of the op after the logits, on the host; none if no row was added."""
        if not self._rows:
            return []
        offsets = np.cumsum([0, *map(len, self._ids)])
        factors = np.array(self._factors, np.float64).T.copy()  # each penalty's lie together
        columns = (self._rows, offsets, np.concatenate(self._ids), np.concatenate(self._counts))
        return [torch.as_tensor(column) for column in (*columns, *factors)]
