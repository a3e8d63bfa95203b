"""llama.cpp by its own server, from the source that llama-cpp-python's distribution carries."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from bench.peers.engines.peer import KV_TOKENS, MAX_CHATS, Peer, Running
from bench.peers.load.doors import OpenAIDoor
from bench.peers.machine.environments import LLAMA
from bench.peers.machine.processes import free_port

CONVERTER = Path(__file__).parent / "gguf_converter.py"


class LlamaCpp(Peer):
    """All chats share one KV cache, the server's own default layout."""

    name = "llama.cpp"
    precisions: ClassVar[dict[str, float]] = {"bf16": 2.0, "f16": 2.0, "q8_0": 34 / 32}
    note = "keys and values f16"
    layout = ("--parallel", str(MAX_CHATS), "--ctx-size", str(KV_TOKENS), "--kv-unified")

    @property
    def value_bytes(self) -> float:
        return 2.0  # f16 beside any weights

    def prepare(self) -> str:
        environments = self.site.environments
        environments.llama_server()  # compiles it
        file = self._file()
        if not file.exists():
            part = file.with_suffix(".part")
            # Parley's own environment has nearly all that the converter imports.
            more = next(environments.folder("llama.cpp").glob("lib/python*/site-packages"))
            arguments = [environments.llama_source(), more, self.site.checkpoint.folder, part]
            environments.run(
                f"{self.engine}: writing {file.name}",
                [sys.executable, "-P", str(CONVERTER), *map(str, arguments), self.precision],
            )
            part.rename(file)
        return f"of {LLAMA}"

    def _file(self) -> Path:
        stem = self.site.converted
        return stem.with_name(f"{stem.name}-{self.precision}.gguf")

    @contextlib.contextmanager
    def running(self) -> Iterator[Running]:
        threads, port = str(self.site.threads), free_port()
        command = [
            str(self.site.environments.llama_server()),
            *("--model", str(self._file()), "--host", "127.0.0.1", "--port", str(port)),
            *("--threads", threads, "--threads-batch", threads),
            *(*self.layout, "--jinja"),
        ]
        door = OpenAIDoor(port, "m", ignore_eos=True)
        with self._serve(command, {}, port, door) as server:
            yield server


class LlamaCppSplit(LlamaCpp):
    """Each chat has a KV cache of its own: faster in batches, and 1,024 tokens are the limit."""

    name = "llama.cpp-split"
    note = "16 chats at most, of 1,024 tokens; keys and values f16"
    layout = ("--parallel", "16", "--ctx-size", str(16 * 1024), "--no-kv-unified")
