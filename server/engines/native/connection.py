"""How a worker joins the core."""

from collections.abc import Callable

from engine import AsyncLLM, CoreState
from server.engines.client import EngineClient


def connect(
    address: str,
    *,
    folder: str,
    name: str,
    max_num_queued_reqs: int | None,
    on_core_state: Callable[[CoreState, str], None],
) -> EngineClient:
    """Join the core, which may not be there yet. Raises `UnsupportedModelError`."""
    return AsyncLLM.connect(
        address,
        model=folder,
        served_model_name=name,
        max_num_queued_reqs=max_num_queued_reqs,
        on_core_state=on_core_state,
    )
