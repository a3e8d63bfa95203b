"""How the chat speaks: ends, errors, waits and closes in plain words, as the page says them.

Codes of the protocol never reach the reader; what has no words here is said as the server says it.
"""

import math
from typing import Any

from server.terminal.text import printable

# The ends of an answer that the reader did not ask for.
REASONS = {
    "stop": "finished",
    "eos": "finished",
    "tool_calls": "called a tool",
    "client_cancelled": "stopped by you",
    "admin_cancelled": "stopped by an administrator",
    "superseded": "stopped by a newer question",
    "steered": "goes on with your next message",
    "no_viewers": "stopped, nobody was watching",
    "session_deleted": "stopped, the chat was deleted",
    "max_output_tokens": "cut short: it reached the length limit, /continue goes on",
    "repetition": "cut short: it began to repeat itself",
    "deadline": "cut short: it ran out of time, /continue goes on",
    "quota": "cut short: your quota is used up",
    "server_shutdown": "cut short: the server shut down, /continue goes on",
    "owner_lost": "cut short: the server process was lost, /continue goes on",
    "engine_lost": "cut short: its engine was lost, and cannot go on in the middle",
    "content_filter": "cut short: withheld by a filter",
    "engine_error": "failed: the model failed, /again asks it once more",
    "output_format_refused": "failed: the form that was asked for cannot be had",
    "tools_not_supported": "failed: this model takes no tools",
    "thinking_not_supported": "failed: the thoughts of this model cannot be bounded",
    "model_unavailable": "failed: the model could not be loaded, /again asks once more",
    "store_lost": "failed: the storage lost this chat",
}

STATUSES = {
    "completed": "finished",
    "cancelled": "stopped",
    "interrupted": "stopped",
    "incomplete": "cut short",
    "failed": "failed",
}

# `{wait}` becomes the time that the server asks for, `{message}` its own words.
ERRORS = {
    "invalid_json": "The server could not read that.",
    "unknown_type": "This program and the server are of different versions.",
    "invalid_field": "The server refused that: {message}.",
    "output_format_refused": "The form that was asked for cannot be had: {message}.",
    "call_not_found": "That call is not there any more.",
    "consent_settled": "That call was answered meanwhile.",
    "tools_not_supported": "This model takes no tools.",
    "tool_not_found": "A tool of this chat is not there any more: {message}.",
    "tool_server_unavailable": "A tool of this chat cannot be had now: {message}.",
    "tools_too_large": "This chat has too many tools.",
    "message_too_large": "That message is too long. Shorten it and send it again.",
    "context_length_exceeded": "That message does not fit the model's memory. Shorten it.",
    "token_invalid": "The token is not valid any more.",
    "token_expired": "The token has expired.",
    "forbidden": "You may not do that here.",
    "session_locked": "An administrator locked this chat. /new starts another one.",
    "session_not_found": "There is no such chat.",
    "message_not_found": "That message no longer exists.",
    "response_not_found": "That answer is already over.",
    "item_not_found": "That message does not wait any more.",
    "model_not_found": "The server does not have that model.",
    "response_in_progress": "An answer is still being written.",
    "idempotency_key_reused": "That message was already sent.",
    "revision_conflict": "Somebody else changed this chat. Try again.",
    "rate_limited": "That was too fast. Send it again {wait}.",
    "quota_exceeded": "Your quota is used up. Send it again {wait}.",
    "queue_full": "Too many messages wait already. Send it again {wait}.",
    "model_unavailable": "The model cannot be loaded: {message}.",
    "engine_unavailable": "The model is restarting. Send it again {wait}.",
    "store_unavailable": "The server cannot save right now. Send it again {wait}.",
    "draining": "The server is restarting. Send it again {wait}.",
    "internal": "Something broke on the server. Send it again.",
}

WAITS = {
    "engine": "Waiting in line",
    "session": "Waiting for the answer before",
    "engine_waking": "The model wakes up",
    "engine_restart": "The model restarts, then the answer goes on",
    "takeover": "Another server process takes over, then the answer goes on",
    "model_loading": "The model is being loaded",
}

CLOSES = {
    1009: "The message was too big for the server.",
    4401: "The token is not valid any more: it was revoked, or has expired.",
    4403: "You may not connect to this server.",
    4406: "This program and the server are of different versions.",
}

TROUBLES = {
    "store": "The storage is away: running answers go on, nothing new can be sent yet",
    "unavailable": "The model is restarting; the answer goes on after that",
    "stalled": "The model is slow to answer",
}

TOOL_STATES = {
    "awaiting_consent": "waits for your word: /allow, /allow always, or /deny",
    "in_progress": "runs",
    "completed": "done",
    "failed": "failed",
    "denied": "not allowed",
    "cancelled": "stopped",
    "unknown": "nobody knows how it ended",
}


def end_text(status: str, reason: str | None, message: str | None = None) -> str:
    """How an answer has ended."""
    text = REASONS.get(reason or "", STATUSES.get(status, "ended"))
    return f"{text} ({message})" if message else text


def error_text(error: dict[str, Any]) -> str:
    """What a refusal says to the reader, and when to try again."""
    seconds = math.ceil(error.get("retry_after_ms", 0) / 1000)
    message = printable(str(error.get("message", ""))).rstrip(".")
    text = ERRORS.get(str(error.get("code"))) or f"{message[:1].upper()}{message[1:]}."
    return text.replace("{wait}", f"in {seconds} s" if seconds else "now").replace(
        "{message}", message
    )


def wait_text(queued: dict[str, Any]) -> str:
    """What a `response.queued` says."""
    text = WAITS.get(queued["reason"], "Waiting")
    if queued["reason"] == "engine" and (position := queued.get("position", 0)) > 0:
        text += f", {position} ahead"
    if (progress := queued.get("progress", 0)) > 0:
        text += f", {round(progress * 100)} %"
    if (eta := queued.get("eta_ms", 0)) > 0:
        text += f", about {math.ceil(eta / 1000)} s"
    return text


def trouble_text(degraded: dict[str, str]) -> str:
    """What a `connection.degraded` says; empty when all is well."""
    if "store" in degraded:
        return TROUBLES["store"]
    return TROUBLES.get(degraded.get("engine", ""), "")


def close_text(code: int) -> str:
    return CLOSES.get(code, "The server closed the connection for good.")


def figures_text(usage: dict[str, Any] | None, timings: dict[str, Any] | None) -> list[str]:
    """Tokens, their rate, and how long the first one took."""
    words = []
    if count := (usage or {}).get("output_tokens"):
        words.append(f"{count:,} {'token' if count == 1 else 'tokens'}")
    if rate := (timings or {}).get("tokens_per_s"):
        words.append(f"{rate:,.0f} tokens/s" if rate >= 10 else f"{rate:.1f} tokens/s")
    if first := (timings or {}).get("ttft_ms"):
        words.append(f"first token after {first / 1000:.1f} s")
    return words
