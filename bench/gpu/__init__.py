"""The engine on a GPU: `python -m bench.gpu`."""
