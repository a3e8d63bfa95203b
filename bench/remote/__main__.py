"""`python -m bench.remote`: what an engine elsewhere loses through Parley, beside its own door.

llama.cpp's server and vLLM serve the 0.6B shape on this machine, one after the other, and a Parley
that asks them over HTTP stands beside each. The same client asks at both doors in turns, so that
what the machine does besides weighs on both; what counts is the ratio of two turns. An engine
elsewhere has its processors to itself, so by default it has one of the threads here, and Parley and
the client run beside it. Where others compute, too, look at the tokens for a second of the engine's
own processor time: they leave out what others take.
"""

import argparse
import operator
import signal
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import ClassVar

import uvloop

from bench.harness.report import Figure, report
from bench.harness.servers import running_server, user_tokens
from bench.peers import models
from bench.peers.engines.llama_cpp import LlamaCpp
from bench.peers.engines.parley import SessionDoor, Users, WebsocketConversation
from bench.peers.engines.peer import MAX_MODEL_LEN, Peer, Running, Site
from bench.peers.engines.vllm import VLLM
from bench.peers.load.doors import Answer, ChatDoor
from bench.peers.load.prompts import Prompts
from bench.peers.machine.environments import Environments, Unavailable, cache_folder
from bench.peers.machine.processes import busy_seconds, tree
from bench.peers.machine.terminal import say, warn
from bench.peers.workloads import FULL, Turn, burst_of, ms, warm_up
from tests.end_to_end.site.harness import Server

MAX_LOST_PERCENT = 5.0
MAX_FIRST_MS = 10.0
FIRST = (24, 2)  # in and out, of an answer whose first token counts
OWN, THROUGH = "its own door", "through Parley"
ORDER = (OWN, THROUGH, THROUGH, OWN)  # so that what drifts weighs on both


class VLLMWithTokens(VLLM):
    """With the route that Parley asks."""

    more_options: ClassVar[tuple[str, ...]] = ("--enable-scale-out",)


ENGINES: dict[str, type[Peer]] = {"llamacpp": LlamaCpp, "vllm": VLLMWithTokens}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.remote", description=__doc__)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--model", default="m1", help="m1 (Qwen3-0.6B's shape), m2, tiny")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--chats", type=int, default=16, help="that ask at once")
    parser.add_argument("--tokens", type=int, nargs=2, default=(32, 64), help="in and out")
    parser.add_argument("--firsts", type=int, default=6, help="answers alone, in each round")
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    arguments = parser.parse_args()
    environments = Environments(cache_folder(), arguments.threads)
    checkpoint = models.checkpoint(arguments.model, environments.cache)
    site = Site(environments, checkpoint, arguments.threads)
    figures: list[Figure] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no server may outlive the run
    for kind in arguments.engines:
        try:
            figures += measure(kind, ENGINES[kind](site, "bf16"), arguments)
        except Unavailable as why:
            warn(f"left out: {kind}: {why}")
    report("remote", figures)


@dataclass
class Side:
    """What was seen at one door."""

    rates: list[float] = field(default_factory=list)  # tokens/s of all chats, one of each turn
    engine_rates: list[float] = field(default_factory=list)  # for a second of its processor time
    firsts: list[float] = field(default_factory=list)  # seconds, of an answer alone
    firsts_together: list[float] = field(default_factory=list)  # likewise, of all chats
    client_seconds: float = 0.0  # of a processor, and those of Parley
    parley_seconds: float = 0.0
    num_tokens: int = 0


class Run:
    """One engine, whose two doors take turns."""

    def __init__(
        self, engine: Running, server: Server, site: Site, arguments: argparse.Namespace
    ) -> None:
        assert server.process is not None
        users = Users(uvloop.run(user_tokens(server, arguments.chats)))
        self.sides = {OWN: Side(), THROUGH: Side()}
        self._doors: dict[str, ChatDoor] = {
            OWN: engine.door,
            THROUGH: SessionDoor(server, users, WebsocketConversation),
        }
        self._prompts = Prompts(site.checkpoint.folder, 0)  # of which no two begin alike
        self._arguments = arguments
        self._engine_pids = [process.pid for process in tree(engine.pid)]
        self._parley_pids = [process.pid for process in tree(server.process.pid)]

    def warm_up(self) -> None:
        for name in self._doors:
            uvloop.run(warm_up(self._turn(name)))

    def first_tokens(self) -> None:
        """Of answers alone, from one door and the other."""
        for _ in range(self._arguments.firsts):
            for name in self._doors:
                turn = self._turn(name)
                answer = uvloop.run(turn.door.answer(turn.prompts.draw(FIRST[0]), FIRST[1]))
                self.sides[name].firsts.append(answer.first_seconds)

    def burst(self, name: str) -> tuple[float, float]:
        """All chats at once: their tokens/s, and for a second of the engine's processor time."""
        side, arguments, turn = self.sides[name], self._arguments, self._turn(name)
        before = self._processor_times()
        rate, answers = uvloop.run(burst_of(turn, turn.door, arguments.chats, *arguments.tokens))
        engine, parley, client = map(operator.sub, self._processor_times(), before)
        num_tokens = sum(answer.num_tokens for answer in answers)
        side.rates.append(rate)
        side.engine_rates.append(num_tokens / engine)
        side.firsts_together.append(first_of(answers))
        side.parley_seconds += parley
        side.client_seconds += client
        side.num_tokens += num_tokens
        return rate, side.engine_rates[-1]

    def _processor_times(self) -> tuple[float, float, float]:
        engine, parley = busy_seconds(self._engine_pids), busy_seconds(self._parley_pids)
        return engine, parley, time.process_time()

    def _turn(self, name: str) -> Turn:
        return Turn(Running(0, {name: self._doors[name]}), self._prompts, FULL)


def measure(kind: str, peer: Peer, arguments: argparse.Namespace) -> list[Figure]:
    """Raises `Unavailable`."""
    version = peer.prepare()
    say(f"{kind} {version}: starting ({peer.site.log(peer.engine)})")
    with peer.running() as engine, parley(kind, peer.site, engine.url) as server:
        run = Run(engine, server, peer.site, arguments)
        run.warm_up()
        for number in range(arguments.rounds):
            run.first_tokens()
            for name in ORDER:
                rate, engine_rate = run.burst(name)
                shown = f"{rate:.2f} tok/s, {engine_rate:.2f} for its processor time"
                say(f"{kind}, round {number + 1}: {shown}, {name}")
    return figures_of(kind, arguments.chats, run.sides)


def parley(kind: str, site: Site, url: str) -> AbstractContextManager[Server]:
    settings = {"PARLEY_ENGINES": f"{kind}={url}", "PARLEY_MAX_MODEL_LEN": str(MAX_MODEL_LEN)}
    return running_server(site.checkpoint.folder, Server, **settings)


def first_of(answers: Sequence[Answer]) -> float:
    return statistics.median(answer.first_seconds for answer in answers)


def figures_of(kind: str, chats: int, sides: dict[str, Side]) -> list[Figure]:
    own, through = sides[OWN], sides[THROUGH]
    lost = lost_of(own.rates, through.rates)
    engine_lost = statistics.median(lost_of(own.engine_rates, through.engine_rates))
    later = [theirs - ours for ours, theirs in zip(own.firsts, through.firsts, strict=True)]
    together = _ms(through.firsts_together) - _ms(own.firsts_together)
    figures = []
    for name, side in sides.items():
        client = 1e3 * side.client_seconds / side.num_tokens
        own_rate = statistics.median(side.engine_rates)
        figures += [
            Figure(f"{name}, {chats} chats", statistics.median(side.rates), None, "tok/s"),
            Figure(f"{name}, tokens for its processor time", own_rate, None, "/s"),
            Figure(f"{name}, first token alone", _ms(side.firsts), None, "ms"),
            Figure(f"{name}, the client for a token", client, None, "ms"),
        ]
    cost = 1e3 * through.parley_seconds / through.num_tokens
    figures += [
        Figure("lost", statistics.median(lost), MAX_LOST_PERCENT, "%"),
        Figure("lost, in the best round", min(lost), None, "%"),
        Figure("lost, in the worst round", max(lost), None, "%"),
        Figure("lost for its processor time", engine_lost, MAX_LOST_PERCENT, "%"),
        Figure("first token alone, later by", _ms(later), MAX_FIRST_MS, "ms"),
        Figure(f"first of {chats} at once, later by", together, None, "ms"),
        Figure("processor time of Parley for a token", cost, None, "ms"),
    ]
    return [replace(figure, what=f"{kind}: {figure.what}") for figure in figures]


def lost_of(own: Sequence[float], through: Sequence[float]) -> list[float]:
    """Percent, of the two turns at each door in a round."""
    rounds = zip(own[::2], own[1::2], through[::2], through[1::2], strict=True)
    return [100 * (1 - sum(turns[2:]) / sum(turns[:2])) for turns in rounds]


def _ms(seconds: Sequence[float]) -> float:
    return ms(statistics.median(seconds))


if __name__ == "__main__":
    main()
