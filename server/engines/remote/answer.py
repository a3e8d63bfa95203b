"""`OpenAnswer`: one answer that an engine at an address is asked for, over all tries.

Here it is decided what of an engine's words is an answer's: no token that the model has not, none
after one that ends it, no more than were asked for, and no end at a limit that is not reached,
whatever the engine says.
"""

import time
from collections.abc import Iterable, Sequence

import msgspec

from engine.ipc import AddRequest, SequenceOutput
from server.engines.remote.dialects.dialect import Step, remaining_tokens
from server.engines.remote.wire.exchange import Exchange
from server.engines.remote.wire.problems import Lie

MAX_TRIES_IN_VAIN = 3  # in a row, without a new token
CONTEXT_SLACK = 16  # tokens before the end of its context at which an engine may give up


class OpenAnswer:
    """`stop_ids` end every answer; those of its own parameters come on top."""

    def __init__(
        self, request: AddRequest, *, stop_ids: Iterable[int], vocab_size: int, max_model_len: int
    ) -> None:
        params = request.params
        self.request = request
        self.token_ids: list[int] = []  # that it has had here, all of which were handed on
        self.name = ""  # by which the engine knows the present try
        self.exchange: Exchange | None = None  # of the present try
        self.num_tries_in_vain = 0
        self.began_at = 0.0  # the present try, time.monotonic()
        self.is_aborting = False  # it takes no more tokens
        self.has_begun = False  # the engine has said something of it
        self._is_first_try = True
        self._was_sent = False  # an engine may still compute what a try before has asked for
        self._own_stops = frozenset(params.stop_token_ids or ())
        self._stops = self._own_stops | (frozenset() if params.ignore_eos else frozenset(stop_ids))
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._num_sent = 0  # tokens that the present try was sent
        self._is_checked = False  # whether it has read these
        self._scheduled_ts = self._first_token_ts = 0.0
        self._num_cached = 0

    @property
    def rest(self) -> AddRequest:
        """What is asked for by the next try."""
        if not self.token_ids:
            return self.request
        so_far = [*self.request.resume_token_ids, *self.token_ids]
        return msgspec.structs.replace(self.request, resume_token_ids=so_far)

    @property
    def num_remaining(self) -> int:
        return remaining_tokens(self.request, self._max_model_len) - len(self.token_ids)

    @property
    def is_held_to_form(self) -> bool:
        return self.request.params.structured_outputs is not None

    def end_of_resumed(self) -> str | None:
        """Why nothing is left to ask for after the tokens that it has already, if that is so."""
        resumed = self.request.resume_token_ids
        if resumed and resumed[-1] in self._stops and len(resumed) >= self._min_tokens:
            return "stop"
        return None if self.num_remaining > 0 else "length"

    def begin_try(self, name: str) -> AddRequest:
        """The next one, under a name that no other has; what it is asked for."""
        rest = self.rest
        self._is_first_try = not self.name
        self.name = name
        self.num_tries_in_vain += 1
        self.began_at = time.monotonic()
        self._num_sent = len(rest.prompt_token_ids) + len(rest.resume_token_ids)
        self._is_checked = False
        return rest

    def end_try(self) -> None:
        """Its exchange is closed."""
        self._was_sent, self.exchange = self.was_sent, None

    @property
    def was_sent(self) -> bool:
        """Whether an engine may compute it, by what it knows."""
        return self._was_sent or (self.exchange is not None and self.exchange.was_sent)

    def take(self, step: Step) -> SequenceOutput:
        """What an event adds to it. Raises `Lie` for what cannot be true."""
        self._check(step)
        now = time.monotonic()
        self._scheduled_ts = self._scheduled_ts or now
        ids, reason, stop_reason = list(step.token_ids), step.finish_reason, None
        for place, token_id in enumerate(ids):
            if token_id in self._stops and self._num_before + place + 1 >= self._min_tokens:
                del ids[place + 1 :]
                reason = "stop"
                stop_reason = token_id if token_id in self._own_stops else None
                break
        if len(ids) >= self.num_remaining:
            is_whole = len(ids) == self.num_remaining and reason == "stop"
            del ids[self.num_remaining :]
            reason = "stop" if is_whole else "length"
        elif reason == "length" and not self._may_be_full(len(ids)):
            reason = None  # there is more of it, which the next try asks for
        if ids:
            self._first_token_ts = self._first_token_ts or now
            self.num_tries_in_vain = 0
        self.token_ids += ids
        return SequenceOutput(
            request_id=self.request.request_id,
            new_token_ids=ids,
            finish_reason=reason,
            stop_reason=stop_reason if reason == "stop" else None,
            logprobs=_encoded(step, len(ids)),
            num_cached_tokens=self._num_cached,
            num_computed_tokens=step.num_computed_tokens,
            scheduled_ts=self._scheduled_ts,
            first_token_ts=self._first_token_ts,
        )

    def _may_be_full(self, num_new: int) -> bool:
        """Whether the engine may be right that it has no room for more; a form begins anew in the
        next try, so there it is believed.
        """
        num_so_far = len(self.request.prompt_token_ids) + self._num_before + num_new
        return self.is_held_to_form or num_so_far >= self._max_model_len - CONTEXT_SLACK

    @property
    def _num_before(self) -> int:
        return len(self.request.resume_token_ids) + len(self.token_ids)

    @property
    def _min_tokens(self) -> int:
        return self.request.params.min_tokens

    def _check(self, step: Step) -> None:
        if step.num_prompt_tokens is not None and not self._is_checked:
            if step.num_prompt_tokens != self._num_sent:
                problem = f"it has read {step.num_prompt_tokens} tokens, and was sent"
                raise Lie(f"{problem} {self._num_sent}")
            self._is_checked = True
        if not self._has_all(step.token_ids):
            raise Lie("it gave token ids that the model has not")
        for scores in step.logprobs or ():
            if not self._has_all([token_id for token_id, *_ in scores]):
                raise Lie("it gave logprobs of tokens that the model has not")
        if self._is_first_try:  # what later ones find in a cache is no part of the prompt's price
            cached = min(step.num_cached_tokens, len(self.request.prompt_token_ids))
            self._num_cached = max(self._num_cached, cached)  # some say so at the end only
        self.has_begun = True

    def _has_all(self, ids: Sequence[int]) -> bool:
        return not ids or 0 <= min(ids) <= max(ids) < self._vocab_size


def _encoded(step: Step, num_tokens: int) -> list[msgspec.Raw] | None:
    """As a core sends them. Raises `Lie`."""
    if step.logprobs is None:
        return None
    try:
        return [msgspec.Raw(msgspec.msgpack.encode(each)) for each in step.logprobs[:num_tokens]]
    except OverflowError:
        raise Lie("it gave ranks that no token has") from None
