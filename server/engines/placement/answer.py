"""`PlacedAnswer`: one answer of several engines, of which one writes it at a time.

It counts what was shown, so that another engine can go on after the last token. Its text is a
function of its tokens, in every engine alike: what was held back of it is found out anew.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from server.engines.client import (
    DeltaCallback,
    EngineClient,
    Exactness,
    OutputError,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
    RequestProgress,
    RetryableRequestError,
    SamplingParams,
    TokensPrompt,
    ValidationError,
)
from server.engines.placement.member import Member

MAX_ENGINES_IN_VAIN = 2  # that may die under an answer in a row, without a new token of it
ENGINE_ERROR = "engine_error"


class PlacedAnswer:
    """One answer. `on_token` hears of the first token of each engine."""

    def __init__(
        self,
        request_id: str,
        prompt: TokensPrompt,
        params: SamplingParams,
        options: dict[str, Any],
        *,
        resume_token_ids: Sequence[int],
        session_id: str | None,
        on_delta: DeltaCallback | None,
        on_progress: Callable[[RequestProgress], None] | None,
        on_token: Callable[[], None],
    ) -> None:
        if params.seed is None:  # another engine goes on with the same numbers
            params = msgspec.structs.replace(params, seed=secrets.randbits(63))
        self.request_id = request_id
        self.session_id = session_id
        self.prompt, self.params, self.options = prompt, params, options
        self.token_ids = list(resume_token_ids)  # all that it has
        self.member: Member | None = None  # that writes it
        self.is_moving = False  # its engine was told to end it, and another goes on
        self.is_stopped = False  # its reader wants it to end
        self.problem: str | None = None  # why it ends, though an engine could go on
        self.num_moves = 0
        self.last_metrics: RequestMetrics | None = None  # of the engine that it has left
        # Engines in a row that died under it, and that failed, before it had another token.
        self._num_in_vain = self._num_failures = 0
        self._num_sent = 0  # tokens that it had when its engine was asked
        self._num_resumed = len(self.token_ids)
        self._is_queued = False
        self._is_plain = True  # it has neither thoughts nor calls, as far as anybody has looked
        self._shown: list[str] = []
        self._on_delta, self._on_progress, self._on_token = on_delta, on_progress, on_token

    @property
    def can_move(self) -> bool:
        """Whether what comes of it can be joined to what has come."""
        kind, scores = self.params.output_kind, self.params.scores_prompt
        return kind is RequestOutputKind.DELTA and self.params.n == 1 and not scores

    @property
    def may_be_moved(self) -> bool:
        """Whether its engine could be told now to give it up."""
        is_ending = self.is_moving or self.is_stopped or self.problem is not None
        return self.can_move and not is_ending

    def can_go_on_at(self, member: Member) -> bool:
        """As far as is known before that is asked: who has no state of a form begins it anew, and
        who is given its text alone takes back neither thoughts nor calls.
        """
        exactness = member.engine.exactness
        if not self.fits(member):
            return False
        if not self.token_ids or exactness is Exactness.EXACT:
            return True
        if exactness is Exactness.NONE or self.params.structured_outputs is not None:
            return False
        return exactness is not Exactness.TEXT or self._is_text_alone(member.engine)

    def fits(self, member: Member) -> bool:
        """An engine that was added since it has begun may do less than the others, or have a
        shorter context.
        """
        if self.member is None and not self.num_moves and not self.token_ids:
            return True  # it was checked for all of them
        length = len(self.prompt["prompt_token_ids"]) + len(self.token_ids)
        try:
            member.engine.check_params(self.params)
            return length < member.engine.model_config.max_model_len
        except RetryableRequestError:  # nothing is known of it yet
            return True
        except ValidationError:
            return False

    def _is_text_alone(self, engine: EngineClient) -> bool:
        if self._is_plain and self.options.get("marks") is not None:
            prompt = self.prompt["prompt_token_ids"]
            plain = engine.resumed_text(prompt, self.params, self.token_ids)
            self._is_plain = self._text_of(self.token_ids, engine) == plain
        return self._is_plain

    @property
    def has_begun(self) -> bool:
        """An engine has had it, so that it is not refused any more."""
        return self.num_moves > 0 or len(self.token_ids) > self._num_resumed

    @property
    def is_suspect(self) -> bool:
        """It may be what has killed an engine: it goes to the next one after all others."""
        return self._num_in_vain > 0

    @property
    def is_on_trial(self) -> bool:
        """It could still turn out to be deadly for its engine."""
        has_turn = self.member is not None and self.num_moves > 0 and not self._is_queued
        return has_turn and not self.has_new_tokens

    @property
    def has_new_tokens(self) -> bool:
        """Since its engine was asked."""
        return len(self.token_ids) > self._num_sent

    # ---- while an engine writes it --------------------------------------------------------------

    def begin(self, member: Member) -> None:
        """This one writes it from now on."""
        self.member, self.is_moving, self._is_queued = member, False, False
        self._num_sent = len(self.token_ids)
        member.num_answers += 1

    def ask(self) -> Any:
        """What its engine says from now on."""
        assert self.member is not None
        return self.member.engine.generate(
            self.prompt,
            self.params,
            self.request_id,
            on_progress=self._take_progress,
            on_delta=None if self._on_delta is None else self._take_delta,
            resume_token_ids=list(self.token_ids),
            **self.options,
        )

    def leave(self) -> None:
        """The engine writes it no more."""
        if self.member is not None:
            self.member.num_answers -= 1
            self.member = None

    def note_loss(self, *, is_meant: bool) -> None:
        """Its engine has died, or was told to end: that is no answer's doing."""
        is_blameless = is_meant or self._is_queued  # one that only waited did no harm
        if not self.has_new_tokens and not is_blameless:
            self._num_in_vain += 1
        self._forgive()
        if self._num_in_vain >= MAX_ENGINES_IN_VAIN:
            self.problem = f"{MAX_ENGINES_IN_VAIN} engines died before it had another token"

    def note_failure(self) -> bool:
        """Its engine lives, and could not go on with it. Whether another one may be asked."""
        if not self.has_new_tokens:
            self._num_failures += 1
        self._forgive()
        return self._num_failures < MAX_ENGINES_IN_VAIN

    def _forgive(self) -> None:
        """With a new token, all that has gone wrong before is forgotten."""
        if self.has_new_tokens:
            self._num_in_vain = self._num_failures = 0
            self._num_sent = len(self.token_ids)

    def take(self, output: RequestOutput) -> RequestOutput:
        """What its engine yields, for its reader."""
        for answer in output.outputs if self.can_move else ():
            self._take(answer.text, answer.token_ids)
        if output.metrics is not None and self.num_moves:
            num_resubmits = output.metrics.num_resubmits + self.num_moves
            output.metrics = replace(output.metrics, num_resubmits=num_resubmits)
        if self.problem is not None and output.finished and not self.is_stopped:
            output.outputs[0].finish_reason = "error"
            output.error = OutputError(ENGINE_ERROR, self.problem)
        return output

    def take_last(self, output: RequestOutput, engine: EngineClient) -> RequestOutput | None:
        """The same of the last words of an engine that another one follows, which are no end.

        What it held back it has let out there, as at an end; `engine` says what was to be shown.
        None if its tokens say another text than was shown.
        """
        (answer,) = output.outputs
        token_ids = [*self.token_ids, *answer.token_ids]
        before = self._text_of(self.token_ids[: self._num_resumed], engine) + "".join(self._shown)
        text = self._text_of(token_ids, engine)
        if not text.startswith(before):
            return None
        self.last_metrics = output.metrics
        answer.text, answer.finish_reason, answer.stop_reason = text[len(before) :], None, None
        output.finished, output.error = False, None
        return self.take(output)

    def _text_of(self, token_ids: Sequence[int], engine: EngineClient) -> str:
        if not token_ids:
            return ""
        marks = self.options.get("marks")
        return engine.resumed_text(self.prompt["prompt_token_ids"], self.params, token_ids, marks)

    def _take_delta(self, text: str, token_ids: Sequence[int], logprobs: Any = None) -> None:
        self._take(text, token_ids)
        assert self._on_delta is not None
        self._on_delta(text, token_ids, logprobs)

    def _take(self, text: str, token_ids: Sequence[int]) -> None:
        is_first = token_ids and len(self.token_ids) == self._num_sent
        self.token_ids += token_ids
        self._shown.append(text)
        if is_first:
            self._on_token()

    def _take_progress(self, progress: RequestProgress) -> None:
        self._is_queued = progress.queue_position is not None
        if self._on_progress is not None:
            self._on_progress(progress)
