"""The engine for programs without an event loop: `LLM` and `LLMEngine`, over `AsyncLLM`."""
