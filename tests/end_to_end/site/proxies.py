"""The configurations of docs/operations.md in the proxies that they are written for.

What is printed there is what runs: only ports and the places of files are replaced. Every proxy
serves `https://chat.example` on a port of its own on loopback, with a certificate made here.
"""

import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.helpers.patience import PATIENCE
from tests.helpers.root import ROOT

HOST = "127.0.0.1"
NAME = "chat.example"
PAGE = ROOT / "docs" / "operations.md"
LANGUAGES = {"nginx": "nginx", "caddy": "caddyfile", "haproxy": "haproxy"}
# Where Debian puts them; /usr/sbin is not on everybody's PATH.
PATHS = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))


def program(kind: str) -> str | None:
    """The path of a proxy; None where it is not installed."""
    return shutil.which(kind, path=PATHS)


def printed(kind: str) -> str:
    """The configuration that the page prints for this proxy."""
    (found,) = re.findall(rf"^```{LANGUAGES[kind]}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return str(found)


def printed_environment() -> dict[str, str]:
    """The settings of Parley that the page prints for all of them."""
    _, _, section = PAGE.read_text().partition("\n## Behind a proxy\n")
    return dict(re.findall(r"^(PARLEY_\w+)=(.+)$", section, re.M))


class Port:
    """A port that nobody else is given: bound, and left for a proxy to listen on."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Site:
    """`https://chat.example`, as one of the proxies serves it."""

    port: int
    tls: ssl.SSLContext  # trusts its certificate

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}"

    @property
    def way(self) -> dict[str, Any]:
        """For connections of asyncio: where its name leads, and whom to trust."""
        return {"host": HOST, "port": self.port, "ssl": self.tls, "server_hostname": NAME}


class SiteTransport(httpx2.AsyncHTTPTransport):
    """Goes to a site on loopback under its name."""

    def __init__(self, site: Site) -> None:
        super().__init__(verify=site.tls)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        there = httpx2.Request(
            request.method,
            request.url.copy_with(host=HOST),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": NAME},
        )
        return await super().handle_async_request(there)


def make_certificate(directory: Path) -> Path:
    """A self-signed certificate, as .crt, .key and, both in one, .pem; returns the first."""
    certificate, key = directory / f"{NAME}.crt", directory / f"{NAME}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", f"subjectAltName=DNS:{NAME}"),
            *("-out", str(certificate), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    (directory / f"{NAME}.pem").write_text(certificate.read_text() + key.read_text())
    return certificate


def replaced(text: str, **parts: str) -> str:
    """The text with each of these in place of what stands there exactly once."""
    for old, new in parts.items():
        assert text.count(old) == 1, (old, text)
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def running(kind: str, directory: Path, port: int, parley: str) -> Iterator[Site]:
    """A proxy in front of `parley` (host:port), ready; its log is in `directory`."""
    binary = program(kind)
    assert binary is not None, f"{kind} is not installed"
    make_certificate(directory)
    printed_with_ours = replaced(printed(kind), **{"127.0.0.1:8000": parley})
    path, arguments, certificate = WRITERS[kind](directory, port, printed_with_ours)
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binary, *arguments, str(path)],
            cwd=directory,
            env={**os.environ, "XDG_CONFIG_HOME": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while (site := _reached(port, certificate)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{kind} did not start:\n{log.read_text()}")
            time.sleep(0.05)  # a start is observed from outside: there is no event to wait for
        yield site
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _reached(port: int, certificate: Path) -> Site | None:
    """The site, once it shows a certificate that can be verified."""
    try:
        tls = ssl.create_default_context(cafile=str(certificate))
        with (
            socket.create_connection((HOST, port), timeout=PATIENCE) as connection,
            tls.wrap_socket(connection, server_hostname=NAME),
        ):
            return Site(port, tls)
    except OSError:
        return None


Written = tuple[Path, list[str], Path]  # configuration, arguments in front of it, certificate


def _write_nginx(directory: Path, port: int, text: str) -> Written:
    """Inside of an `http` block, as Debian's nginx.conf includes it."""
    site = replaced(text, **{"listen 443": f"listen {HOST}:{port}"})
    site = site.replace("/etc/ssl", str(directory))
    user = "user root;\n" if os.geteuid() == 0 else ""  # who can write where pytest does
    temporary = "".join(
        f"{name}_temp_path {directory / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    path = directory / "nginx.conf"
    path.write_text(
        f"{user}daemon off;\npid {directory / 'pid'};\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    return path, ["-e", "stderr", "-c"], directory / f"{NAME}.crt"


def _write_caddy(directory: Path, port: int, text: str) -> Written:
    """Certificates are Caddy's own business; here its own authority makes them."""
    options = f"""{{
    admin off
    local_certs
    skip_install_trust
    auto_https disable_redirects
    default_bind {HOST}
    https_port {port}
    storage file_system {directory}
}}
"""
    path = directory / "Caddyfile"
    path.write_text(options + text)
    certificate = directory / "pki" / "authorities" / "local" / "root.crt"
    return path, ["run", "--adapter", "caddyfile", "--config"], certificate


def _write_haproxy(directory: Path, port: int, text: str) -> Written:
    path = directory / "haproxy.cfg"
    site = replaced(text, **{"bind :443": f"bind {HOST}:{port}", "/etc/ssl": str(directory)})
    path.write_text(site)
    return path, ["-db", "-f"], directory / f"{NAME}.crt"


WRITERS = {"nginx": _write_nginx, "caddy": _write_caddy, "haproxy": _write_haproxy}
