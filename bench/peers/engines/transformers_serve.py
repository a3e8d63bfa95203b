"""transformers by its own server, with its continuous batching."""

import contextlib
from collections.abc import Iterator
from typing import ClassVar

from bench.peers.engines.peer import KV_TOKENS, Peer, Running
from bench.peers.load.doors import OpenAIDoor
from bench.peers.machine.environments import REQUIREMENTS
from bench.peers.machine.processes import free_port

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
BLOCK_SIZE = 32


class Transformers(Peer):
    name = "transformers"
    precisions: ClassVar[dict[str, float]] = {"bf16": 2.0, "fp32": 4.0}

    @property
    def value_bytes(self) -> float:
        return self.precisions[self.precision]  # in the dtype of the weights

    def prepare(self) -> str:
        self.site.environments.program("transformers", "transformers")
        return REQUIREMENTS["transformers"][0].rpartition("=")[2]

    @contextlib.contextmanager
    def running(self) -> Iterator[Running]:
        folder, port = str(self.site.checkpoint.folder), free_port()
        program = self.site.environments.program("transformers", "transformers")
        command = [
            *(str(program), "serve", folder, "--host", "127.0.0.1", "--port", str(port)),
            *("--device", "cpu", "--dtype", DTYPES[self.precision], "--continuous-batching"),
            *("--attn-implementation", "sdpa", "--cb-block-size", str(BLOCK_SIZE)),
            *("--cb-num-blocks", str(KV_TOKENS // BLOCK_SIZE), "--cb-max-batch-tokens", "2048"),
        ]
        door = OpenAIDoor(port, folder, takes_ids=False)
        with self._serve(command, {}, port, door) as server:
            yield server
