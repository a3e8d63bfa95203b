"""The core half of the engine (`python -m engine.core`): the loop."""
