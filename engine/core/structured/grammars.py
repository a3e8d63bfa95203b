"""`Grammars`: from a request's grammar to masks for its rows, without the step loop waiting.

A thread takes the sequences that wait for their grammar, one of each user in turn. It has a grammar
proven (`zygote.py`), once for all requests with the same text, and tried in the masker with what
the answer has so far. Meanwhile the sequence waits (`Sequence.waits_for_grammar`): it keeps its
turn, may be aborted, and holds up nobody.

If the masker dies or does not answer, the step's rows get no token, and wait until the thread has
replaced it and has tried each of their grammars alone. One over which a masker dies again ends; the
others go on as if nothing had been.
"""

import hashlib
import itertools
import logging
import mmap
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

from engine.core.scheduling.sequence import Problem, Sequence
from engine.core.structured.frames import Setup, Source, Try, Verdict
from engine.core.structured.processes import Link, Processes, Unusable
from engine.errors import UnsupportedModelError
from engine.folder.model_files import MAX_TOKENIZER_BYTES, exists

logger = logging.getLogger("engine.core")

REFUSED = "grammar_refused"  # the code of a request's end: its own doing
UNUSABLE = "unsupported_parameter"  # likewise: this model cannot do it
MAX_VERDICTS = 512  # that are remembered, by the hash of the grammar
MAX_LOSSES = 3  # maskers that may die under a sequence in a row, and under others as well


class Matcher:
    """Where a sequence is in its grammar."""

    __slots__ = (
        *("__weakref__", "begun", "key", "link", "num_consumed", "num_losses", "number"),
        *("num_refused", "offers_in", "source"),
    )

    def __init__(self, number: int, source: Source, begun: str) -> None:
        self.number = number
        self.begun = begun  # that the prompt has of the answer
        self.source = source
        self.key = hashlib.sha256(f"{source.kind}\0{source.text}".encode()).hexdigest()
        self.link: Link | None = None  # whose masker knows it
        self.num_consumed = 0  # tokens of the answer that this masker has been told
        self.num_losses = 0
        self.num_refused = 0  # offers, without one between them that was taken
        self.offers_in = 0  # steps, in which it has whole masks


class Grammars:
    """Of one core. `on_ready` is called by the thread when `take_ready` has something."""

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        eos_token_ids: list[int],
        max_rows: int,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.vocab_size = vocab_size
        self.num_words = -(-vocab_size // 32)
        self.max_rows = max_rows
        self.forgotten: deque[int] = deque()  # matchers whose sequences are gone
        self.on_ready = on_ready
        self._file = folder / "tokenizer.json"
        self._eos_token_ids = list(eos_token_ids)
        self._memory: mmap.mmap | None = None
        self._masks_fd = -1
        self._processes: Processes | None = None  # the thread's
        self._link: Link | None = None
        self._ended: deque[Link] = deque()  # whose sockets for masks are not closed yet
        self._numbers = itertools.count(1)
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()
        self._problem: str | None = None  # why no grammar can be had of this model
        self._changed = threading.Condition()
        self._lines: OrderedDict[str, deque[tuple[Sequence, list[int]]]] = OrderedDict()
        self._ready: deque[tuple[Sequence, Problem | None, list[str]]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    # ---- of the step loop's thread

    def prepare(self, sequence: Sequence) -> Problem | None:
        """Have the grammar of a new sequence made, or say why it can have none."""
        asked = sequence.params.structured_outputs
        if asked is None or sequence.pooling is not None:
            return None
        if self._problem is None and self._memory is None:
            self._problem = self._find_problem()
        if self._problem is not None:
            return (UNUSABLE, f"structured_outputs cannot be had of this model: {self._problem}")
        sequence.matcher = matcher = Matcher(
            next(self._numbers), Source(*asked.source()), asked.begun
        )
        weakref.finalize(matcher, self.forgotten.append, matcher.number)
        self.wait_for(sequence)
        return None

    def wait_for(self, sequence: Sequence) -> None:
        """The sequence gets no token until it is in what `take_ready` returns."""
        sequence.waits_for_grammar = True
        so_far = sequence.token_ids[sequence.num_prompt_tokens :]
        with self._changed:
            self._lines.setdefault(sequence.cache_salt, deque()).append((sequence, so_far))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="grammars", daemon=True)
                self._thread.start()
            self._changed.notify()

    def take_ready(self) -> list[tuple[Sequence, Problem | None, list[str]]]:
        """Sequences that have waited: why they end, if they must, and what their caller hears."""
        taken = []
        while self._ready:
            taken.append(self._ready.popleft())
        return taken

    @property
    def link(self) -> Link | None:
        """To the masker; None while there is none."""
        link = self._link
        return None if link is None or link.is_lost else link

    @property
    def memory(self) -> mmap.mmap:
        """Masks of a step: [max_rows, num_words] int32."""
        assert self._memory is not None
        return self._memory

    def close(self) -> None:
        """End the thread, and its processes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self.close_ended()
        if self._masks_fd >= 0:
            os.close(self._masks_fd)
            self._masks_fd = -1

    def close_ended(self) -> None:
        """Close what only the step loop reads, of maskers that are gone."""
        while self._ended:
            self._ended.popleft().steps.close()

    def _find_problem(self) -> str | None:
        try:
            if not exists(self._file, MAX_TOKENIZER_BYTES):
                return "its folder has no tokenizer.json"
        except UnsupportedModelError as error:
            return str(error)
        num_bytes = self.max_rows * self.num_words * 4
        self._masks_fd = os.memfd_create("parley-masks", os.MFD_CLOEXEC)
        os.ftruncate(self._masks_fd, num_bytes)
        self._memory = mmap.mmap(self._masks_fd, num_bytes)
        return None

    # ---- the thread

    def _serve(self) -> None:
        setup = Setup(str(self._file), self.vocab_size, self._eos_token_ids, self.max_rows)
        self._processes = Processes(setup, self._masks_fd)
        while (job := self._next()) is not None:
            sequence, so_far = job
            try:
                opened = self._open(sequence, so_far)
            except Exception as error:  # a fault of ours must not end the thread
                logger.exception("%r: its grammar failed", sequence)
                opened = ("engine_error", f"{type(error).__name__} in its grammar"), []
            self._ready.append((sequence, *opened))
            self.on_ready()
        self._end_link()
        self._processes.close()

    def _next(self) -> tuple[Sequence, list[int]] | None:
        """One of the user whose turn it is, without those that have ended. None: it is over."""
        with self._changed:
            while not self._is_closed:
                while self._lines:
                    user, line = self._lines.popitem(last=False)
                    job = line.popleft()
                    if line:
                        self._lines[user] = line
                    if not job[0].is_finished:
                        return job
                self._changed.wait()
            return None

    def _open(self, sequence: Sequence, so_far: list[int]) -> tuple[Problem | None, list[str]]:
        """Prove a grammar, and have it where masks are made."""
        matcher: Matcher = sequence.matcher
        try:
            verdict = self._proven(matcher)
        except Unusable as error:
            self._problem = str(error)
            problem = f"structured_outputs cannot be had of this model: {error}"
            return (UNUSABLE, problem), []
        except (OSError, EOFError):
            return ("engine_error", "the grammar's process has ended"), []
        if verdict.problem:
            return (REFUSED, verdict.problem), []
        if matcher.num_losses >= MAX_LOSSES:
            return (REFUSED, f"{MAX_LOSSES} processes have ended over its masks"), []
        for _ in range(2):  # the first may have died of what another sequence did
            try:
                tried = self._linked().try_out(_try(matcher, so_far))
            except (OSError, EOFError, Unusable) as error:
                logger.error("%r: a masker has ended over it: %r", sequence, error)
                self._end_link()
                continue
            return (REFUSED, tried.problem) if tried.problem else None, verdict.warnings
        return (REFUSED, "the process that makes its masks ends over it"), []

    def _proven(self, matcher: Matcher) -> Verdict:
        """Its verdict, also if the process that forks dies meanwhile: it compiles nothing itself.

        Raises Unusable, OSError, EOFError.
        """
        try:
            return self._prove(matcher)
        except (OSError, EOFError) as error:
            logger.error("a grammar could not be proven: %r", error)
            self._processes_failed()
            if isinstance(error, TimeoutError):  # others have waited long enough
                raise
        try:
            return self._prove(matcher)
        except (OSError, EOFError) as error:
            logger.error("a grammar could not be proven again: %r", error)
            self._processes_failed()
            raise

    def _prove(self, matcher: Matcher) -> Verdict:
        verdict = self._verdicts.get(matcher.key)
        if verdict is None:
            assert self._processes is not None
            verdict = self._processes.prove(matcher.source)
            if not verdict.is_certain:
                return verdict
            self._verdicts[matcher.key] = verdict
        self._verdicts.move_to_end(matcher.key)
        while len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)
        return verdict

    def _linked(self) -> Link:
        assert self._processes is not None
        link = self._link
        if link is None or link.is_lost:
            self._end_link()
            self._link = link = self._processes.start_masker()
        return link

    def _end_link(self) -> None:
        if self._link is not None:
            self._link.end()
            self._ended.append(self._link)
            self._link = None

    def _processes_failed(self) -> None:
        self._end_link()
        assert self._processes is not None
        self._processes.close()


def _try(matcher: Matcher, so_far: list[int]) -> Try:
    return Try(matcher.key, matcher.source, matcher.begun, so_far)
