"""`LocalModel`: a model of this machine, as the list shows it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalModel:
    """`problem` says why it does not run, as far as its files tell without loading it."""

    name: str  # as `--model` takes it
    format: str  # such as `safetensors bfloat16`, `GGUF Q4_K_M`; empty: unknown
    size_bytes: int  # of its weights on disk
    architecture: str | None = None
    context_length: int | None = None
    problem: str | None = None  # in one line

    @property
    def runs(self) -> bool:
        return self.problem is None
