"""`FarOptions`: what a worker must know of a core on another machine, besides its address."""

import msgspec

from engine.config import CoreIdentity


class FarOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor passes it on as builtins."""

    keys: str  # the folder
    identity: CoreIdentity  # of the model's folder here
    has_weights: bool  # else the folder here says nothing of them
    quantize: str | None = None  # as this server's own cores would have it
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
