"""The models that this server serves, as everybody who speaks of them knows them.

The supervisor, which loads them and lets them go, tells the workers of each change; doors, page and
console show what is here.
"""

import enum
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import msgspec

from server.config.engines import EngineEntry

DEMO = "demo"  # the built-in model
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,99}")
MAX_MODELS = 32

Stage = Literal["preparing", "loading"]  # finding, downloading and measuring files; a process reads


class ModelState(enum.StrEnum):
    """Where a model is in its life. One that is not loaded is loaded when somebody asks it."""

    NOT_LOADED = "not_loaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"  # the last loading; the next question tries again


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the files of a model say, before any of its weights is read."""

    format: str = ""  # such as `safetensors bfloat16`, `GGUF Q4_K_M`; empty: unknown
    context_length: int | None = None  # tokens that it was made for
    size_bytes: int = 0  # of its weights on disk
    needs_bytes: int | None = None  # of memory, at least, to be served; None: nobody can tell
    smaller: dict[str, int] = {}  # what it would need with other options, the best one first


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of several engines of a model, as the supervisor has it."""

    name: str  # what administrators call it
    kind: str
    url: str | None = None  # None: it is ours, on this machine
    weight: float = 1.0
    is_draining: bool = False  # it takes no new answers
    must_move: bool = False  # and those that it has go on at others
    problem: str | None = None  # why there is none, in one line for a person
    options: dict[str, Any] | None = None  # how a worker joins it; None: it is not there yet

    @classmethod
    def of(cls, entry: EngineEntry) -> Self:
        """Before anything is known but what the operator says."""
        return cls(name=entry.name, kind=entry.kind, url=entry.url, weight=entry.weight)


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model at a moment."""

    name: str  # what clients call it
    kind: str  # of its engine, one of `server/engines/kinds.py`
    url: str | None = None  # of its engine; None: it is ours, or there are several
    state: ModelState = ModelState.NOT_LOADED
    attempt: int = 0  # how often its loading has begun
    stage: Stage | None = None  # of its loading
    progress: float | None = None  # of this stage, from 0 to 1; None: nobody can tell
    problem: str | None = None  # why its loading failed, in one line for a person
    facts: ModelFacts | None = None  # None: its files are not here, or not looked at yet
    memory_bytes: int | None = None  # of the process that has loaded it, with a full cache
    options: dict[str, Any] | None = None  # how a worker joins its engine: only the kind reads them
    engines: tuple[EngineStatus, ...] = ()  # where there are several


def discreet(problem: str) -> str:
    """For clients: files without the folders that they lie in, which are nobody's business."""
    return re.sub(r"(?<![\w.:/])/(?:[^\s/]+/)+(?=[^\s/])", "", problem)


def gb(num_bytes: int) -> str:
    """For a person."""
    return f"{num_bytes / 1e9:.1f} GB"


def statuses_of(wire: Any) -> tuple[ModelStatus, ...]:
    """From builtins, as the pipe between supervisor and workers carries them."""
    return msgspec.convert(wire, tuple[ModelStatus, ...])


def shown(status: ModelStatus) -> dict[str, Any]:
    """What clients may know of a model besides its name."""
    facts = status.facts or ModelFacts()
    fields: Mapping[str, Any] = {
        "state": status.state.value,
        "progress": status.progress,
        "problem": status.problem,
        "format": facts.format or None,
        "context_length": facts.context_length,
        "size_bytes": facts.size_bytes or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One `--model`: where it is, and what it is to be called, if somebody has said that."""

    source: str  # folder, GGUF file, hub id, name of `parley models`, or `demo`
    given_name: str | None = None

    @property
    def is_demo(self) -> bool:
        return self.source == DEMO


def model_sources(text: str) -> tuple[str, ...]:
    """A list in one text, separated by commas or spaces; a path that has them is one model."""
    text = text.strip()
    if _is_path(text) or _is_path(text.partition("=")[2]):
        return (text,)
    return tuple(part for part in re.split(r"[,\s]+", text) if part)


def parse_model(text: str) -> ModelSource:
    """`NAME=SOURCE` or `SOURCE`. Raises ValueError."""
    name, is_named, source = text.partition("=")
    if not is_named or _is_path(text) or "/" in name:
        source, name = text, ""
    elif not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name: letters, digits, '.', '_', ':', '+' and '-'")
    if not source.strip():
        raise ValueError("a model is a folder, a GGUF file, a hub id or a name of `parley models`")
    return ModelSource(source, name or None)


def _is_path(text: str) -> bool:
    return bool(text) and os.path.exists(os.path.expanduser(text))
