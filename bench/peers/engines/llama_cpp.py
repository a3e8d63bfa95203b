"""llama.cpp by its own server, from the source that llama-cpp-python's distribution carries."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from bench.peers.engines.peer import KV_TOKENS, MAX_CHATS, Peer, Running, Site
from bench.peers.load.doors import OpenAIDoor
from bench.peers.machine.environments import LLAMA
from bench.peers.machine.processes import free_port

CONVERTER = Path(__file__).parent / "gguf_converter.py"
FOUR_BITS = {
    "q4_0": 18 / 32,
    "q4_k_m": 0.6,
}  # bytes of a weight, about: some tensors have more bits


def gguf_file(site: Site, precision: str) -> Path:
    """The checkpoint as llama.cpp stores it in this precision, made if it is not there yet."""
    stem = site.converted
    file = stem.with_name(f"{stem.name}-{precision}.gguf")
    if file.exists():
        return file
    part, environments = file.with_suffix(".part"), site.environments
    if precision in FOUR_BITS:
        program, source = environments.llama_program("llama-quantize"), gguf_file(site, "bf16")
        command = [str(program), str(source), str(part), precision.upper()]
    else:
        # Parley's own environment has nearly all that the converter imports.
        more = next(environments.folder("llama.cpp").glob("lib/python*/site-packages"))
        arguments = [environments.llama_source(), more, site.checkpoint.folder, part]
        command = [sys.executable, "-P", str(CONVERTER), *map(str, arguments), precision]
    environments.run(f"llama.cpp: writing {file.name}", command)
    part.rename(file)
    return file


class LlamaCpp(Peer):
    """All chats share one KV cache, the server's own default layout."""

    name = "llama.cpp"
    precisions: ClassVar[dict[str, float]] = {"bf16": 2.0, "f16": 2.0, "q8_0": 34 / 32, **FOUR_BITS}
    note = "keys and values f16"
    layout = ("--parallel", str(MAX_CHATS), "--ctx-size", str(KV_TOKENS), "--kv-unified")

    @property
    def value_bytes(self) -> float:
        return 2.0  # f16 beside any weights

    def prepare(self) -> str:
        self.site.environments.llama_program("llama-server")  # compiles it
        gguf_file(self.site, self.precision)
        return f"of {LLAMA}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Running]:
        threads, port = str(self.site.threads), free_port()
        command = [
            str(self.site.environments.llama_program("llama-server")),
            *(
                "--model",
                str(gguf_file(self.site, self.precision)),
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ),
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
