"""How much one client may ask for: limits, rates, and a few places at a time."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import structlog

from server.config.limits import Limits
from server.protocol.errors import ApiError
from server.protocol.objects import RateLimit
from sessions.model.quotas import Budget

logger = structlog.get_logger("server")

MAX_OWNERS = 10_000
BURST_SECONDS = 2  # a bucket holds what two seconds bring
PLACE_RETRY_MS = 2000  # for one who finds no place
REFUSED_SECONDS = 60.0  # so long refused connections are counted; each time one line is logged


class TokenBucket:
    """Holds `2 * rate` tokens and gains `rate` per second; rate 0 never refuses."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.burst = int(rate * BURST_SECONDS)
        self._tokens = float(self.burst)
        self._at = time.monotonic()

    @property
    def retry_after_ms(self) -> int:
        """When the next token will be there; never a moment too early."""
        return int((1 - self._tokens) / self.rate * 1000) + 1 if self.rate else 0

    def entry(self) -> RateLimit:
        """What is left, as `rate_limits.updated` says it."""
        return RateLimit(
            name="messages",
            limit=self.burst,
            remaining=int(self._tokens),
            reset_seconds=round((self.burst - self._tokens) / self.rate, 3),
        )

    def take(self) -> bool:
        if not self.rate:
            return True
        now = time.monotonic()
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class TokenBuckets:
    """A bucket for each owner, all of one rate. Too many owners are all forgotten."""

    def __init__(self, rate: float) -> None:
        self.rate = rate  # of buckets that are made from now on
        self._buckets: dict[str, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, owner: str) -> TokenBucket:
        if len(self._buckets) >= MAX_OWNERS:
            self._buckets.clear()  # bounds memory; at worst owners get a fresh burst
        return self._buckets.setdefault(owner, TokenBucket(self.rate))

    def check(self, owner: str) -> None:
        """Count a request of the owner. Raises `ApiError` `rate_limited`."""
        bucket = self.of(owner)
        if not bucket.take():
            raise ApiError(
                "rate_limited", "too many requests", retry_after_ms=bucket.retry_after_ms
            )


def budget_entry(budget: Budget) -> RateLimit:
    """What is left of a user's tokens, as `rate_limits.updated` says it."""
    return RateLimit(
        name="tokens",
        limit=budget.limit,
        remaining=budget.remaining,
        reset_seconds=budget.reset_ms / 1000,
    )


# What OpenAI's clients call what we count; they know no other limits.
_COUNTED = {"messages": "requests", "tokens": "tokens"}


def limit_headers(entries: Iterable[RateLimit]) -> list[tuple[bytes, bytes]]:
    """`x-ratelimit-…` of each, as OpenAI's clients read them."""
    found: list[tuple[bytes, bytes]] = []
    for entry in entries:
        values = {
            "limit": str(entry.limit),
            "remaining": str(entry.remaining),
            "reset": _duration(entry.reset_seconds),
        }
        for name, value in values.items():
            header = f"x-ratelimit-{name}-{_COUNTED[entry.name]}"
            found.append((header.encode(), value.encode()))
    return found


def budget_headers(budget: Budget | None) -> list[tuple[bytes, bytes]]:
    """Of a user's tokens; none where they are not counted."""
    return [] if budget is None else limit_headers([budget_entry(budget)])


def _duration(seconds: float) -> str:
    """As OpenAI writes it: `7h12m30s`, `1.5s`, `20ms`."""
    if 0 < seconds < 1:
        return f"{max(1, round(seconds * 1000))}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    hours, minutes = divmod(int(minutes), 60)
    longer = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{longer}{rest:.3f}".rstrip("0").rstrip(".") + "s"


class Places:
    """How many may do something at once on this worker: of one owner, and in all.

    `what` names them in the text of a refusal.
    """

    def __init__(self, what: str, *, per_owner: int, in_all: int) -> None:
        self._what = what
        self._per_owner = per_owner
        self._in_all = in_all
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def one(self, owner: str) -> Iterator[None]:
        """Have a place for as long as the context lasts.

        Raises `ApiError`: `rate_limited` for an owner who has as many as one may have, `queue_full`
        when there is none for anybody.
        """
        if self._taken[owner] >= self._per_owner:
            message = f"only {self._per_owner} {self._what} of yours at once"
            raise ApiError("rate_limited", message, retry_after_ms=PLACE_RETRY_MS)
        if self._taken.total() >= self._in_all:
            message = f"too many {self._what} at once"
            raise ApiError("queue_full", message, retry_after_ms=PLACE_RETRY_MS)
        self._taken[owner] += 1
        try:
            yield
        finally:
            self._taken[owner] -= 1
            if not self._taken[owner]:
                del self._taken[owner]


@dataclass(slots=True)
class ConnectionCounter:
    """Open connections by user and by address, and handshakes by address, of one worker.

    And those of an address that were refused of late.
    """

    limits: Limits
    users: Counter[str] = field(default_factory=Counter)
    addresses: Counter[str] = field(default_factory=Counter)
    handshakes: TokenBuckets = field(init=False)
    num_open: int = 0
    _refused: Counter[str] = field(default_factory=Counter)
    _refused_since: float = float("-inf")

    def __post_init__(self) -> None:
        self.handshakes = TokenBuckets(self.limits.max_handshakes_per_s)

    def allow_handshake(self, address: str) -> bool:
        if not self.limits.max_handshakes_per_s or self.handshakes.of(address).take():
            return True
        self._note_refused("max_handshakes_per_s", address)
        return False

    def enter(self, uid: str, address: str) -> bool:
        """Count a connection; False, and not counted as one, beyond a limit. Pair with `leave`."""
        for limit, count in (
            ("max_connections", self.num_open),
            ("max_connections_per_user", self.users[uid]),
            ("max_connections_per_address", self.addresses[address]),
        ):
            if 0 < getattr(self.limits, limit) <= count:
                self._note_refused(limit, address, uid)
                return False
        self.num_open += 1
        self.users[uid] += 1
        self.addresses[address] += 1
        return True

    def refused(self) -> Counter[str]:
        """Connections of the present minute that were refused, by address."""
        self._forget_refused()
        return self._refused

    def _note_refused(self, limit: str, address: str, uid: str = "") -> None:
        """Log once a minute who floods: a log is no place for each refusal."""
        if self._forget_refused():
            self._refused_since = time.monotonic()
            named = {"user": uid} if uid else {}
            setting = f"PARLEY_{limit.upper()}"
            logger.warning("connections are refused", limit=setting, address=address, **named)
        if address in self._refused or len(self._refused) < MAX_OWNERS:
            self._refused[address] += 1

    def _forget_refused(self) -> bool:
        """Whether the last minute with a refusal is over."""
        is_over = time.monotonic() - self._refused_since >= REFUSED_SECONDS
        if is_over:
            self._refused.clear()
        return is_over

    def leave(self, uid: str, address: str) -> None:
        self.num_open -= 1
        for counter, name in ((self.users, uid), (self.addresses, address)):
            counter[name] -= 1
            if counter[name] <= 0:
                del counter[name]
