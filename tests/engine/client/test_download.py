import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.client.download import resolve_model
from engine.errors import DownloadError
from tests.helpers.patience import PATIENCE

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "modeling.py": b"raise SystemExit('code of a checkpoint ran')",
    "pytorch_model.bin": b"pickle",
}
COMMIT = "0" * 40


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub as one model needs; other names get what the hub says to strangers."""

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/org/tiny/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": "0"}
                for name, content in FILES.items()
            ]
            self._answer(200, json.dumps(tree))
        elif self.path.startswith("/api/models/org/tiny/"):
            siblings = [{"rfilename": name} for name in FILES]
            self._answer(200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}))
        elif self.path.startswith("/org/tiny/resolve/"):
            self._answer(200, FILES[self.path.rsplit("/", 1)[1]].decode())
        elif "gated" in self.path:
            self._answer(403, "", ("X-Error-Code", "GatedRepo"))
        elif "broken" in self.path:
            self._answer(500, "")
        else:
            self._answer(401, "", ("X-Error-Code", "RepoNotFound"))

    do_HEAD = do_GET

    def _answer(self, status: int, body: str, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{len(body)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def _hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _resolve(model: str, endpoint: str, home: Path) -> str:
    """In a fresh process: huggingface_hub reads its settings when it is imported."""
    program = (
        "import sys\nfrom engine.client.download import resolve_model\n"
        "from engine.errors import DownloadError\n"
        "try: print(resolve_model(sys.argv[1]))\n"
        "except DownloadError as error: print(f'error: {error}')"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DOWNLOAD_TIMEOUT": "2"}
    env |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program, model],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["./missing", "/no/such/folder", "a/b/c", "sp ace", "../up"])
def test_what_can_be_no_hub_id_is_a_missing_folder(name: str) -> None:
    with pytest.raises(DownloadError, match="there is no folder"):
        resolve_model(name)


def test_hub_id_is_downloaded_without_code_and_pickles(tmp_path: Path) -> None:
    with _hub() as endpoint:
        folder = Path(_resolve("org/tiny", endpoint, tmp_path))
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("org/unknown", "the hub has no model org/unknown, or it is private"),
        ("org/gated", "org/gated is gated"),
        ("org/broken", "org/broken"),
    ],
)
def test_refusal_of_the_hub_is_one_line(tmp_path: Path, model: str, says: str) -> None:
    with _hub() as endpoint:
        answer = _resolve(model, endpoint, tmp_path)
    assert answer.startswith(f"error: {says}")
    assert "\n" not in answer


def test_no_network_is_one_line(tmp_path: Path) -> None:
    answer = _resolve("org/tiny", "http://127.0.0.1:9", tmp_path)
    assert (
        answer == "error: org/tiny is not downloaded yet, and http://127.0.0.1:9 cannot be reached"
    )
