"""The terminal that prompt_toolkit draws on, for the commands that draw. They alone import this."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prompt_toolkit.data_structures import Size
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

ENDS = (signal.SIGTERM, signal.SIGHUP)


def terminal_output() -> Vt100_Output:
    """Standard output. It is never asked where its cursor is: not every terminal answers that."""

    def size() -> Size:
        try:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        except OSError:  # the terminal is gone
            columns, rows = 0, 0
        return Size(rows=rows or 24, columns=columns or 80)

    return Vt100_Output(
        sys.stdout,
        size,
        term=os.environ.get("TERM"),
        default_color_depth=ColorDepth.from_env(),  # NO_COLOR
        enable_cpr=False,
    )


@contextmanager
def leaves_when_told(leave: Callable[[int], None]) -> Iterator[None]:
    """SIGTERM and SIGHUP leave as a key does: the terminal is as before, if it is still there.

    The exit code is what a shell makes of the signal.
    """
    loop = asyncio.get_running_loop()
    for end in ENDS:
        loop.add_signal_handler(end, leave, 128 + end)
    try:
        yield
    finally:
        for end in ENDS:
            loop.remove_signal_handler(end)
