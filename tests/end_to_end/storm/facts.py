"""What engines say that they did, and whether what Parley said of its answers was the truth."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.oracle.connection_check import Connection, response_of

HEARD_SECONDS = 1.0  # after its end was sent, for an engine to say no more
CLOCK_SECONDS = 0.1  # between the clocks of Redis and of engines, on one machine
LEAD_SECONDS = 30.0  # that a fault of an engine may be felt later: by then it counts as dead


@dataclass
class Asked:
    """What one engine was asked for an answer, once."""

    engine: str
    pid: int
    question: list[int]
    began_at: float
    ended_at: float | None = None
    num_tokens: int = 0
    last_at: float = 0.0  # of its tokens
    faults: list[str] = field(default_factory=list)


class EngineFacts:
    """Reads the file that all engines of a storm write to, as far as it goes."""

    def __init__(self, file: Path) -> None:
        self.asked: list[Asked] = []
        self.faults: list[tuple[float, str]] = []  # of late, of engines and of single answers
        self.happened: Counter[str] = Counter()  # all of them
        self._file = file
        self._place = 0
        self._open: dict[tuple[int, int], Asked] = {}  # by process and number

    def read(self) -> None:
        content = self._file.read_bytes() if self._file.exists() else b""
        end = content.rfind(b"\n") + 1
        for line in content[self._place : end].splitlines():
            self.take(json.loads(line))
        self._place = end

    def forget(self) -> None:
        """What was before this round, but for what may be felt in the next."""
        self.asked = list(self._open.values())
        late = time.monotonic() - LEAD_SECONDS
        self.faults = [(at, name) for at, name in self.faults if at > late]

    def fault(self, at: float, name: str) -> None:
        self.faults.append((at, name))
        self.happened[name] += 1

    def take(self, fact: Mapping[str, Any]) -> None:
        about = fact["pid"], fact.get("request", 0)
        match fact["what"]:
            case "begin":
                asked = Asked(fact["engine"], fact["pid"], fact["question"], fact["at"])
                self._open[about] = asked
                self.asked.append(asked)
            case "first token":
                self._open[about].num_tokens = 1
            case "end":
                asked = self._open.pop(about)
                asked.ended_at = fact["at"]
                asked.num_tokens, asked.last_at = fact["num_tokens"], fact["last_at"]
            case "fault":
                self.fault(fact["at"], fact["name"])
                if about in self._open:
                    self._open[about].faults.append(fact["name"])

    def odd(self, words: Collection[int]) -> Iterator[str]:
        """Prompts that are no question of these words and the beginning of its answer."""
        for asked in self.asked:
            if not set(asked.question) <= set(words):
                yield f"I13 {asked.engine} was asked to go on after {asked.question}"

    def died(self, pid: int) -> None:
        """What it had is over."""
        self.read()
        for about in [about for about in self._open if about[0] == pid]:
            del self._open[about]

    def open_at(self, pids: Iterable[int]) -> list[Asked]:
        """What these processes have to do."""
        wanted = set(pids)
        return [asked for (pid, _), asked in self._open.items() if pid in wanted]


@dataclass
class Claim:
    """What clients were sent of an answer that has ended."""

    response_id: str
    word: int
    created_at: float
    done_at: float
    done: Frame
    exactness: set[str] = field(default_factory=set)  # in all frames that say it

    @property
    def reason(self) -> str:
        return str(self.done["response"]["status_details"]["reason"])

    @property
    def num_takeovers(self) -> int:
        return int(self.done["fence"]) - 1

    @property
    def begun_at(self) -> float:
        """When its worker began it, by this machine's monotonic clock; 0.0 if that is not said."""
        created_ms = self.done["response"].get("created_at")
        return created_ms / 1000 - time.time() + time.monotonic() if created_ms else 0.0

    @property
    def restarts(self) -> int:
        return int(self.done["response"].get("restarts", 0))


def claims_of(connections: Iterable[Connection], words: Mapping[str, int]) -> list[Claim]:
    """Of the answers to these words, by response id."""
    first: dict[str, float] = {}
    exactness: dict[str, set[str]] = defaultdict(set)
    done: dict[str, tuple[float, Frame]] = {}
    for connection in connections:
        for record in connection.records:
            response_id = response_of(record.frame)
            if record.is_request or response_id is None or response_id not in words:
                continue
            first[response_id] = min(record.time, first.get(response_id, record.time))
            frame = record.frame
            if isinstance(frame.get("response"), dict) and "status" in frame["response"]:
                exactness[response_id].add(frame["response"].get("exactness", "exact"))
            if frame["type"] == "response.done" and frame["durable"]:
                known = done.get(response_id, (record.time, frame))
                done[response_id] = min(known, (record.time, frame), key=lambda each: each[0])
    return [
        Claim(response_id, words[response_id], first[response_id], *end, exactness[response_id])
        for response_id, end in done.items()
    ]


def violations(claims: Iterable[Claim], facts: EngineFacts | None, rung: str) -> Iterator[str]:
    """I12 of docs/reliability.md, of answers of engines on this rung."""
    claims = list(claims)
    questions = Counter(claim.word for claim in claims)
    by_word: dict[int, list[Asked]] = defaultdict(list)
    for asked in facts.asked if facts is not None else ():
        by_word[asked.question[-1]].append(asked)
    for claim in claims:
        if claim.exactness - {rung}:
            yield f"I12 {claim.response_id} is {claim.exactness}, and its engines are {rung}"
        if claim.restarts < claim.num_takeovers:
            yield (
                f"I12 {claim.response_id} reports {claim.restarts} restarts after"
                f" {claim.num_takeovers} takeovers"
            )
        if claim.reason == "engine_lost":
            yield f"I12 {claim.response_id} ended as engine_lost, and could go on"
        if facts is not None:
            num_askers = questions[claim.word]
            yield from _of_one(claim, facts, by_word[claim.word], is_alone=num_askers == 1)


def _of_one(
    claim: Claim, facts: EngineFacts, asked: list[Asked], *, is_alone: bool
) -> Iterator[str]:
    since, most = claim.created_at - LEAD_SECONDS, claim.num_takeovers
    if claim.done["engine"] == "released":
        # Not of what another answer to the same words had asked for before; and after a takeover
        # of what the last owner has.
        begun = claim.begun_at - CLOCK_SECONDS
        last = max((one.began_at for one in asked if one.began_at < claim.done_at), default=0.0)
        for one in asked:
            if one.began_at < (last if most else begun):
                continue
            if one.began_at < claim.done_at < one.last_at - HEARD_SECONDS:
                yield f"I12 {claim.response_id} is said to be released, and {one} goes on"
    num_faults = sum(since < at < claim.done_at for at, _ in facts.faults)
    if claim.restarts > most + num_faults:
        yield (
            f"I12 {claim.response_id} reports {claim.restarts} restarts after {most} takeovers"
            f" and {num_faults} faults of engines"
        )
    writers = {one.pid for one in asked if one.num_tokens and one.began_at < claim.done_at}
    if is_alone and len(writers) > 1 and not claim.restarts:
        yield f"I12 {claim.response_id} reports no restart, and {len(writers)} engines wrote it"
    if claim.reason == "engine_error" and num_faults < 2:
        yield f"I12 {claim.response_id} ended as engine_error, after {num_faults} faults of engines"
