"""`FarCheck`: whether a core on another machine writes what one of this machine would.

Answers go on there in the middle, bit for bit. So Parley's version, the model's files and the
settings that change its numbers must be the same, and stay the same from one core to the next.
"""

from pathlib import Path

from engine.client.far.connection import FarCoreConnection
from engine.config import CoreIdentity
from engine.ipc import Ready
from server import __version__
from server.engines.native.far.options import FarOptions
from server.engines.native.fingerprint import model_fingerprint, texts_fingerprint


def identity_of(folder: Path) -> CoreIdentity:
    """Of a core with the model in this folder."""
    return CoreIdentity(
        version=__version__, model=model_fingerprint(folder), texts=texts_fingerprint(folder)
    )


class FarCheck:
    """Called with what each core at an address says of itself; a text says why it is refused."""

    def __init__(self, options: FarOptions) -> None:
        self._options = options
        self._computes: tuple[object, ...] | None = None  # how the first core did

    def __call__(self, ready: Ready) -> str | None:
        theirs, ours, config = ready.config.identity, self._options.identity, ready.config
        if theirs is None:
            return "it was not started by `parley core`"
        if theirs.version != ours.version:
            return f"it is Parley {theirs.version}, and this server {ours.version}"
        if theirs.texts != ours.texts:
            return (
                f"its model is another one: tokenizer and configuration are {theirs.texts} there"
                f" and {ours.texts} here"
            )
        if self._options.has_weights and theirs.model != ours.model:
            return f"its model has other weights: {theirs.model} there and {ours.model} here"
        settings = (
            ("quantize", config.quantization, self._options.quantize),
            ("kv_cache_dtype", config.kv_cache_dtype, self._options.kv_cache_dtype),
            ("dtype", config.dtype, self._options.dtype),
        )
        for name, there, here in settings:
            if there != here:
                return f"its setting {name} is {there or 'none'}, and here {here or 'none'}"
        computes = (theirs.model, ready.computes)
        if self._computes not in (None, computes):
            return "it computes otherwise than before: remove this engine and add it again"
        self._computes = computes
        return None


def open_link(address: str, options: FarOptions) -> FarCoreConnection:
    """The way to a core, at which it looks whenever one is joined."""
    return FarCoreConnection(address, Path(options.keys), check=FarCheck(options))
