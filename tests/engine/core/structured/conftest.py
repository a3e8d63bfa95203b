"""An engine on a tiny model whose answers, at a temperature, walk wherever they may."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.grammar.params import StructuredOutputsParams
from engine.ipc import SequenceOutput
from tests.engine.helpers.stepped_engine import SteppedEngine
from tests.helpers.tiny_model import build_tiny_model

PROMPT = [5, 6, 7, 8]


class Walker:
    """Asks a stepped engine, and reads what it says as text."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._numbers = itertools.count()
        self.last = ""  # the request that has spoken last
        settings = {"max_num_seqs": 8, "num_blocks": 200} | settings
        self.engine = SteppedEngine(folder, ends_at_eos=True, **settings)

    def add(self, name: str, form: dict[str, Any] | None, **params: Any) -> None:
        defaults: dict[str, Any] = {"max_tokens": 60, "temperature": 1.0, "ignore_eos": False}
        asked = None if form is None else StructuredOutputsParams(**form)
        self.engine.add(name, PROMPT, structured_outputs=asked, **(defaults | params))

    def name(self, start: str) -> str:
        """One that no request has had."""
        return f"{start}-{next(self._numbers)}"

    def say(self, form: dict[str, Any] | None, **params: Any) -> tuple[str, SequenceOutput]:
        """The text of one answer, and its last output."""
        name = self.name("said")
        self.last = name
        self.add(name, form, **params)
        self.engine.run()
        return self.text(name), self.engine.ends[name]

    def text(self, name: str) -> str:
        ids = self.engine.tokens.get(name, [])
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("walker"))


@pytest.fixture(scope="module")
def walker(folder: Path) -> Iterator[Walker]:
    walker = Walker(folder)
    yield walker
    walker.engine.close()
