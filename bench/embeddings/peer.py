"""`SentenceTransformers`: the peer's process, seen from here."""

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.peers.machine.environments import Environments, cache_folder
from engine import PoolingRequestOutput

PROGRAM = Path(__file__).with_name("sentence_transformers_peer.py")
MIN_COSINE = 0.99  # of two embeddings of one text, in bfloat16


class SentenceTransformers:
    """Embeds the same texts each time it is asked to. Within `with`, it runs.

    Raises `Unavailable` if its environment cannot be made, and RuntimeError if it ends.
    """

    def __init__(self, model: Path, texts: Sequence[str], threads: int) -> None:
        python = Environments(cache_folder(), os.cpu_count() or 1).program(
            "sentence-transformers", "python"
        )
        self._command = [str(python), str(PROGRAM)]
        self._threads = threads
        self._model, self._texts = model, texts

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        plain = _without_template(self._model, Path(self._folder.name))
        self._process = subprocess.Popen(
            [*self._command, str(plain), str(self._threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._write(json.dumps(self._texts))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def embed(self) -> list[float]:
        """Embed all texts; the first one's embedding, normalized."""
        self._write("")
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"sentence-transformers ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return list(answer["first"])

    def check(self, ours: Sequence[PoolingRequestOutput]) -> None:
        """Raises ValueError unless both mean the same by an embedding of the first text."""
        one, other = list(ours[0].outputs.data), self.embed()
        norm = math.sqrt(sum(number * number for number in one))
        cosine = sum(a * b for a, b in zip(one, other, strict=True)) / norm
        if cosine < MIN_COSINE:
            raise ValueError(f"sentence-transformers' embedding has a cosine of {cosine} with ours")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def _without_template(model: Path, folder: Path) -> Path:
    """The same checkpoint without a chat template, which would be put around every text."""
    for file in model.iterdir():
        if file.name not in ("tokenizer_config.json", "chat_template.jinja"):
            (folder / file.name).symlink_to(file)
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
