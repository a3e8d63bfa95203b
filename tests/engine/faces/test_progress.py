"""`Progress`: the bar of a batch."""

from typing import Any

import pytest

from engine.faces.progress import Progress
from engine.outputs import CompletionOutput, RequestOutput
from engine.pooling import PoolingOutput, PoolingRequestOutput

ANSWER = RequestOutput("0", None, [1, 2, 3], None, [CompletionOutput(0, "ab", [5, 6])], True)
VECTOR = PoolingRequestOutput("1", PoolingOutput([0.5]), [1, 2], 0, True)


class Bar:
    def __init__(self, **options: Any) -> None:
        self.options = options
        self.format_dict = {"elapsed": 2.0}
        self.heard: list[Any] = []

    def update(self, number: int) -> None:
        self.heard.append(number)

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.heard.append(text)

    def close(self) -> None:
        self.heard.append("closed")


def test_a_bar_of_the_caller_s_counts_prompts_and_says_how_fast_they_are() -> None:
    bars: list[Bar] = []

    def make(**options: Any) -> Bar:
        bars.append(Bar(**options))
        return bars[0]

    progress = Progress(make, 2, "Processed prompts")
    progress.add(ANSWER)
    progress.add(VECTOR)
    progress.close()
    (bar,) = bars
    assert (bar.options["total"], bar.options["desc"]) == (2, "Processed prompts")
    assert bar.heard == [
        "est. speed input: 1.50 toks/s, output: 1.00 toks/s",
        1,
        "est. speed input: 2.50 toks/s, output: 1.00 toks/s",
        1,
        "closed",
    ]


@pytest.mark.parametrize("use_tqdm", [True, False])
def test_where_nobody_looks_nothing_is_drawn(
    use_tqdm: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(use_tqdm, 2, "Processed prompts")
    progress.add(ANSWER)
    progress.close()
    assert capfd.readouterr() == ("", "")
