"""The memory's speed before each turn: on a shared machine it changes by the minute."""

import subprocess
from pathlib import Path

from csrc.build import find_compiler

SOURCE = Path(__file__).parent / "bandwidth.c"


class Bandwidth:
    """Reads memory with as many threads as the engines have; without a compiler, not at all."""

    def __init__(self, cache: Path, threads: int) -> None:
        self._threads = threads
        self._program = cache / "bandwidth"
        compiler = find_compiler()
        self._is_built = compiler is not None and self._build(compiler)

    def _build(self, compiler: str) -> bool:
        self._program.parent.mkdir(parents=True, exist_ok=True)
        flags = ["-O3", "-march=native", "-pthread", "-x", "c"]
        command = [compiler, *flags, str(SOURCE), "-o", str(self._program)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def measure(self) -> float | None:
        """GB/s; takes some tenths of a second."""
        if not self._is_built:
            return None
        command = [str(self._program), str(self._threads)]
        done = subprocess.run(command, capture_output=True, text=True)
        return float(done.stdout) if done.returncode == 0 else None
