"""`ParentRequest`: several answers to one prompt (`n > 1`), each an ordinary request to the core.

The children share the prompt's blocks: the scheduler lets them wait for each other's prefill. To
the reader they are one stream, whose outputs say by `index` which answer they belong to.
"""

import msgspec

from engine.outputs import CompletionOutput, OutputError, RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams


class ParentRequest:
    """What joins the answers to one prompt into one stream, which ends with the last of them."""

    def __init__(self, internal_id: str, params: SamplingParams) -> None:
        self.internal_id = internal_id
        self.params = params
        self.open_ids: dict[
            str, None
        ] = {}  # internal ids of children that have not ended, in order
        self.shown_prompt_ids: list[int] | None = None  # in the outputs
        self.max_num_tokens = 0  # of the longest answer so far
        self._num_unfinished = params.n
        self._completions: dict[int, CompletionOutput] = {}  # ended ones, for FINAL_ONLY
        self._num_cached_tokens: int | None = 0
        self._scored: RequestOutput | None = None  # the first with logprobs of the prompt
        self._waits_for_scores = params.scores_prompt
        self._held: RequestOutput | None = None  # of the others meanwhile
        self._error: OutputError | None = None

    def child_id(self, index: int) -> str:
        return f"{index}_{self.internal_id}"

    def child_params(self, index: int) -> SamplingParams:
        """Those of a request of its own with the seed `seed + index`."""
        params = self.params
        seed = None if params.seed is None else (params.seed + index) % (1 << 64)
        child = msgspec.structs.replace(params, n=1, seed=seed)
        if index and params.scores_prompt:  # those of the first answer are for all
            child.prompt_logprobs = child.prompt_logprob_token_ids = None
            child.prompt_logprob_start = None
            child.skip_reading_prefix_cache = False
        return child

    def join(self, output: RequestOutput, num_tokens: int) -> RequestOutput | None:
        """A child's output as one of the parent; None while it has to wait for the others.

        The child has `num_tokens` so far.

        `num_cached_tokens` is always that of the first answer: the others find its blocks, which
        says nothing of what was cached before the request came. It also brings the prompt's
        logprobs.
        """
        (completion,) = output.outputs
        if completion.index == 0:
            self._num_cached_tokens = output.num_cached_tokens
        output.num_cached_tokens = self._num_cached_tokens
        self._keep_prompt_scores(output)
        self.max_num_tokens = max(self.max_num_tokens, num_tokens)
        output.error = self._error = output.error or self._error
        self._num_unfinished -= completion.finished()
        output.finished = self._num_unfinished == 0
        if self.params.output_kind is RequestOutputKind.FINAL_ONLY:
            self._completions[completion.index] = completion
            if not output.finished:
                return None
            output.outputs = [self._completions[index] for index in sorted(self._completions)]
            return output
        return self._begin_with_scores(output) if self._waits_for_scores else output

    def _begin_with_scores(self, output: RequestOutput) -> RequestOutput | None:
        """The first answer's beginning comes first, as it has the prompt's logprobs.

        Another one may be ahead of it: a core that died while it read the prompt makes the first
        answer a suspect, which the next core gets after all others.
        """
        is_first = output.outputs[0].index == 0
        if self._held is None:
            self._held = output
        else:
            self._held.add(output, aggregate=self.params.output_kind is RequestOutputKind.DELTA)
        if not is_first:
            return None
        self._waits_for_scores = False
        joined, self._held = self._held, None
        return joined

    def _keep_prompt_scores(self, output: RequestOutput) -> None:
        """What the first answer brought of the prompt is in every output that is no delta."""
        if not self.params.scores_prompt or self.params.output_kind is RequestOutputKind.DELTA:
            return
        is_scored = output.prompt_logprobs is not None
        if is_scored or output.prompt_token_id_logprobs is not None:
            self._scored = output
        if (first := self._scored) is not None:
            output.prompt_logprobs = first.prompt_logprobs
            output.prompt_token_id_logprobs = first.prompt_token_id_logprobs
