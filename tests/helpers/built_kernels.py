"""`needs_kernels`: marks tests of the built C++ ops.

Parley runs without a compiler, on the torch references, and its tests pass there too: those of the
built ops have nothing to look at then. CI installs a compiler, so there they always run.
"""

import pytest

from engine.core.ops import library as ops

# Where there is no compiler, nothing was built that could be tested.
needs_kernels = pytest.mark.skipif(not ops.load_library(), reason="csrc is not built: no compiler")
