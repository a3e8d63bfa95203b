"""What the real core of a plain model imports: no more than its steps need.

transformers takes as long to import as torch, and drags in sympy and torch's compiler, which again
take as long (docs/performance.md has the figures).
"""

import io
import os
from collections.abc import Iterator

import pytest

from engine import AsyncEngineArgs, CoreProcess, PrivateDirectory, demo_model
from tests.helpers.built_kernels import needs_kernels
from tests.helpers.patience import PATIENCE

NOT_NEEDED = (
    *("transformers", "sympy", "torch._dynamo", "torch._inductor", "torch.onnx", "gguf"),
    "llguidance",
)
OF_CLIENTS = ("engine.client", "engine.faces", "engine.scaffolding", "jinja2", "tokenizers")


@pytest.fixture
def directory() -> Iterator[PrivateDirectory]:
    directory = PrivateDirectory()
    yield directory
    directory.remove()


@needs_kernels
def test_the_core_of_the_demo_model_imports_neither_transformers_nor_what_clients_need(
    directory: PrivateDirectory,
) -> None:
    args = AsyncEngineArgs(str(demo_model()), runner="generate", num_gpu_blocks_override=16)
    log = io.BytesIO()
    told = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    core = CoreProcess(args.create_engine_config(directory.address), log=log, env=told)
    try:
        core.wait_ready(PATIENCE)
    finally:
        core.terminate()
    imported = {
        line.rpartition("|")[2].strip()
        for line in log.getvalue().decode().splitlines()
        if line.startswith("import time:")
    }
    assert {"torch", "engine.core.models.fused.plain_model"} <= imported
    unwanted = NOT_NEEDED + OF_CLIENTS
    assert [name for name in sorted(imported) if name.startswith(unwanted)] == []
