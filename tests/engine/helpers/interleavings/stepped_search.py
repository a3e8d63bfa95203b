"""`SteppedSearch`: a beam search in a core that is stepped by hand, beside the same one alone.

It asks as `BeamSearchRun` does: one request of one token for each beam, and for the next step when
all of them have ended.
"""

from collections.abc import Callable
from typing import Any

from engine.beam_search import BeamSearch, BeamSearchParams
from engine.client.search.beam_search import _step_params
from engine.ipc import SequenceOutput
from engine.logprobs import Logprob
from tests.engine.helpers.fakes import EOS
from tests.engine.helpers.interleavings.expected import candidates

Candidates = dict[int, Logprob]


class SteppedSearch:
    """`ask` gets the id and the fields of each request. What disturbs one of them is the end."""

    def __init__(
        self,
        name: str,
        prompt: list[int],
        params: BeamSearchParams,
        ask: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.params = params
        self.is_over = False
        self._name, self._prompt, self._ask = name, prompt, ask
        self._search, self._alone = (BeamSearch(params, [EOS], params.max_tokens) for _ in range(2))
        self._place = 0
        self._found: dict[str, Candidates | None] = {}  # by request, in the order of the beams

    def begin_step(self) -> None:
        step = _step_params(self.params, self._place)
        beams = self._search.beams
        self._found = {f"{self._name}-{self._place}-{n}": None for n in range(len(beams))}
        for request_id, beam in zip(self._found, beams, strict=True):
            fields = {
                "prompt": [*self._prompt, *beam.token_ids],
                "max_tokens": step.max_tokens,
                "ignore_eos": step.ignore_eos,
                "logprobs": step.logprobs,
                "is_admitted": self._place > 0,
            }
            self._ask(request_id, fields)

    def take(self, output: SequenceOutput) -> None:
        """An output of any request of the client."""
        if self.is_over or output.request_id not in self._found or output.finish_reason is None:
            return
        if output.finish_reason != "length" or not output.logprobs:
            self.is_over = True
            return
        (scores,) = output.logprobs
        self._found[output.request_id] = {id: Logprob(value, rank) for id, value, rank in scores}
        if all(each is not None for each in self._found.values()):
            self._expand()

    def _expand(self) -> None:
        alone = [
            {id: Logprob(value, rank) for id, value, rank in self._candidates(beam.token_ids)}
            for beam in self._alone.beams
        ]
        self._search.expand([each for each in self._found.values() if each is not None])
        self._alone.expand(alone)
        assert self._search.best() == self._alone.best()
        self._place += 1
        self.is_over = self._search.is_done
        if not self.is_over:
            self.begin_step()

    def _candidates(self, token_ids: list[int]) -> list[tuple[int, float, int]]:
        return candidates([*self._prompt, *token_ids][-1], 2 * self.params.beam_width)
