"""`LocalModel`: a model of this machine, as the list shows it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalModel:
    """`runs` is None where only loading it tells; `problem` then says what is in doubt."""

    name: str  # as `--model` takes it
    format: str  # such as `safetensors bfloat16`, `GGUF Q4_K_M`; empty: unknown
    size_bytes: int  # of its weights on disk
    architecture: str | None = None
    context_length: int | None = None
    problem: str | None = None  # in one line
    is_certain: bool = True  # that it is refused for its problem

    @property
    def runs(self) -> bool | None:
        if self.problem is None:
            return True
        return False if self.is_certain else None
