"""What an embedding request is made of, before its prompt has ids: its state, and its stream."""

from typing import Any

from engine.client.requests.collector import RequestOutputCollector
from engine.client.requests.inputs import ParsedPrompt, check_order, check_request_id
from engine.client.requests.request_state import PoolingState, ProgressCallback
from engine.errors import refuse
from engine.pooling import PoolingParams
from engine.sampling_params import RequestOutputKind


def open_embedding(
    request_id: Any,
    parsed: ParsedPrompt,
    params: PoolingParams,
    *,
    arrival_time: float | None = None,
    on_progress: ProgressCallback | None = None,
    reasoning_ended: bool | None = None,
) -> tuple[PoolingState, RequestOutputCollector]:
    """The stream has one `PoolingRequestOutput`. `ValidationError` for wrong arguments.

    `reasoning_ended` is vLLM's, and without effect.
    """
    check_request_id(request_id)
    arrival_time = parsed.arrival_time if arrival_time is None else arrival_time
    check_order(0, arrival_time)
    if on_progress is not None and not callable(on_progress):
        raise refuse("on_progress", on_progress, "must be a function")
    if not isinstance(params, PoolingParams):
        raise refuse("pooling_params", params, "must be PoolingParams")
    stream = RequestOutputCollector(RequestOutputKind.FINAL_ONLY, request_id)
    state = PoolingState(
        request_id,
        params.clone(),
        stream,
        prompt=parsed.text,
        arrival_time=arrival_time,
        on_progress=on_progress,
    )
    return state, stream
