"""On top of `AsyncLLM`: tasks and the request manager."""
