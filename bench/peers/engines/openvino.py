"""OpenVINO GenAI's continuous batching behind a thin front of ours: it brings no server itself."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from bench.peers.engines.peer import Peer, Running
from bench.peers.load.doors import OpenAIDoor
from bench.peers.machine.environments import REQUIREMENTS
from bench.peers.machine.processes import free_port

FRONT = Path(__file__).parent / "openvino_front.py"


class OpenVINO(Peer):
    """The precision is that of the stored weights; what it computes in is its own choice."""

    name = "openvino"
    precisions: ClassVar[dict[str, float]] = {"fp16": 2.0, "fp32": 4.0, "int8": 1.0}
    note = "weights; arithmetic is its own choice, keys and values u8"

    @property
    def value_bytes(self) -> float:
        return 1.0  # and scales, whose layout is its own choice

    def prepare(self) -> str:
        environments = self.site.environments
        python = environments.program("openvino", "python")
        folder = self._folder()
        if not (folder / "openvino_model.bin").exists():
            export = [str(python.with_name("optimum-cli")), "export", "openvino"]
            which = ["--model", str(self.site.checkpoint.folder), "--weight-format", self.precision]
            task = ["--task", "text-generation-with-past", str(folder)]
            what = f"{self.engine}: converting {self.site.checkpoint.name}"
            environments.run(what, [*export, *which, *task], {"HF_HUB_OFFLINE": "1"})
        return REQUIREMENTS["openvino"][0].rpartition("=")[2]

    def _folder(self) -> Path:
        stem = self.site.converted
        return stem.with_name(f"{stem.name}-openvino-{self.precision}")

    @contextlib.contextmanager
    def running(self) -> Iterator[Running]:
        port, site = free_port(), self.site
        cache_gib = max(1, -(-site.kv_cache_bytes // 2**30))
        command = [
            # -P: beside the front lies this module, whose name is that of the package it imports.
            *(str(site.environments.program("openvino", "python")), "-P", str(FRONT)),
            *(str(self._folder()), str(port), str(cache_gib), str(site.threads)),
        ]
        with self._serve(command, {}, port, OpenAIDoor(port, "m", ignore_eos=True)) as server:
            yield server
