"""An `ApiError` as an HTTP response."""

import orjson
from starlette.responses import Response

from server.protocol.errors import ApiError


def error_response(error: ApiError) -> Response:
    """The error object as an HTTP answer."""
    headers = {"Cache-Control": "no-store"}
    if error.retry_after_ms is not None:
        headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(
        orjson.dumps({"error": error.body()}),
        status_code=error.http_status,
        headers=headers,
        media_type="application/json",
    )
