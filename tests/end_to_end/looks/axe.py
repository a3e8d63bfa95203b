"""axe-core, the checker of accessibility rules, as the npm registry has it.

MPL-2.0, 0.7 MB packed: for tests alone, never shipped. It is fetched once, pinned and checked by
its SHA-512 each time that it is read, into a folder of the user's cache.
"""

import base64
import hashlib
import http.client
import io
import os
import ssl
import tarfile
import tempfile
import urllib.request
from pathlib import Path

VERSION = "4.14.1"
INTEGRITY = (  # as in the registry's own record of the package
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)
NAME = f"axe-core-{VERSION}.tgz"
DEFAULT_REGISTRY = "https://registry.npmjs.org"
SECONDS = 60.0  # that the registry may be silent


class Unavailable(Exception):
    """Why axe-core is not here: one line."""


def axe_source() -> str:
    """The script that defines `axe`. `Unavailable` if it has to be fetched and cannot be."""
    kept = _cache() / NAME
    if not kept.exists() or not _is_ours(kept.read_bytes()):
        package = _fetch()
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as written:
            written.write(package)
        Path(written.name).replace(kept)  # all or nothing: other processes may read it
    with tarfile.open(kept) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "parley", "axe").absolute()


def _is_ours(package: bytes) -> bool:
    return base64.b64encode(hashlib.sha512(package).digest()).decode() == INTEGRITY


def _fetch() -> bytes:
    """The package. ValueError if it is another one than ours."""
    registry = os.environ.get("npm_config_registry", DEFAULT_REGISTRY).rstrip("/")
    address = f"{registry}/axe-core/-/{NAME}"
    package = io.BytesIO()
    try:
        context = ssl.create_default_context()
        with urllib.request.urlopen(address, timeout=SECONDS, context=context) as response:
            package.write(response.read())
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{NAME} is not to be had from {registry}: {error}") from None
    if not _is_ours(package.getvalue()):
        raise ValueError(f"{address} is not the package that we know: its SHA-512 differs")
    return package.getvalue()
