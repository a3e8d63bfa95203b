"""The folders of keys, as the engine reads them."""

from engine.far.keys import KeysError, make_keys, trust

__all__ = ["KeysError", "make_keys", "trust"]
