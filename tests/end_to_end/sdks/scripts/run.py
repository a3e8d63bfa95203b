"""Runs the calls of scripts, in the environment of the client that they call.

    python run.py SCRIPT... BASE_URL TOKEN

Each function that a script defines is a call; a line of JSON says how it has gone.
"""

import asyncio
import contextlib
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def calls_of(script: Path) -> list[Callable[[], object]]:
    """In their order. Names with an underscore are no calls, nor is what the script imports."""
    sys.path.insert(0, str(script.parent))
    module = importlib.import_module(script.stem)
    return [
        call
        for name, call in vars(module).items()
        if inspect.isfunction(call) and call.__module__ == script.stem and name[0] != "_"
    ]


async def run_all(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        problem = ""
        try:
            with contextlib.redirect_stdout(sys.stderr):  # some clients talk
                outcome = call()
                if inspect.isawaitable(outcome):
                    await outcome
        except Exception:
            problem = traceback.format_exc()
        print(
            json.dumps({"name": f"{call.__module__}.{call.__name__}", "problem": problem}),
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(run_all([call for script in sys.argv[1:-2] for call in calls_of(Path(script))]))
