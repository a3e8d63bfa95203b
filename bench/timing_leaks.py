"""`python -m bench.timing_leaks`: what the time of a refusal reveals about the request.

Two kinds of requests take turns at random, and the figure is how often the slower one of a pair
gives away the kinds: 50 % of the time by chance, and no more if time reveals nothing. (It is the
area under the ROC curve: Hanley and McNeil, Radiology 143, 1982.)
"""

import argparse
import asyncio
import http.client
import random
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from rich.progress import track

from bench.harness.report import Figure, report
from bench.harness.servers import running_server, user_tokens
from tests.end_to_end.site.harness import Server

MARGIN = 3.0  # standard errors of the figure itself, if time reveals nothing
Request = tuple[str, str]  # path and token


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.timing_leaks", description=__doc__)
    parser.add_argument("--tokens", type=int, default=20_000, help="timings of wrong tokens")
    parser.add_argument("--ids", type=int, default=2_000, help="timings of foreign ids")
    arguments = parser.parse_args()
    with running_server(PARLEY_MAX_HANDSHAKES_PER_S="0", PARLEY_MAX_MESSAGES_PER_S="0") as server:
        figures = [
            compare(
                server,
                "a token that differs in its last character from one that differs in its first",
                lambda: ("/v1/sessions", changed(server.token, -1)),
                lambda: ("/v1/sessions", changed(server.token, 0)),
                401,
                arguments.tokens,
            )
        ]
        (other,) = asyncio.run(user_tokens(server, 1))
        foreign = [new_session(server, other) for _ in range(100)]
        figures += [compare_ids(server, foreign, what, arguments.ids) for what in ("", "/messages")]
    report("timing_leaks", figures)


def compare_ids(server: Server, foreign: Sequence[str], what: str, count: int) -> Figure:
    return compare(
        server,
        f"another user's session{what} from one that does not exist",
        lambda: (f"/v1/sessions/{random.choice(foreign)}{what}", server.token),
        lambda: (f"/v1/sessions/{changed(random.choice(foreign), -2)}{what}", server.token),
        404,
        count,
    )


def compare(
    server: Server,
    what: str,
    first: Callable[[], Request],
    second: Callable[[], Request],
    status: int,
    count: int,
) -> Figure:
    """Time both kinds, in random order, on one connection."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port)
    seconds: tuple[list[float], list[float]] = [], []
    order = [0, 1] * (count // 2)
    random.shuffle(order)
    for kind in track(order, what, transient=True):
        path, token = (first, second)[kind]()
        started = time.perf_counter()
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
        seconds[kind].append(time.perf_counter() - started)
        assert answer.status == status, (path, answer.status)
    connection.close()
    share = share_of_greater(*seconds)
    error = (1 / 12 * (1 / len(seconds[0]) + 1 / len(seconds[1]))) ** 0.5
    at_most = 50 + MARGIN * error * 100
    return Figure(f"tells {what}", max(share, 1 - share) * 100, at_most, "% of pairs")


def share_of_greater(first: Sequence[float], second: Sequence[float]) -> float:
    """In what share of all pairs the one of `first` is greater."""
    ranked = sorted([(value, 0) for value in first] + [(value, 1) for value in second])
    smaller = greater = 0.0
    for _, kind in ranked:  # ties of a clock in nanoseconds are too few to matter
        if kind:
            smaller += 1
        else:
            greater += smaller
    return greater / (len(first) * len(second))


def changed(text: str, place: int) -> str:
    """The same, but for one character."""
    place %= len(text)
    letter = random.choice([c for c in "ABCDEFGHIJKLMNOP" if c != text[place]])
    return text[:place] + letter + text[place + 1 :]


def new_session(server: Server, token: str) -> str:
    """A session of that user."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port)
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Idempotency-Key": random.randbytes(8).hex(),
    }
    connection.request("POST", "/v1/sessions", "{}", headers)
    location = connection.getresponse().headers["Location"]
    connection.close()
    return str(location).rsplit("/", 1)[1]


if __name__ == "__main__":
    main()
