"""`needs_emulator`: marks tests of CUDA kernels on a processor, which a C++ compiler must build.

The kernels are those of csrc/cuda, word for word; tests/csrc/cuda_emulator gives what CUDA would.
What the emulator cannot show is in its header.
"""

import functools
from pathlib import Path

import pytest

from csrc import build
from engine import ops

FOLDER = Path(__file__).parent / "csrc" / "cuda_emulator"
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


@functools.cache
def load() -> bool:
    """Make the kernels known as `torch.ops.parley_cuda`, for tensors on the CPU."""
    compiler = build.find_compiler()
    if compiler is None:
        return False
    recipe = build.Recipe(
        "parley_cuda_emulated", build.SOURCES / "cuda", compiler, FLAGS, include=(FOLDER,)
    )
    ops.load_library_of("parley_cuda", build.build_in(build.cache_folder(), recipe))
    return True


# Where there is no compiler, nothing was built that could be tested.
needs_emulator = pytest.mark.skipif(not load(), reason="csrc/cuda is not built: no compiler")
