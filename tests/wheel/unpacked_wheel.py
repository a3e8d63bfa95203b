"""Parley as a wheel holds it, with the page in bundles."""

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.helpers.root import ROOT


def unpacked_wheel(folder: Path) -> Path:
    """Build a wheel, and unpack it: `python -m server` runs there. Needs npm."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    (wheel,) = folder.glob("parley-*.whl")
    root = folder / "parley"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root)
    (ROOT / "build").mkdir(exist_ok=True)
    (root / "build").symlink_to(ROOT / "build")  # the kernels of the same sources
    return root
