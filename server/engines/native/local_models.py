"""The models that lie on this machine and can be served by name, as the engine lists them."""

from engine.folder.caches.listing import list_models
from engine.folder.caches.local_model import LocalModel

__all__ = ["LocalModel", "list_models"]
