from tests.engine.helpers.gguf.cache_folders import home, tiny, tiny_gguf, tiny_parts

__all__ = ["home", "tiny", "tiny_gguf", "tiny_parts"]
