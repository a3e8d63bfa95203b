from tests.engine.helpers.gguf.fixtures import cache, checkpoint

__all__ = ["cache", "checkpoint"]
