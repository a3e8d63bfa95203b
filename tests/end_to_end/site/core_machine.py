"""`parley core` as a process, on the machine of another: its own keys, and an address to join."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil

from tests.end_to_end.site.harness import Server
from tests.engine.helpers.far.machines import Machines
from tests.helpers.redis_topology import wait_for

READY = "is ready"


class CoreMachine:
    """`engine` is how a server names it; its keys lie in `folder`, with those of the server."""

    def __init__(self, folder: Path, model: Path | str, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.keys = Machines(folder)
        self._log = folder / "core.log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")}
        self._environment = {
            **inherited,
            "PARLEY_MODEL": str(model),
            "PARLEY_LOG_FORMAT": "text",
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return self.keys.address

    def engine(self, address: str = "", options: str = "") -> str:
        return f"native={address or self.address};keys={self.keys.of_client}{options}"

    def start(self, *arguments: str) -> Self:
        """Return when the core is ready."""
        command = [sys.executable, "-m", Server.module, "core", "--listen", self.address]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--keys", str(self.keys.of_core), *arguments],
                cwd=Server.root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        # It was started in the line before: mypy does not look into the lambda.
        wait_for(lambda: READY in self.log() or self.process.poll() is not None, 60.0)  # type: ignore[union-attr]
        assert READY in self.log(), self.log()
        return self

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def core(self) -> psutil.Process:
        assert self.process is not None
        (core,) = psutil.Process(self.process.pid).children()
        return core

    def close(self) -> None:
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.terminate()
                self.process.wait(10)
            self.process.kill()
            self.process.wait()
