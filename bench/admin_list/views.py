"""What the console asks for: each view by its name, as the path of its next request."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from bench.admin_list.filling import GIVEN, WORKERS, Filling

PAGE = 50
ORDERS = ("age", "-age", "tokens", "-rate", "user", "model", "worker", "state")
RANGES = ("15m", "24h", "7d", "30d")

View = Callable[[Mapping[str, Any]], str]  # the answer before → the next path


def views_of(filling: Filling) -> dict[str, View]:
    user, group = filling.busy_user, filling.groups[0]
    session, response = next(iter(filling.live.items()))
    live: dict[str, View] = {
        f"{len(filling.live):,} live, by {order}": listed(active="true", order=order)
        for order in ORDERS
    }
    return {
        "sessions": listed(),
        "sessions, following pages": paged("sessions"),
        "sessions, the longest unused first": listed(order="-age"),
        "sessions of a user": listed(user=user),
        "sessions of a model": listed(model="parley-demo"),
        "sessions of a model that none has": listed(model="other"),
        **live,
        "live, following pages": paged("sessions", active="true", order="-tokens"),
        "live of a user": listed(active="true", user=user),
        "live of a model": listed(active="true", model="parley-demo"),
        "live on a worker": listed(replica=WORKERS[0]),
        "found by session id": listed(find=session),
        "found by response id": listed(find=response),
        "found by user id": listed(find=user),
        "found by a part of a name": by_turns(*({"find": name} for name in GIVEN)),
        "found by the name of one": listed(find=f" {len(filling.users) - 1}"),
        "a name that nobody has": listed(find="zephyr"),
        "found by a part of a title": by_turns(*({"title": f"number {n}"} for n in range(1, 10))),
        "a title that none has": listed(title="zephyr"),
        "a session": path(f"sessions/{session}"),
        "a response": path(f"responses/{response}"),
        "users": path("users", limit=PAGE),
        "users, following pages": paged("users"),
        "a user": path(f"users/{user}"),
        "a user's storage": path(f"users/{user}/storage"),
        "quotas": path("quotas", limit=PAGE),
        "groups": path("groups", limit=PAGE),
        "members of a group": path(f"groups/{group}/members", limit=PAGE),
        "audit": path("audit", limit=PAGE),
        "audit, an action that nobody did": path("audit", limit=PAGE, action="user.*"),
        "share links": path("shares", limit=PAGE),
        "the notice": path("notice"),
        "settings": path("settings"),
        "workers": path("replicas"),
        "engines": path("engines"),
        "models": path("models"),
        "health": path("health"),
        **{f"figures of {span}": path("stats", range=span) for span in RANGES},
    }


def path(name: str, **query: str | int) -> View:
    return lambda _: f"/v1/admin/{name}?{urlencode(query)}"


def listed(**query: str) -> View:
    return path("sessions", limit=PAGE, **query)


def by_turns(*queries: Mapping[str, str]) -> View:
    turns = itertools.cycle(queries)
    return lambda answer: listed(**next(turns))(answer)


def paged(name: str, **query: str) -> View:
    """The pages of a list one after the other, and from the last one to the first."""

    def next_page(answer: Mapping[str, Any]) -> str:
        cursor = answer.get("next_cursor")
        more = {} if cursor is None else {"cursor": cursor}
        return path(name, limit=PAGE, **query, **more)(answer)

    return next_page
