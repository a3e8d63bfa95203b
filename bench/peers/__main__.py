"""`make bench-peers`: Parley beside other engines on this machine, each by its own server.

Engines take turns within each round, because a shared machine changes by the minute: what counts is
the ratio of two figures of the same round. Before each turn the speed of the memory and of
multiplications is measured, and after it how much of the machine something else has used; where
that is much, the turn is done again.
"""

import argparse
import contextlib
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import uvloop

import bench
from bench.harness.report import RESULTS, machine
from bench.peers import models
from bench.peers.engines.llama_cpp import LlamaCpp, LlamaCppSplit
from bench.peers.engines.openvino import OpenVINO
from bench.peers.engines.parley import Parley
from bench.peers.engines.peer import Peer, Running, Site
from bench.peers.engines.transformers_serve import Transformers
from bench.peers.engines.vllm import VLLM, VLLMZen
from bench.peers.load.doors import LoadError
from bench.peers.load.prompts import Prompts
from bench.peers.machine.environments import Environments, Unavailable, cache_folder
from bench.peers.machine.processes import Foreign
from bench.peers.machine.speed import MachineSpeed, Speed
from bench.peers.machine.terminal import console, say, warn
from bench.peers.record.figures import Row
from bench.peers.record.record import Mismatch, Record
from bench.peers.record.tables import markdown, show
from bench.peers.workloads import (
    FULL,
    QUICK,
    WORKLOADS,
    Reading,
    Sizes,
    Turn,
    parts,
    wake,
    warm_up,
)

ROOT = Path(bench.__file__).resolve().parent.parent
PEERS: tuple[type[Peer], ...] = (
    Parley,
    LlamaCpp,
    LlamaCppSplit,
    OpenVINO,
    VLLM,
    VLLMZen,
    Transformers,
)
ENGINES = (
    "parley:bf16 parley:bf16-kv8 parley:int8 parley:int8-kv8 parley:int4 parley:q4_0 "
    "parley:q4_k_m llama.cpp:bf16 llama.cpp:f16 llama.cpp:q8_0 llama.cpp:q4_0 llama.cpp:q4_k_m "
    "llama.cpp-split:f16 llama.cpp-split:q8_0 openvino:fp16 openvino:int8 vllm:bf16 vllm-zen:bf16 "
    "transformers:bf16"
)
RECORD = ROOT / "docs" / "peers" / "peers.json"
DISTURBING_CORES = 0.15  # a turn in which others, or the machine's host, took more is done again
ATTEMPTS = 3  # at most


def main() -> None:
    arguments = parse_arguments()
    if path := arguments.show or arguments.markdown:
        record = Record.read(path)
        if arguments.markdown:
            print(markdown(record.rows))
        else:
            show(record.rows, record.models, record.is_quick)
        return
    environments = Environments(cache_folder(), arguments.jobs)
    if arguments.plot:
        plot(environments, arguments.plot)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no server may outlive the run
    try:
        measure(Run(arguments, environments), arguments.model)
    except Mismatch as reason:
        raise SystemExit(str(reason)) from None


def measure(run: "Run", names: Iterable[str]) -> None:
    try:
        for name in names:
            run.measure(name)
    except KeyboardInterrupt:
        say("interrupted: what was measured so far is kept")
    run.finish()


def parse_arguments() -> argparse.Namespace:
    known = [f"{peer.name}:{precision}" for peer in PEERS for precision in peer.precisions]
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        epilog=f"Engines: {' '.join(known)}. What they need is built in $BENCH_PEERS_DIR "
        "(by default ~/.cache/parley/peers), from the package index.",
    )
    parser.add_argument(
        "--model",
        nargs="+",
        default=["m1", "m2"],
        help="m1 (Qwen3-0.6B's shape), m2 (a llama of 0.1B), tiny, or folders of checkpoints",
    )
    parser.add_argument("--engines", nargs="+", default=ENGINES.split(), metavar="ENGINE")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine")
    parser.add_argument("--threads", type=int, default=2, help="of each engine")
    parser.add_argument("--jobs", type=int, default=2, help="of a compilation")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works")
    parser.add_argument(
        "--one-by-one",
        action="store_true",
        help="one server at a time in each round, in place of all at once",
    )
    parser.add_argument("--prepare", action="store_true", help="build and convert, and end")
    parser.add_argument(
        "--record",
        nargs="?",
        type=Path,
        const=RECORD,
        help=f"keep the rows here, and plots beside it [{RECORD.relative_to(ROOT)}]",
    )
    parser.add_argument(
        "--add",
        type=Path,
        help="go on with a recorded run of this machine: all of it takes hours",
    )
    parser.add_argument("--show", type=Path, help="print the table of a recorded run, and end")
    parser.add_argument("--markdown", type=Path, help="print its ratios for a document, and end")
    parser.add_argument("--plot", type=Path, help="draw the plots of a recorded run, and end")
    arguments = parser.parse_args()
    if unknown := set(arguments.engines) - set(known):
        parser.error(f"unknown engines: {' '.join(sorted(unknown))}; known: {' '.join(known)}")
    if arguments.add and not arguments.add.is_file():
        parser.error(f"there is no {arguments.add} to go on with")
    return arguments


@dataclass(frozen=True, slots=True)
class Piece:
    """What one turn measures: a workload, or the part of it with this number."""

    workload: str
    part: int
    sizes: Sizes

    def seed(self, round: int, attempt: int) -> int:
        """Fresh words for each turn, and the same ones for every engine."""
        workload = list(WORKLOADS).index(self.workload)
        return ((attempt * len(WORKLOADS) + workload) * 100 + self.part) * 1000 + round


class Run:
    """Turns of all engines with all models, and the record of them."""

    def __init__(self, arguments: argparse.Namespace, environments: Environments) -> None:
        self._arguments = arguments
        self._environments = environments
        self._sizes: Sizes = QUICK if arguments.quick else FULL
        self._machine = MachineSpeed(environments.cache, arguments.threads)
        self._record = self._begin()
        first = self._record.next_round
        self._rounds = range(first, first + arguments.rounds)
        self._kept = RESULTS / time.strftime("peers-%Y%m%d-%H%M%S.json")

    def _begin(self) -> Record:
        """A new record, or one to go on with. Raises `Mismatch`."""
        arguments = self._arguments
        conditions = {
            "machine": machine(),
            "threads": arguments.threads,
            "sizes": asdict(self._sizes),
        }
        notes = {peer.name: peer.note for peer in PEERS if peer.note}
        if not arguments.add:
            return Record(conditions, notes=notes, is_quick=arguments.quick)
        record = Record.read(arguments.add)
        record.check_conditions(conditions)
        record.notes = notes
        return record

    def measure(self, model: str) -> None:
        """All engines with one model."""
        console.rule(f"{model}: preparing")
        checkpoint = models.checkpoint(model, self._environments.cache)
        site = Site(self._environments, checkpoint, self._arguments.threads)
        peers = self._prepare(site)
        names = ("num_weights", "kv_values", "flops_per_token", "flops_per_key")
        facts = {name: getattr(checkpoint, name) for name in names}
        weight_bytes = {peer.engine: peer.precisions[peer.precision] for peer in peers}
        value_bytes = {peer.engine: peer.value_bytes for peer in peers}
        self._record.add_model(checkpoint.name, facts, weight_bytes, value_bytes)
        if self._arguments.prepare:
            return
        # Only engines of one family are compared, so only they need memory at the same time.
        for family in dict.fromkeys(peer.family for peer in peers):
            group = [peer for peer in peers if peer.family == family]
            if self._arguments.one_by_one:
                self._one_by_one(group)
            else:
                self._together(group)

    def _together(self, peers: list[Peer]) -> None:
        """All servers are up, and take turns with each workload."""
        with contextlib.ExitStack() as stack:
            servers = self._start(peers, stack)
            for number in self._rounds if servers else ():
                self._head(servers, number)
                for piece in self._pieces():
                    for peer, server in servers.items():
                        self._turn(peer, server, number, piece)

    def _one_by_one(self, peers: list[Peer]) -> None:
        """Each server is up once in each round, for all workloads."""
        for number in self._rounds:
            self._head(peers, number)
            for peer in peers:
                try:
                    with self._running(peer) as server:
                        for piece in self._pieces():
                            self._turn(peer, server, number, piece)
                except Unavailable as reason:
                    self._leave_out(f"{peer.engine}, round {number + 1}", str(reason))

    def _pieces(self) -> Iterator[Piece]:
        for workload in self._arguments.workloads:
            for number, sizes in enumerate(parts(workload, self._sizes)):
                yield Piece(workload, number, sizes)

    def _head(self, peers: Iterable[Peer], number: int) -> None:
        one = next(iter(peers))
        what = f"{one.site.checkpoint.name}, weights of {one.family}'s kind"
        console.rule(f"{what}: round {number + 1} of {self._rounds.stop}")

    def _prepare(self, site: Site) -> list[Peer]:
        kinds = {peer.name: peer for peer in PEERS}
        ready = []
        for engine in self._arguments.engines:
            name, _, precision = engine.partition(":")
            peer = kinds[name](site, precision)
            try:
                self._record.add_version(engine, peer.prepare())
                ready.append(peer)
            except Unavailable as reason:
                self._leave_out(engine, str(reason))
        return ready

    def _start(self, peers: list[Peer], stack: contextlib.ExitStack) -> dict[Peer, Running]:
        """All servers that start, while there is memory."""
        servers = {}
        for peer in peers:
            available = psutil.virtual_memory().available
            if available < peer.memory_bytes:
                need, free = peer.memory_bytes / 2**30, available / 2**30
                why = f"it needs about {need:.1f} GiB and {free:.1f} are free: --one-by-one helps"
                self._leave_out(peer.engine, why)
                continue
            try:
                servers[peer] = stack.enter_context(self._running(peer))
            except Unavailable as reason:
                self._leave_out(peer.engine, str(reason))
        return servers

    @contextlib.contextmanager
    def _running(self, peer: Peer) -> Iterator[Running]:
        started = time.monotonic()
        log = f" ({peer.site.log(peer.engine)})" if peer.keeps_log else ""
        say(f"{peer.engine}: starting …{log}")
        with peer.running() as server:
            prompts = self._prompts(peer, -1)
            try:
                uvloop.run(warm_up(Turn(server, prompts, self._sizes)))
            except (LoadError, OSError) as error:
                raise Unavailable(f"its first answer failed: {error}{log}") from None
            seconds = time.monotonic() - started
            say(f"{peer.engine}: up and warm after {seconds:.0f} s")
            yield server

    def _prompts(self, peer: Peer, seed: int) -> Prompts:
        return Prompts(peer.site.checkpoint.folder, seed)

    def _turn(self, peer: Peer, server: Running, number: int, piece: Piece) -> None:
        """Measure one piece of one engine. A failure is reported, and the others go on."""
        try:
            self._measure(peer, server, number, piece)
        except Exception as error:  # of a server that we know nothing about
            if isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            what = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            self._leave_out(f"{peer.engine} {piece.workload}, round {number + 1}", what)

    def _measure(self, peer: Peer, server: Running, number: int, piece: Piece) -> None:
        readings, speed, foreign_cores = self._undisturbed(peer, server, number, piece)
        for reading in readings:
            self._record.rows.append(
                Row(
                    number,
                    peer.site.checkpoint.name,
                    peer.name,
                    peer.precision,
                    **asdict(reading),
                    **asdict(speed),
                    foreign_cores=round(foreign_cores, 2),
                )
            )
            noise = f", others used {foreign_cores:.2f} cores" if foreign_cores > 0.1 else ""
            shown = f"{reading.value:8.4g} {reading.unit}"
            say(f"{peer.engine:22} {reading.case:26} {shown}{speed_text(speed)}{noise}")
        self._record.write(self._kept)  # hours of work may end at any moment

    def _undisturbed(
        self, peer: Peer, server: Running, number: int, piece: Piece
    ) -> tuple[list[Reading], Speed, float]:
        """Readings, the machine's speed before, and what others used: of the quietest attempt."""
        attempts: list[tuple[list[Reading], Speed, float]] = []
        for attempt in range(ATTEMPTS):
            turn = Turn(server, self._prompts(peer, piece.seed(number, attempt)), piece.sizes)
            uvloop.run(wake(turn))
            speed = self._machine.measure()
            try:
                with Foreign(server.pid) as foreign:
                    readings = uvloop.run(WORKLOADS[piece.workload](turn))
            except Exception:
                if attempts:
                    break  # a disturbed one is better than none
                raise
            attempts.append((readings, speed, foreign.cores))
            if foreign.cores < DISTURBING_CORES:
                break
        return min(attempts, key=lambda attempt: attempt[2])

    def _leave_out(self, what: str, reason: str) -> None:
        self._record.left_out.append(f"{what}: {reason}")
        warn(f"left out: {what}: {reason}")

    def finish(self) -> None:
        """Print everything once more in order, and keep it."""
        record = self._record
        for line in record.left_out:
            warn(f"left out: {line}")
        if self._arguments.prepare:
            say("prepared: " + ", ".join(record.versions))
            return
        if not record.rows:
            raise SystemExit("nothing was measured")
        show(record.rows, record.models, record.is_quick)
        say(f"saved {self._kept}")
        if path := self._arguments.record or self._arguments.add:
            record.write(path)
            say(f"saved {path}")
            plot(self._environments, path)


def speed_text(speed: Speed) -> str:
    if speed.bandwidth is None:
        return ""
    return f", memory {speed.bandwidth:.0f} GB/s, arithmetic {speed.gigaflops:.0f} GFLOP/s"


def plot(environments: Environments, path: Path) -> None:
    """PNG files beside the recorded run."""
    try:
        python = environments.program("plots", "python")
    except Unavailable as reason:
        warn(f"no plots: {reason}")
        return
    command = [str(python), "-m", "bench.peers.record.plots", str(path), str(path.parent)]
    if subprocess.run(command, cwd=ROOT).returncode:
        warn("no plots: see above")


if __name__ == "__main__":
    main()
