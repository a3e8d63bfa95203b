"""`ApiError`: every refusal a client can be given, with its stable code, on every door."""

from typing import Any

# code → (type, HTTP status). The codes are part of the protocol and never change their meaning.
CODES: dict[str, tuple[str, int]] = {
    "unknown_type": ("invalid_request_error", 400),
    "invalid_json": ("invalid_request_error", 400),
    "invalid_field": ("invalid_request_error", 400),
    "message_too_large": ("invalid_request_error", 413),
    "idempotency_key_required": ("invalid_request_error", 400),
    "output_format_refused": ("invalid_request_error", 400),
    "tools_not_supported": ("invalid_request_error", 400),
    "thinking_not_supported": ("invalid_request_error", 400),
    "call_outputs_missing": ("invalid_request_error", 400),
    "tools_too_large": ("invalid_request_error", 400),
    "context_length_exceeded": ("invalid_request_error", 400),
    "too_many_subscriptions": ("invalid_request_error", 400),
    "not_subscribed": ("invalid_request_error", 400),
    "method_not_allowed": ("invalid_request_error", 405),
    "request_timeout": ("invalid_request_error", 408),
    "payload_too_large": ("invalid_request_error", 413),
    "unsupported_media_type": ("invalid_request_error", 415),
    "token_invalid": ("authentication_error", 401),
    "token_expired": ("authentication_error", 401),
    "forbidden": ("permission_error", 403),
    "session_locked": ("permission_error", 403),
    "not_found": ("not_found_error", 404),
    "session_not_found": ("not_found_error", 404),
    "message_not_found": ("not_found_error", 404),
    "response_not_found": ("not_found_error", 404),
    "call_not_found": ("not_found_error", 404),
    "tool_not_found": ("not_found_error", 404),
    "item_not_found": ("not_found_error", 404),
    "model_not_found": ("not_found_error", 404),
    "response_in_progress": ("conflict_error", 409),
    "idempotency_key_reused": ("conflict_error", 409),
    "consent_settled": ("conflict_error", 409),
    "revision_conflict": ("conflict_error", 409),
    "engine_refused": ("conflict_error", 409),
    "rate_limited": ("rate_limit_error", 429),
    "quota_exceeded": ("quota_error", 429),
    "queue_full": ("overloaded_error", 503),
    "model_unavailable": ("overloaded_error", 503),
    "engine_unavailable": ("overloaded_error", 503),
    "tool_server_unavailable": ("overloaded_error", 503),
    "store_unavailable": ("overloaded_error", 503),
    "draining": ("overloaded_error", 503),
    "slow_consumer": ("overloaded_error", 503),
    "internal": ("server_error", 500),
}
DEFAULT_RETRY_AFTER_MS = 1000


class ApiError(Exception):
    """A refusal: `code` is for programs, `message` for people; never with user text."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
        quota: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.param = param
        self.quota = quota  # the one that has refused
        self.type, self.http_status = CODES[code]
        if retry_after_ms is None and self.type == "overloaded_error":
            retry_after_ms = DEFAULT_RETRY_AFTER_MS
        self.retry_after_ms = retry_after_ms

    def body(self, event_id: str | None = None) -> dict[str, Any]:
        """The error object of the protocol, without the fields that are not set."""
        fields = {
            "type": self.type,
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "quota": self.quota,
            "event_id": event_id,
            "retry_after_ms": self.retry_after_ms,
        }
        return {key: value for key, value in fields.items() if value is not None}


def invalid_field(param: str, message: str) -> ApiError:
    return ApiError("invalid_field", message, param=param)
