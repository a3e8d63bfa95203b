"""`Try`: what says of two calls that they are one, and the names that they then have."""

import hashlib
import hmac
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A call as its client sends it."""

    credential: str  # its digest
    route: str
    body: bytes
    key: str | None = None  # of idempotency
    number: int | None = None  # how many tries were before; None: its client counts none

    @property
    def may_be_repeated(self) -> bool:
        """Whether a repeat can be distinguished from another call."""
        return self.key is not None or self.number is not None


class Names:
    """Keyed hashes: they lie in Redis, where nobody shall guess from them what somebody asks."""

    def __init__(self, secret: str) -> None:
        self._secret = b"calls that are repeated\0" + secret.encode()

    def name(self, tried: Try) -> str:
        """Of all calls that are one: by their key where they have one, else by all they say."""
        if tried.key is not None:
            return self._hash("key", tried.credential, tried.key)
        return self._hash("body", tried.credential, self._body(tried))

    def content(self, tried: Try) -> str:
        """What a key was used for."""
        return self._hash("content", tried.credential, self._body(tried))

    def _body(self, tried: Try) -> str:
        return hashlib.sha256(tried.route.encode() + b"\0" + tried.body).hexdigest()

    def _hash(self, *parts: str) -> str:
        return hmac.digest(self._secret, "\0".join(parts).encode(), "sha256").hex()
