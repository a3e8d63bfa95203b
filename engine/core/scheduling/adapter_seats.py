"""`AdapterSeats`: which adapters running requests use, and whether one more may be among them.

A step computes `max_loras` different adapters at most, because all running requests together have
no more. While one request waits for that, no other with an adapter is let in before it, or it might
wait for ever; requests without one are.
"""

from collections.abc import Collection, Iterable
from typing import Any, Protocol

from engine.core.scheduling.sequence import Problem, Sequence
from engine.lora import LoRARequest


class AdapterSource(Protocol):
    """Where adapters are kept."""

    def take(self, request: LoRARequest, in_use: Collection[int]) -> Any | None:
        """One in the form that the model computes; None while there is no room for it.

        ValueError, in one line, if there is none like this.
        """


class AdapterSeats:
    """`running` are the running sequences; without a source there are no adapters."""

    def __init__(
        self, source: AdapterSource | None, max_loras: int, running: list[Sequence]
    ) -> None:
        self._source = source
        self._max_loras = max_loras
        self._running = running

    def in_use(self) -> set[int]:
        """The numbers of those that running sequences use."""
        return {it.lora.lora_int_id for it in self._running if it.lora is not None}

    def find_problem(self, sequence: Sequence) -> Problem | None:
        """Why a new sequence can never have its adapter, as far as is known without it."""
        if sequence.lora is None:
            return None
        if self._source is None:
            return ("lora_unavailable", "the engine was started without enable_lora")
        if not sequence.lora.content_hash:  # cached prefixes are kept apart by it
            return ("invalid_request", "lora has no content_hash")
        return None

    def has_room(self, sequence: Sequence) -> bool:
        """Whether one that waits may have its adapter beside those that are in use."""
        if sequence.lora is None:
            return True
        return len(self._running_ones() | {_adapter_of(sequence.lora)}) <= self._max_loras

    def without_room(self, in_turn: Iterable[Sequence]) -> set[Sequence]:
        """Those of the waiting who must wait for an adapter: theirs, or that of one before them."""
        running, waiting = self._running_ones(), set[Sequence]()
        if self._source is None or len(running) < self._max_loras:
            return waiting
        for sequence in in_turn:
            lora = sequence.lora
            if lora is not None and (waiting or _adapter_of(lora) not in running):
                waiting.add(sequence)
        return waiting

    def give(self, sequence: Sequence) -> bool:
        """Give a sequence that waits its adapter, if it has one; False if it must wait.

        One that has run goes on with the same one, which may be removed or replaced by now. Raises
        ValueError if it can have none.
        """
        if sequence.lora is None:
            return True
        assert self._source is not None
        sequence.adapter = None
        if not self.has_room(sequence):
            return False
        sequence.adapter = sequence.kept_adapter
        if sequence.adapter is None:
            sequence.adapter = self._source.take(sequence.lora, self.in_use())
        return sequence.adapter is not None

    def _running_ones(self) -> set[tuple[int, str]]:
        return {_adapter_of(it.lora) for it in self._running if it.lora is not None}


def _adapter_of(request: LoRARequest) -> tuple[int, str]:
    """What tells adapters apart: after a removal a number may be that of other files."""
    return (request.lora_int_id, request.content_hash)
