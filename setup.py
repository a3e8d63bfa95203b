"""What pyproject.toml cannot say: a wheel holds the page as `static/bundler/` makes it."""

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

BUNDLER = "static/bundler/bundle.mjs"


class BuildWithPage(build_py):
    """Python's files as ever, and then the page; an editable install takes both as they lie."""

    def run(self) -> None:
        if self.editable_mode:
            return super().run()
        if shutil.which("node") is None:
            raise SystemExit(
                "To build a wheel, npm is needed: it bundles the page. (apt install npm)"
            )
        shutil.rmtree(self.build_lib, ignore_errors=True)  # setuptools would keep what is gone
        super().run()
        if subprocess.run(["node", BUNDLER]).returncode:
            raise SystemExit("The page was not bundled; the reason is above.")
        shutil.copytree("build/page", Path(self.build_lib) / "static")


setup(cmdclass={"build_py": BuildWithPage})
