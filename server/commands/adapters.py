"""`Adapters`: LoRA adapters that administrators load, and sessions then choose by `settings.model`.

What is loaded stands in the store, for the workers of all hosts. Each offers those whose files it
has: a folder of that name in `PARLEY_LORA_DIR` with the hash that was loaded. The engine compares
that hash again whenever it reads an adapter, so no answer is computed with other weights.
"""

import asyncio
import contextlib
import errno
import hashlib
import re
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from server.engines.client import (
    ADAPTER_FILES,
    EngineClient,
    EngineDeadError,
    LoRARequest,
    RetryableRequestError,
    ServedModel,
    ValidationError,
    hash_adapter,
)
from server.protocol.errors import ApiError, invalid_field
from sessions.directory.adapters import Adapter, AdapterBook
from sessions.model.errors import StoreUnavailable

logger = structlog.get_logger("server")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # of a folder, and of a model
MAX_LOADED = 256
MAX_LISTED = 1000  # folders
FINGERPRINT_DIGITS = 16  # as of a model

Signature = tuple[tuple[int, int, int], ...]  # of an adapter's files: inode, bytes, when changed


@dataclass(frozen=True, slots=True)
class Offer:
    """An adapter as this worker sees it: in its folder, or loaded, or both."""

    name: str
    loaded: Adapter | None
    problem: str | None  # why it cannot be chosen here, though it is loaded


class Adapters:
    """One worker's. `models` is shared with who begins and takes over answers, and kept right.

    Adapters are added to `base` alone; `taken` has the names of all models.

    Methods may raise `StoreUnavailable`.
    """

    def __init__(
        self,
        *,
        folder: Path,
        base: ServedModel,
        models: dict[str, ServedModel],
        taken: Container[str],
        book: AdapterBook,
        engine: EngineClient,
        announce: Callable[[], Awaitable[None]],
        interval_seconds: float,
    ) -> None:
        self._folder = folder
        self._base = base
        self._models = models
        self._taken = taken
        self._book = book
        self._engine = engine
        self._announce = announce  # to the other workers, that something has changed
        self._interval_seconds = interval_seconds
        self._loaded: dict[str, Adapter] = {}
        self._problems: dict[str, str] = {}
        self._seen: dict[str, Signature] = {}  # of the files that were hashed last
        self._lock = asyncio.Lock()

    # ---- what administrators do -----------------------------------------------------------------

    async def listing(self) -> list[Offer]:
        """What lies in the folder and what is loaded, in the order of names."""
        await self.refresh()
        names = set(self._loaded) | set(await asyncio.to_thread(self._names))
        return [
            Offer(name, self._loaded.get(name), self._problems.get(name)) for name in sorted(names)
        ]

    async def load(self, name: str, loaded_by: str) -> Adapter:
        """Have the engine read an adapter, and offer it. Loading the same files again does nothing.

        Raises `ApiError`: `invalid_field` with what is wrong with the adapter, `not_found`,
        `quota_exceeded`, `engine_unavailable`.
        """
        await self.refresh()
        content_hash = await self._hash(name)
        known = self._loaded.get(name)
        if known is not None and known.content_hash == content_hash:
            return known
        if known is None and len(self._loaded) >= MAX_LOADED:
            raise ApiError("quota_exceeded", f"{MAX_LOADED} adapters are loaded: unload one first")
        adapter = Adapter.load(name, content_hash, loaded_by)
        try:
            await self._engine.add_lora(self._request(adapter))
        except ValidationError as error:
            problem = str(error).removeprefix("lora_request: ")
            raise invalid_field("name", self._below_folder(problem)) from None
        except (RetryableRequestError, EngineDeadError) as error:
            raise ApiError("engine_unavailable", "the engine is away; try again shortly") from error
        try:
            await self._book.put(adapter)
            logger.info("adapter loaded", name=name, content_hash=content_hash)
            await self._spread()
        finally:
            # The store failed, or another one took its place: nobody would ever remove its number.
            if self._loaded.get(name) != adapter:
                await self._release(adapter)
        return adapter

    async def unload(self, name: str) -> None:
        """Offer it no more. Answers that have it go on. Raises `ApiError`: `not_found`."""
        if not await self._book.remove(name):
            raise ApiError("not_found", "no such adapter is loaded")
        logger.info("adapter unloaded", name=name)
        await self._spread()

    async def _spread(self) -> None:
        await self.refresh()
        await self._announce()

    # ---- what the store says --------------------------------------------------------------------

    async def watch_forever(self) -> None:
        """Notice what other workers have loaded, even if their announcement was lost."""
        while True:
            try:
                await self.refresh()
            except StoreUnavailable:
                pass  # what is known stays known
            except Exception:
                logger.exception("adapters cannot be read")
            await asyncio.sleep(self._interval_seconds)

    async def refresh(self) -> None:
        """Offer what is loaded and lies here, and nothing else."""
        async with self._lock:
            loaded = await self._book.all()
            for name, known in list(self._loaded.items()):
                if loaded.get(name) != known:
                    await self._withdraw(name, known)
            signatures = await asyncio.to_thread(self._signatures, list(loaded))
            for name, adapter in loaded.items():
                if name not in self._loaded or signatures[name] != self._seen[name]:
                    self._seen[name] = signatures[name]
                    await self._offer(adapter)

    async def _withdraw(self, name: str, known: Adapter) -> None:
        del self._loaded[name], self._seen[name]
        self._problems.pop(name, None)
        self._forget(name)
        await self._release(known)

    async def _release(self, adapter: Adapter) -> None:
        """Its memory; a core that is away has none of it, and forgets it with the rest."""
        with contextlib.suppress(RetryableRequestError, EngineDeadError, ValidationError):
            await self._engine.remove_lora(adapter.number)

    async def _offer(self, adapter: Adapter) -> None:
        name = adapter.name
        self._loaded[name] = adapter
        self._forget(name)
        try:
            content_hash = await self._hash(name)
        except ApiError as error:
            self._problems[name] = error.message
            return
        if content_hash != adapter.content_hash:
            self._problems[name] = "its files are not those that were loaded"
            return
        self._problems.pop(name, None)
        self._models[name] = ServedModel(
            name,
            fingerprint(self._base.fingerprint, content_hash),
            self._base.sampling_defaults,
            self._request(adapter),
        )

    def _forget(self, name: str) -> None:
        if name not in self._taken:
            self._models.pop(name, None)

    # ---- the folder -----------------------------------------------------------------------------

    def _request(self, adapter: Adapter) -> LoRARequest:
        folder = str(self._folder / adapter.name)
        return LoRARequest(adapter.name, adapter.number, folder, adapter.content_hash)

    def _names(self) -> list[str]:
        """Of the folders that could be adapters."""
        try:
            entries = sorted(self._folder.iterdir())
        except OSError:
            return []
        folders = (entry.name for entry in entries if not entry.is_symlink() and entry.is_dir())
        return [name for name in folders if NAME.fullmatch(name)][:MAX_LISTED]

    def _signatures(self, names: Iterable[str]) -> dict[str, Signature]:
        """Cheap to compare: adapters are hashed again only when they have changed."""
        return {name: _signature(self._folder / name) for name in names}

    async def _hash(self, name: str) -> str:
        """Of the adapter's files. Raises `ApiError` for what is none."""
        if not NAME.fullmatch(name):
            raise invalid_field("name", "letters, digits, '.', '_' and '-', as folders have")
        if name in self._taken:
            raise invalid_field("name", "the model itself has this name")
        folder = self._folder / name
        if folder.is_symlink():
            raise invalid_field("name", f"{name}: is a link")
        if not folder.is_dir():
            raise ApiError("not_found", "there is no such folder in PARLEY_LORA_DIR")
        try:
            return await asyncio.to_thread(hash_adapter, folder)
        except OSError as error:
            is_link = error.errno == errno.ELOOP
            problem = f"{error.filename}: {'is a link' if is_link else error.strerror}"
            raise invalid_field("name", self._below_folder(problem)) from None

    def _below_folder(self, problem: str) -> str:
        """Where the folder itself lies is nobody's business over HTTP."""
        return problem.replace(f"{self._folder}/", "")


def _signature(folder: Path) -> Signature:
    """Empty for one that is not there."""
    try:
        found = [(folder / file).lstat() for file in ADAPTER_FILES]
    except OSError:
        return ()
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


def fingerprint(base: str, content_hash: str) -> str:
    """Of what a model with an adapter computes: an answer goes on under the same one alone."""
    return hashlib.sha256(f"{base} {content_hash}".encode()).hexdigest()[:FINGERPRINT_DIGITS]
