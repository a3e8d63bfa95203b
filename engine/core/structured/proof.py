"""What compiles a grammar within bounds, in a process that may die of it.

Which bounds llguidance keeps by itself, and which it does not, is in docs/engine.md.
"""

import random
import resource
import signal

import llguidance

from engine.core.structured.compiling import compile_source, describe, warnings_of
from engine.core.structured.frames import PROOF_SECONDS, Source, Verdict

PROOF_BYTES = 512 * 2**20  # beside what the process has at its start
NUM_TRIAL_TOKENS = 24
MAX_WARNINGS = 16


def confine() -> None:
    """Bound this process: memory is refused beyond a limit, and a timer ends it."""
    limit_memory(PROOF_BYTES)
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, PROOF_SECONDS)


def limit_memory(num_bytes: int) -> None:
    """So many bytes of addresses more than there are now."""
    with open("/proc/self/statm") as file:
        in_use = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = in_use + num_bytes
    resource.setrlimit(
        resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


def resident_bytes() -> int:
    """Of memory that this process has in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def prove(source: Source, tokenizer: llguidance.LLTokenizer) -> Verdict:
    """Compile it and take some of the ways that it allows, so that its masks are tried as well."""
    try:
        matcher = compile_source(source, tokenizer)
    except ValueError as error:
        return Verdict(str(error))
    warnings = warnings_of(source, matcher)[:MAX_WARNINGS]
    chosen = random.Random(0)
    for _ in range(NUM_TRIAL_TOKENS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            return Verdict(describe(matcher.get_error()))
        if matcher.is_stopped() or not mask:
            break
        place = chosen.randrange(mask.bit_length())
        mask >>= place
        matcher.consume_token(place + (mask & -mask).bit_length() - 1)
    return Verdict(warnings=warnings)
