"""How a worker joins the core."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine import AsyncLLM, CoreState
from server.engines.client import EngineClient

if TYPE_CHECKING:
    from server.engines.tracing import Tracing


def connect(
    address: str,
    *,
    folder: str,
    name: str,
    max_num_queued_reqs: int | None,
    on_core_state: Callable[[CoreState, str], None],
    tracing: "Tracing | None" = None,
) -> EngineClient:
    """Join the core, which may not be there yet. Raises `UnsupportedModelError`."""
    return AsyncLLM.connect(
        address,
        model=folder,
        served_model_name=name,
        max_num_queued_reqs=max_num_queued_reqs,
        on_core_state=on_core_state,
        tracing=tracing,
    )
