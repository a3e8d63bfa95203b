"""Parley itself made to lie, or to lose count, about its engines: planted by `sitecustomize`.

So a storm shows that it would see that. Each name is a function here; imported by every process of
the server, of which only a worker has what it changes.
"""

from pathlib import Path
from typing import Any

from tests.helpers.root import ROOT


def plant(folder: Path, name: str) -> str:
    """Write the `sitecustomize`; returns the PYTHONPATH for the server."""
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(ROOT)!r})",
        "from tests.end_to_end.storm import planted_lies",
        f"planted_lies.{name}()",
    ]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return str(folder)


def forget_a_token() -> None:
    """Answers go on after the last token but one."""
    import msgspec

    from server.engines.remote.answer import OpenAnswer

    begin = OpenAnswer.begin_try

    def begin_try(answer: OpenAnswer, name: str) -> Any:
        request = begin(answer, name)
        ids = request.resume_token_ids[:-1]
        answer._num_sent = len(request.prompt_token_ids) + len(ids)
        return msgspec.structs.replace(request, resume_token_ids=ids)

    # A planted fault replaces a method, which mypy allows nobody.
    OpenAnswer.begin_try = begin_try  # type: ignore[assignment, method-assign]


def believe_everything() -> None:
    """What is no token of the model is the last one that is."""
    from server.engines.remote.answer import OpenAnswer

    take = OpenAnswer.take

    def take_all(answer: OpenAnswer, step: Any) -> Any:
        last = answer._vocab_size - 1
        step.token_ids = [min(token_id, last) for token_id in step.token_ids]
        return take(answer, step)

    # As above: a method is replaced.
    OpenAnswer.take = take_all  # type: ignore[assignment, method-assign]


def tell_no_restart() -> None:
    from server.runs.run import Run

    # As above: a property is replaced.
    Run.num_restarts = 0  # type: ignore[assignment, method-assign]
