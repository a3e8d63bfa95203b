"""What an operator allows one worker, one user and one address."""

from dataclasses import dataclass, field

from sessions.model.quotas import Quotas

MIN_SECRET_CHARACTERS = 24  # of every secret that lets somebody in, an operator's own included


@dataclass(frozen=True, slots=True)
class Limits:
    """0 means unlimited."""

    max_connections: int = 0  # of one worker
    max_connections_per_user: int = 0
    max_connections_per_address: int = 0
    max_handshakes_per_s: int = 0
    max_active_responses_per_user: int = 0
    messages_per_s: int = 20
    max_subscriptions: int = 64
    quotas: Quotas = field(default_factory=Quotas)
    session_idle_seconds: float = 0.0  # 0 keeps unused sessions for ever
    stored_response_seconds: float = 30 * 86_400.0  # those that a door makes for itself
    answer_seconds: float = 0.0  # that an answer may be written
