"""A hub of models on this machine, and programs that download from it."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from tests.helpers.patience import PATIENCE

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "modeling.py": b"raise SystemExit('code of a checkpoint ran')",
    "pytorch_model.bin": b"pickle",
}
COMMIT = "0" * 40
PLACE = re.compile(
    r"(?:/api/models)?/(?P<id>org/[\w-]+)(?:/(?P<part>\w+)/[^/?]+/?(?P<file>[^?]*))?(?:\?.*)?"
)


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as some models need; other names get what the hub says to strangers."""

    repositories: ClassVar[dict[str, dict[str, bytes]]] = {}
    sizes: ClassVar[dict[str, int]] = {}
    commit = COMMIT

    def do_GET(self) -> None:
        found = PLACE.fullmatch(self.path)
        files = None if found is None else self.repositories.get(found["id"])
        if "gated" in self.path:
            self._answer(403, b"", ("X-Error-Code", "GatedRepo"))
        elif "broken" in self.path:
            self._answer(500, b"")
        elif found is None or files is None:
            self._answer(401, b"", ("X-Error-Code", "RepoNotFound"))
        elif found["part"] == "tree":
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": "0"}
                for name, content in files.items()
            ]
            self._answer(200, json.dumps(tree).encode())
        elif found["part"] == "resolve":
            self._answer(200, files[found["file"]])
        else:
            siblings = [
                {
                    "rfilename": name,
                    "size": self.sizes.get(name, len(content)),
                    "blobId": str(len(content)),
                }
                for name, content in files.items()
            ]
            if "blobs=true" not in self.path or "untold" in self.path:
                siblings = [{"rfilename": name} for name in files]
            about = {"id": found["id"], "sha": self.commit, "siblings": siblings}
            self._answer(200, json.dumps(about).encode())

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{len(body)}"')
        self.send_header("X-Repo-Commit", self.commit)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def hub(
    sizes: dict[str, int] | None = None,
    commit: str = COMMIT,
    **repositories: dict[str, bytes],
) -> Iterator[str]:
    """Its address. It has `org/tiny` and others, in the place of whose `-` is a `_`.

    It says these `sizes` of files in the place of their own: of one that is a header and a hole.
    """
    named = {f"org/{name.replace('_', '-')}": files for name, files in repositories.items()}
    own = {"repositories": {"org/tiny": FILES, **named}, "sizes": sizes or {}, "commit": commit}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneHub", (Hub,), own))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def in_fresh_process(program: str, endpoint: str, home: Path, *arguments: str) -> str:
    """What a program prints: huggingface_hub reads its settings when it is imported."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DOWNLOAD_TIMEOUT": "2"}
    env |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "2"}
    env |= {"XDG_CACHE_HOME": str(home / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
