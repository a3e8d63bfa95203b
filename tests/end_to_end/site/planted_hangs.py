"""Hangs inside the processes of a server that no outsider can cause: planted by `sitecustomize`.

Imported by every process of the server: nothing heavy is imported here.
"""

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.helpers.root import ROOT

# Words of a question, and what hangs over it.
LOOP_WORD = "t00011"  # the worker's event loop
THREAD_WORD = "t00012"  # its tokenizer's thread, for ever
BOTH_WORD = "t00013"  # both
HELD_WORD = "t00014"  # the interpreter is held by a computation that lets no other thread run

START_PLACES = ("worker", "core", "supervisor")  # what hangs in a start, by PARLEY_TEST_HANGS


def plant(folder: Path, constants: Mapping[str, float], hangs: str = "") -> str:
    """Write the `sitecustomize`; returns the PYTHONPATH for the server.

    `constants` are of `tether`, `supervisor` and `workers`.
    """
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(ROOT)!r})",
        "from tests.end_to_end.site import planted_hangs",
        f"planted_hangs.take_effect({hangs!r}, {dict(constants)!r})",
    ]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return str(folder)


def take_effect(hangs: str, constants: dict[str, float]) -> None:
    """In a process of the server, before anything else of it runs."""
    program = " ".join(sys.orig_argv)
    if "engine.core" in program:
        if hangs == "core":
            from engine.core.models import checkpoint

            checkpoint.check_folder = _hang
    elif "server.worker" in program:
        from server.worker import tether

        _set(tether, constants)
        _hang_over_words()
        if hangs == "worker":
            from engine import AsyncLLM

            AsyncLLM.connect = _hang  # type: ignore[method-assign]
    elif "serve" in sys.orig_argv:
        from server.supervisor import supervisor
        from server.supervisor import workers as worker_keeper

        _set(supervisor, constants)
        _set(worker_keeper, constants)
        if hangs == "supervisor":
            from server.engines.native import preparation

            # It is a name that the module imports, which mypy does not let others set.
            preparation.try_chat_template = _hang  # type: ignore[attr-defined]


def _set(module: Any, constants: dict[str, float]) -> None:
    for name, value in constants.items():
        if hasattr(module, name):
            setattr(module, name, value)


def _hang(*_: object, **__: object) -> Any:
    _say("hangs")
    while True:
        time.sleep(3600)


def _hang_over_words() -> None:
    from engine.client.text.tokenizer import Tokenizer
    from server.generation.prompts import PromptBuilder

    build, render = PromptBuilder.build, Tokenizer._render

    async def build_or_hang(self: Any, *args: Any, **options: Any) -> Any:
        text = args[3]
        if LOOP_WORD in text or BOTH_WORD in text:
            if BOTH_WORD in text:
                threading.Thread(target=_hang).start()  # which an exit would join
            _hang()
        if HELD_WORD in text:
            _say("hangs")
            (3 ** (10**8)) ** (10**2)
        return await build(self, *args, **options)

    def render_or_hang(self: Any, messages: Any, variables: Any) -> str:
        if THREAD_WORD in messages[-1]["content"]:
            _hang()
        return render(self, messages, variables)

    PromptBuilder.build = build_or_hang  # type: ignore[method-assign]
    Tokenizer._render = render_or_hang  # type: ignore[method-assign]


def _say(word: str) -> None:
    os.write(2, f"planted: {word}\n".encode())
