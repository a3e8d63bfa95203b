import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat import vllm_source as module
from tests.compat.vllm_source import NAME, Unavailable, vllm_source

pytestmark = pytest.mark.slow

ROOT = NAME.removesuffix(".tar.gz")


def package(*names: str) -> bytes:
    """A source package with these files, each of which holds its own name."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"{ROOT}/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return written.getvalue()


class Index:
    """A package index with one page; counts how often the package was fetched."""

    def __init__(self, content: bytes) -> None:
        index, self.num_fetches = self, 0
        self.listing = f'<a href="../files/other.tar.gz">o</a><a href="../files/{NAME}#sha256=0">'

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_page = self.path == "/simple/vllm/"
                index.num_fetches += not is_page
                self.send_response(200 if is_page or self.path.endswith(NAME) else 404)
                self.end_headers()
                self.wfile.write(index.listing.encode() if is_page else content)

            def log_message(self, *args: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever).start()


PACKAGE = package("kept.py", "config/a.py", "config/b.py", "dropped.py")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    index = Index(PACKAGE)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "SHA256", hashlib.sha256(PACKAGE).hexdigest())
    monkeypatch.setattr(module, "KEPT", ("kept.py", "config/"))
    yield index
    index.server.shutdown()
    index.server.server_close()


def test_the_package_is_fetched_once_and_only_what_is_read_stays(index: Index) -> None:
    folder = vllm_source()
    files = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
    assert files == ["config/a.py", "config/b.py", "kept.py"]
    assert (folder / "kept.py").read_text() == "kept.py"
    assert vllm_source() == folder and index.num_fetches == 1


def test_another_package_of_that_name_is_refused(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHA256", "0" * 64)
    with pytest.raises(ValueError, match="its SHA-256 differs"):
        vllm_source()


def test_an_index_that_does_not_list_it_or_is_away_is_reported_in_one_line(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.listing = ""
    with pytest.raises(Unavailable, match="does not list it"):
        vllm_source()
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(Unavailable, match="refused"):
        vllm_source()
