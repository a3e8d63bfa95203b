"""Servers at an address that misbehave: the first part of the path says how."""

import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOL = {"name": "act", "inputSchema": {"type": "object"}}
PIECE = b"x" * 65536


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(405, b"")

    def do_DELETE(self) -> None:
        self._never()

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        how = self.path.strip("/")
        if "id" not in request and how == "ignores_notices":
            self._never()
        elif "id" not in request:
            self._reply(202, b"")
        elif request["method"] == "tools/call":
            with contextlib.suppress(OSError):  # the client is gone
                getattr(self, how)(request)
        else:
            self._answer(request, self._usual(request))

    def _usual(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["method"] == "tools/list":
            return {"tools": [TOOL]}
        if request["method"] == "ping":
            return {}
        return {
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "x", "version": "1"},
        }

    def _answer(self, request: dict[str, Any], result: Any, **headers: str) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
        if headers.get("Content_Encoding") == "gzip":
            body = gzip.compress(body)
        self._reply(200, body, Content_Type="application/json", Mcp_Session_Id="s", **headers)

    def _reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    # ---- what each does when its tool is called -------------------------------------------------

    def http_500(self, request: dict[str, Any]) -> None:
        self._reply(500, b"<h1>\x1b[2J</h1>", Content_Type="text/html")

    def http_404(self, request: dict[str, Any]) -> None:
        self._reply(404, b"")

    def redirects(self, request: dict[str, Any]) -> None:
        self._reply(307, b"", Location="http://127.0.0.1:1/elsewhere")

    def redirects_in_a_circle(self, request: dict[str, Any]) -> None:
        self._reply(307, b"", Location=self.path)

    def wrong_type(self, request: dict[str, Any]) -> None:
        self._reply(200, b"<html>", Content_Type="text/html")

    def unpacks(self, request: dict[str, Any]) -> None:
        self._answer(
            request, {"content": [{"type": "text", "text": "x" * 10**7}]}, Content_Encoding="gzip"
        )

    def endless_body(self, request: dict[str, Any]) -> None:
        self._endless("application/json", PIECE)

    def endless_events(self, request: dict[str, Any]) -> None:
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
        self._endless("text/event-stream", b"data: " + json.dumps(note).encode() + b"\n\n")

    def endless_event(self, request: dict[str, Any]) -> None:
        self._endless("text/event-stream", b"data: " + PIECE + b"\n")

    def hangs_up(self, request: dict[str, Any]) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)

    def never_answers(self, request: dict[str, Any]) -> None:
        self._never()

    def ignores_notices(self, request: dict[str, Any]) -> None:
        self._answer(request, {"content": [{"type": "text", "text": "done"}]})

    def _never(self) -> None:
        self.rfile.read(1)  # until the client has gone

    def _endless(self, kind: str, piece: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")


@contextlib.contextmanager
def misbehaving_http() -> Iterator[str]:
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
