"""What the machine does before each turn: on a shared one it changes by the minute."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from csrc.build import find_compiler

SOURCE = Path(__file__).parent / "speed.c"


@dataclass(frozen=True, slots=True)
class Speed:
    """Of all threads together; None where there is no compiler to measure it with."""

    bandwidth: float | None = None  # GB/s read from memory
    gigaflops: float | None = None  # GFLOP/s of float32 in registers


class MachineSpeed:
    """Measured with as many threads as the engines have."""

    def __init__(self, cache: Path, threads: int) -> None:
        self._threads = threads
        self._program = cache / "machine_speed"
        compiler = find_compiler()
        self._is_built = compiler is not None and self._build(compiler)

    def _build(self, compiler: str) -> bool:
        self._program.parent.mkdir(parents=True, exist_ok=True)
        flags = ["-O3", "-march=native", "-pthread", "-x", "c"]
        command = [compiler, *flags, str(SOURCE), "-o", str(self._program)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def measure(self) -> Speed:
        """Takes some tenths of a second."""
        if not self._is_built:
            return Speed()
        command = [str(self._program), str(self._threads)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return Speed()
        return Speed(*map(float, done.stdout.split()))
