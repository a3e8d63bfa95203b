"""`Masker`: makes the masks of each step, in a process of its own.

It has two sockets and a thread for each. On one come steps: what each row has got since, and a mask
is wanted for it, or is only if the token that it offers then may not follow: to look at one token
takes a thousandth of the time. On the other come grammars: one is compiled while masks of others
are made. A matcher that is not known yet is made from its grammar and fed all tokens so far; so it
is after the death of a masker, of the core, or of a worker.
"""

import contextlib
import ctypes
import mmap
import os
import threading
from collections import OrderedDict

import llguidance
from llguidance import LLExecutor, LLMatcher

from engine.core.structured.compiling import compile_source, describe
from engine.core.structured.frames import (
    ENDED,
    FAILED,
    MASKED,
    MISSING,
    OPEN,
    TAKEN,
    Channel,
    Masked,
    Offers,
    Row,
    RowState,
    Setup,
    Step,
    ToMask,
    Try,
    Verdict,
)
from engine.core.structured.proof import limit_memory, resident_bytes

MASKER_BYTES = 4 * 2**30  # beside what the process has at its start
MAX_GRAMMARS = 128  # that are kept compiled
MIN_GRAMMARS = 8  # that are kept in any case: one that was tried must be there when its step comes
KEPT_BYTES = 2**30  # of memory in use, beyond which fewer are kept: each may have 100 MB of states
FULL = "lexer error: too many "  # says llguidance; the matchers of a grammar share its lexer
MAX_THREADS = 8


class Masker:
    """`masks_fd` is memory for `setup.max_rows` masks, one after another."""

    def __init__(
        self,
        tokenizer: llguidance.LLTokenizer,
        setup: Setup,
        masks_fd: int,
        steps: Channel,
        loads: Channel,
    ) -> None:
        limit_memory(MASKER_BYTES)
        self._tokenizer = tokenizer
        self._eos_token_ids = [*{*tokenizer.eos_tokens, *setup.eos_token_ids}]
        self._num_words = -(-setup.vocab_size // 32)
        self._max_rows = setup.max_rows
        memory = mmap.mmap(masks_fd, setup.max_rows * self._num_words * 4)
        self._words = memoryview(memory).cast("I")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._steps, self._loads = steps, loads
        self._executor = LLExecutor(max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2)))
        self._grammars: OrderedDict[str, LLMatcher] = OrderedDict()  # the one used last is last
        self._matchers: dict[int, LLMatcher] = {}
        self._keys: dict[int, str] = {}  # of their grammars
        self._open: list[tuple[int, Row]] = []  # of the last step, with their places there
        self._made: dict[int, RowState] = {}  # masks ahead, by these places
        self._refused: set[int] = set()  # matchers of open rows, when the last offers came

    def serve(self) -> None:
        """Until the core closes a socket."""
        threading.Thread(target=self._serve_loads, daemon=True).start()
        with contextlib.suppress(EOFError, OSError):
            while True:
                asked: Step | Offers = self._steps.receive(ToMask)
                match asked:
                    case Step():
                        self._steps.send(self.mask(asked))
                        self.mask_ahead()
                    case Offers():
                        self._steps.send(self.judge(asked))

    def mask(self, step: Step) -> Masked:
        """Write the masks of a step, but of its open rows."""
        for number in step.forgotten:
            self._matchers.pop(number, None)
            self._keys.pop(number, None)
        states = [self._advance(row) for row in step.rows]
        rows = list(enumerate(step.rows))
        self._open = [(place, row) for place, row in rows if states[place].state == OPEN]
        failed = self._write([it for it in rows if states[it[0]].state in (MASKED, ENDED)])
        return Masked([failed.get(place, state) for place, state in enumerate(states)])

    def mask_ahead(self) -> None:
        """While the model computes: of the open rows those whose last offers were refused."""
        ahead = [(place, row) for place, row in self._open if row.matcher in self._refused]
        self._made = {place: RowState(MASKED) for place, _ in ahead} | self._write(ahead)

    def judge(self, offers: Offers) -> Masked:
        """Take what may follow, and write masks for the other open rows."""
        each = zip(self._open, offers.token_ids, strict=True)
        refused = dict(it for it, token in each if not self._may_follow(it[1], token))
        self._refused = {row.matcher for row in refused.values()}
        states = {place: RowState(MASKED) for place in refused} | self._made
        states |= self._write([it for it in refused.items() if it[0] not in self._made])
        taken = RowState(TAKEN)
        return Masked([states[place] if place in refused else taken for place, _ in self._open])

    def _write(self, rows: list[tuple[int, Row]]) -> dict[int, RowState]:
        """Masks at these places; states of those that cannot have one."""
        failed = {}
        if rows:
            to_mask = [(self._matchers[row.matcher], place) for place, row in rows]
            self._executor.unsafe_compute_mask_ptr(
                to_mask, self._address, self._num_words * 4, self._max_rows
            )
        for place, row in rows:
            matcher = self._matchers[row.matcher]
            if matcher.is_error():
                failed[place] = self._fail(row, matcher)
            elif row.without_eos and not matcher.is_stopped():
                self._forbid_eos(place)
        return failed

    def check(self, request: Try) -> Verdict:
        """Whether these tokens follow this grammar, which is kept."""
        grammar = self._grammars.get(request.key)
        verdict = None if grammar is None else self._walk(grammar, request)
        if grammar is None or verdict is None or FULL in verdict.problem:
            try:
                grammar = compile_source(request.source, self._tokenizer)
            except ValueError as error:
                return Verdict(str(error))
            verdict = self._walk(grammar, request)
        self._grammars[request.key] = grammar
        with contextlib.suppress(KeyError):  # the other thread may take it away
            self._grammars.move_to_end(request.key)
        self._let_go()
        return verdict

    def _let_go(self) -> None:
        """Forget the grammars that were used longest ago; their answers keep what they have."""
        while len(self._grammars) > MAX_GRAMMARS or (
            len(self._grammars) > MIN_GRAMMARS and resident_bytes() > KEPT_BYTES
        ):
            self._grammars.popitem(last=False)

    def _walk(self, grammar: LLMatcher, request: Try) -> Verdict:
        matcher = self._begin(grammar, request.begun)
        if request.token_ids:
            matcher.consume_tokens(request.token_ids)
        if matcher.is_error():
            return Verdict(f"the answer so far does not follow it: {describe(matcher.get_error())}")
        matcher.compute_bitmask()
        return Verdict(describe(matcher.get_error()) if matcher.is_error() else "")

    def _begin(self, grammar: LLMatcher, begun: str) -> LLMatcher:
        matcher = grammar.deep_copy()
        if begun:  # by its bytes: `tokenize_str` makes control tokens of what is only spelled
            matcher.consume_tokens(self._tokenizer.greedy_tokenize(begun))
        return matcher

    def _serve_loads(self) -> None:
        try:
            while True:
                request: Try = self._loads.receive(Try)
                self._loads.send(self.check(request))
        except BaseException:  # the core is gone; or a panic, of which the core is to hear at once
            os._exit(1)

    def _advance(self, row: Row) -> RowState:
        """Bring the matcher of a row to where its answer is."""
        matcher = self._matchers.get(row.matcher)
        if row.key:
            grammar = self._grammars.get(row.key)
            if grammar is None:
                return RowState(MISSING)
            matcher = self._matchers[row.matcher] = self._begin(grammar, row.begun)
            self._keys[row.matcher] = row.key
        if matcher is None:
            return RowState(MISSING)
        if row.token_ids:
            matcher.consume_tokens(row.token_ids)
        if matcher.is_error():
            return self._fail(row, matcher)
        if matcher.is_stopped():
            return RowState(ENDED)
        # Of text that must follow the mask leaves one way to cut it into tokens, and is made fast.
        is_open = row.offers and not matcher.compute_ff_bytes()
        return RowState(OPEN if is_open else MASKED)

    def _may_follow(self, row: Row, token: int) -> bool:
        matcher = self._matchers.get(row.matcher)
        if matcher is None or token < 0 or (row.without_eos and token in self._eos_token_ids):
            return False
        return matcher.validate_tokens([token]) == 1

    def _fail(self, row: Row, matcher: LLMatcher) -> RowState:
        """What has filled the lexer may be other answers: it is tried again with one of its own."""
        problem = describe(matcher.get_error())
        if FULL not in problem:
            return RowState(FAILED, problem)
        self._grammars.pop(self._keys[row.matcher], None)
        del self._matchers[row.matcher]
        return RowState(MISSING)

    def _forbid_eos(self, place: int) -> None:
        for token in self._eos_token_ids:
            self._words[place * self._num_words + token // 32] &= ~(1 << token % 32) & 0xFFFFFFFF
