"""Ends processes that others have started: groups, and those who have left their group.

Each MCP server leads a group of its own and has a mark in its environment, which its children
inherit. The tool process is the one that orphans below it fall to, so that none of them is lost to
it while it lives; after its death the supervisor finds them by the mark.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

MARK = "TOOL_SERVER_MARK"
MAX_ROUNDS = 8  # a process that starts others while it is looked for
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, a descendant that loses its parent is our child."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_group(leader: int) -> None:
    """The leader must not have been waited for yet: its number could be somebody else's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def kill_marked(mark: str) -> int:
    """Every process of this user whose mark begins so. How many there were."""
    wanted = f"{MARK}={mark}".encode()
    killed: set[int] = set()
    for _ in range(MAX_ROUNDS):
        found = [pid for pid in _processes() if pid not in killed and _is_marked(pid, wanted)]
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
    return len(killed)


def reap_orphans(known: Collection[int]) -> None:
    """Wait for each child that has ended and is not `known`: somebody else waits for those."""
    for pid in _children():
        if pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _processes() -> Iterator[int]:
    own = os.getpid()
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) != own:
            yield int(entry)


def _is_marked(pid: int, wanted: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # another user's, or gone
        return False
    return any(one.startswith(wanted) for one in environment.split(b"\0"))


def _children() -> list[int]:
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/self/task/{thread}/children").read_text().split())
    return found
