"""`RemoteAddress`: where an engine is, and what it is shown: a key, and whom we trust."""

import ssl
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from server.engines.remote.wire.problems import Misfit

MAX_KEY_BYTES = 4096
HIDDEN = "***"  # in the place of a key
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class RemoteAddress:
    """`url` has no slash at its end. The files are read whenever they are needed: keys change."""

    url: str
    key_file: Path | None = None
    ca_file: Path | None = None

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or DEFAULT_PORTS[parts.scheme]

    @property
    def authority(self) -> str:
        """As the header `Host` has it."""
        return urlsplit(self.url).netloc

    def target(self, path: str) -> str:
        """The path of a route, which begins with a slash, below that of the address."""
        return urlsplit(self.url).path + path

    def key(self) -> str | None:
        """The key that requests carry. Raises `Misfit` for a file that holds none."""
        if self.key_file is None:
            return None
        try:
            with self.key_file.open("rb") as file:
                key = file.read(MAX_KEY_BYTES + 1).strip()
        except OSError as error:
            raise Misfit(f"the key in {self.key_file} cannot be read: {error.strerror}") from None
        if not key or len(key) > MAX_KEY_BYTES or not all(32 < byte < 127 for byte in key):
            raise Misfit(f"{self.key_file} holds no key: one line of printable characters")
        return key.decode()

    def without_key(self, text: str) -> str:
        """What an engine says, which may be what it was sent, for logs and for clients."""
        try:
            key = self.key()
        except Misfit:
            return text
        return text if key is None else text.replace(key, HIDDEN)

    @cached_property
    def trust(self) -> ssl.SSLContext | None:
        """How its certificate is checked, and always is. Raises `Misfit`; None without TLS."""
        if urlsplit(self.url).scheme != "https":
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # also what is no certificate
            raise Misfit(f"the certificates in {self.ca_file} cannot be read: {error}") from None
        context.set_alpn_protocols(["http/1.1"])
        return context
