"""`Progress`: a bar that says how many prompts of a batch are done, for a person who waits."""

from collections.abc import Callable
from typing import Any

from engine.outputs import RequestOutput

UseTqdm = bool | Callable[..., Any]


class Progress:
    """One bar, on stderr, or none.

    `use_tqdm` True: where stderr is a terminal; a function: what it makes, in the place of `tqdm`.
    """

    def __init__(self, use_tqdm: UseTqdm, num_prompts: int, what: str) -> None:
        self._bar: Any = None
        self._num_tokens = [0, 0]  # read, written
        if use_tqdm:
            make = use_tqdm if callable(use_tqdm) else _on_a_terminal
            self._bar = make(total=num_prompts, desc=what, dynamic_ncols=True)

    def add(self, output: Any) -> None:
        """One more is done: its last output."""
        if self._bar is None:
            return
        self._num_tokens[0] += len(output.prompt_token_ids or ())
        if isinstance(output, RequestOutput):
            self._num_tokens[1] += sum(len(answer.token_ids) for answer in output.outputs)
        seconds = self._bar.format_dict["elapsed"]
        if seconds > 0:
            read, written = (number / seconds for number in self._num_tokens)
            speed = f"est. speed input: {read:.2f} toks/s, output: {written:.2f} toks/s"
            self._bar.set_postfix_str(speed, refresh=False)
        self._bar.update(1)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _on_a_terminal(**options: Any) -> Any:
    from tqdm import tqdm  # an import of the engine need not wait for it

    return tqdm(disable=None, **options)
