"""`Peers`: the other workers on this Redis, as this one knows them, and its own sign of life."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Collection, Mapping

import structlog

from sessions.directory.replicas import Replica, Replicas
from sessions.model.errors import StoreUnavailable

logger = structlog.get_logger("server")

Figures = Mapping[str, str | int | float]


class Peers:
    """What is known stays known while Redis is away: then it matters most."""

    def __init__(
        self,
        replicas: Replicas,
        replica: str,
        figures: Callable[[], Figures],
        *,
        report_seconds: float,
        look_seconds: float,
    ) -> None:
        self.replicas = replicas
        self._replica = replica
        self._figures = figures
        self._report_seconds = report_seconds
        self._look_seconds = look_seconds
        self._looked_at = float("-inf")
        self._others: list[Replica] = []
        self._news = asyncio.Event()

    def are_known(self) -> bool:
        """Whether anybody could take this worker's answers over."""
        return bool(self._others)

    def successor(self, model_fingerprint: str) -> str | None:
        """A worker that could go on with this one's answers, None if there is none."""
        fit = [
            other.id
            for other in self._others
            if model_fingerprint in fingerprints_of(other) and other.figures.get("draining") == "0"
        ]
        return random.choice(fit) if fit else None

    async def beat(self) -> None:
        """Give a sign of life and look who else did. Raises `StoreUnavailable`."""
        await self.replicas.beat(self._replica, self._figures())
        self._looked_at = time.monotonic()
        everybody = await self.replicas.all()
        self._others = [replica for replica in everybody if replica.id != self._replica]

    def beat_soon(self) -> None:
        """A figure has changed that operators should not wait for."""
        self._news.set()

    async def beat_forever(self) -> None:
        while True:
            self._news.clear()
            try:
                # With many workers, a look costs each of them more than a report.
                if time.monotonic() - self._looked_at >= self._look_seconds:
                    await self.beat()
                else:
                    await self.replicas.beat(self._replica, self._figures())
            except StoreUnavailable:
                pass  # `Health` tells
            except Exception:
                logger.exception("heartbeat failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._report_seconds):
                    await self._news.wait()

    async def forget(self, replica: str) -> None:
        """That worker has exited; a no-op for one that is forgotten already."""
        self._others = [other for other in self._others if other.id != replica]
        await self.replicas.leave(replica)


def fingerprints_of(replica: Replica) -> Collection[str]:
    """Of the models that it serves; a worker that knows one alone has only that one's figure."""
    figures = replica.figures
    return {figures.get("model_fingerprint", ""), *figures.get("fingerprints", "").split()} - {""}
