"""One web process (`python -m server.worker`): wiring, orders, uvicorn's protocols."""
