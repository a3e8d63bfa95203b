"""`needs_cuda_kernels`: marks tests of csrc/cuda, whose tensors lie on the CPU; `with_cuda_kernels`
marks those among them that the emulator takes long for.

The kernels are those of csrc/cuda, word for word. A C++ compiler builds them for the processor, and
tests/csrc/cuda_emulator gives what CUDA would; what that cannot show is in its header. With
PARLEY_TEST_DEVICE=cuda they are built for a GPU, and run there: all tensors of a call are brought
over, and what it writes is brought back.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from csrc import build
from engine.core.ops import library as ops
from tests.helpers.root import ROOT

NAMESPACE = "parley_cuda"
FOLDER = ROOT / "tests" / "csrc" / "cuda_emulator"
FLAGS = (
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wno-psabi",
    "-x",
    "c++",
    "-DPARLEY_CUDA_DISPATCH=CPU",
)


IS_ON_GPU = os.environ.get("PARLEY_TEST_DEVICE") == "cuda"


@functools.cache
def load() -> bool:
    """Make the kernels known as `torch.ops.parley_cuda`, for tensors on the CPU."""
    if IS_ON_GPU:
        assert ops.load_cuda_library(), "csrc/cuda was not built"
        run_elsewhere(NAMESPACE, torch.device("cuda"))
        return True
    compiler = build.find_compiler()
    if compiler is None:
        return False
    recipe = build.Recipe(
        "parley_cuda_emulated", build.SOURCES / "cuda", compiler, FLAGS, include=(FOLDER,)
    )
    ops.load_library_of(NAMESPACE, build.build_in(build.cache_folder(), recipe))
    return True


def run_elsewhere(namespace: str, device: torch.device) -> None:
    """Let the ops of a library take tensors on the CPU, and compute on another device."""
    make: Any = torch.library.Library  # which torch gives no types
    library = make(namespace, "IMPL", "CPU")
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(f"{namespace}::") and any(
            str(argument.type) in ("Tensor", "Optional[Tensor]") for argument in schema.arguments
        ):
            name = schema.name.removeprefix(f"{namespace}::")
            op = getattr(getattr(torch.ops, namespace), name)
            writes = [argument.is_write for argument in schema.arguments]
            library.impl(name, elsewhere(op, writes, device))
    _LIBRARIES.append(library)


_LIBRARIES: list[Any] = []  # what they register lasts as long as they


def elsewhere(
    op: Callable[..., Any], writes: list[bool], device: torch.device
) -> Callable[..., Any]:
    """An op that computes on `device`. `writes`: which of its arguments it writes."""

    def call(*arguments: Any) -> Any:
        moved = [_copy_to(each, device) for each in arguments]
        result = op(*moved)
        for here, there, is_written in zip(arguments, moved, writes, strict=True):
            if is_written:
                here.copy_(there)
        return result

    return call


def _copy_to(argument: Any, device: torch.device) -> Any:
    """With the same strides and offset: rows that lie apart or begin anywhere are tested, too."""
    if not isinstance(argument, Tensor):
        return argument
    num_values = argument.untyped_storage().nbytes() // argument.itemsize
    storage = torch.empty(num_values, dtype=argument.dtype, device=device)
    layout = (argument.shape, argument.stride(), argument.storage_offset())
    return storage.as_strided(*layout).copy_(argument)


# Where there is no compiler, nothing was built that could be tested.
needs_cuda_kernels = pytest.mark.skipif(not load(), reason="csrc/cuda is not built: no compiler")
with_cuda_kernels = [needs_cuda_kernels] if IS_ON_GPU else [needs_cuda_kernels, pytest.mark.slow]
