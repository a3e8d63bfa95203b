"""Samples of workers, as tests of figures store them."""

from typing import Any

from server.telemetry.stats import Sample


def sample(replica: str, host: str = "h1", **rest: Any) -> Sample:
    now = {"connections": 2.0, "batch_size": 4.0, "kv_usage": 0.5}
    return Sample(at=1, replica=replica, host=host, seconds=10.0, now=now, **rest)
