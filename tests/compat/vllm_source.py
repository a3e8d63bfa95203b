"""vLLM's source package, as the package index has it: what our checks read of it.

It is fetched once, 47 MB, checked by its SHA-256, and of it the files in `KEPT` stay in a folder of
the user's cache. It is only read: the package itself is never installed or imported.
"""

import fcntl
import hashlib
import html
import http.client
import io
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

VERSION = "0.33.0"
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
NAME = f"vllm-{VERSION}.tar.gz"
KEPT = (  # of the package: files, and folders that end with "/"
    "tests/__init__.py",
    "tests/detokenizer/__init__.py",
    "tests/samplers/__init__.py",
    "tests/v1/__init__.py",
    "tests/v1/engine/__init__.py",
    "tests/v1/engine/utils.py",
    "tests/detokenizer/test_check_stop_strings.py",
    "tests/samplers/test_non_finite_params.py",
    "tests/test_outputs.py",
    "tests/test_request_input_bounds.py",
    "tests/test_sampling_params.py",
    "tests/v1/engine/test_async_llm.py",
    "tests/v1/engine/test_output_processor.py",
    "vllm/config/",
    "vllm/engine/arg_utils.py",
)
DEFAULT_INDEX = "https://pypi.org/simple"
SECONDS = 60.0  # that the index may be silent


class Unavailable(Exception):
    """Why the package is not here: one line."""


def vllm_source() -> Path:
    """The folder that holds `KEPT`. `Unavailable` if it has to be fetched and cannot be."""
    folder = _cache() / f"vllm-{VERSION}-{_content_key()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of one test run may want it
        if not folder.exists():
            try:
                package = _fetch()
            except (OSError, http.client.HTTPException) as error:
                raise Unavailable(
                    f"{NAME} is not to be had from the package index: {error}"
                ) from None
            _unpack(package, folder)
    return folder


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "parley", "compat").absolute()


def _content_key() -> str:
    """Another one whenever another package, or other files of it, are asked for."""
    return hashlib.sha256(repr((SHA256, KEPT)).encode()).hexdigest()[:12]


def _fetch() -> bytes:
    """The package. `OSError` if it cannot be had, ValueError if it is another one than ours."""
    index = _pip_setting("index-url") or DEFAULT_INDEX
    context = ssl.create_default_context(cafile=_pip_setting("cert"))
    page = f"{index.rstrip('/')}/vllm/"
    package = _read(_find_link(_read(page, context).decode(), page), context)
    if hashlib.sha256(package).hexdigest() != SHA256:
        raise ValueError(f"{NAME} of {page} is not the package that we know: its SHA-256 differs")
    return package


def _find_link(listing: str, page: str) -> str:
    for link in re.findall(r'href="([^"]+)"', listing):
        address = urllib.parse.urljoin(page, html.unescape(link))
        if urllib.parse.urlsplit(address).path.endswith(f"/{NAME}"):
            return address
    raise FileNotFoundError(f"{page} does not list it")


def _read(address: str, context: ssl.SSLContext) -> bytes:
    with urllib.request.urlopen(address, timeout=SECONDS, context=context) as response:
        content: bytes = response.read()
    return content


def _pip_setting(name: str) -> str | None:
    """What pip is configured to use."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    values = re.findall(rf"^(?:global|install|download|:env:)\.{name}='(.*)'$", done.stdout, re.M)
    return values[-1] if values else None


def _unpack(package: bytes, folder: Path) -> None:
    """Write `KEPT`, all or nothing."""
    root = f"vllm-{VERSION}/"
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as temporary,
        tarfile.open(fileobj=io.BytesIO(package)) as archive,
    ):
        for member in archive:
            name = member.name.removeprefix(root)
            if member.isfile() and any(_matches(name, each) for each in KEPT):
                archive.extract(member, temporary, filter="data")
        missing = [each for each in KEPT if not Path(temporary, root, each).exists()]
        assert not missing, f"not in {NAME}: {missing}"
        shutil.move(Path(temporary, root), folder)


def _matches(name: str, kept: str) -> bool:
    return name.startswith(kept) if kept.endswith("/") else name == kept
