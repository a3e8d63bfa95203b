"""Runs a program and says which processes it left behind: `python launch.py PROGRAM ARGUMENTS...`

Orphans become children of this process, so a core that outlives its program is seen here, also as
a zombie. Exits like the program, or with 99 and a line for each orphan.
"""

import ctypes
import signal
import subprocess
import sys

import psutil

PR_SET_CHILD_SUBREAPER = 36
LEFT_BEHIND = 99


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    program = subprocess.Popen([sys.executable, *sys.argv[1:]])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program
    code = program.wait()
    orphans = psutil.Process().children(recursive=True)
    for orphan in orphans:
        print("left behind:", orphan, file=sys.stderr)
    return LEFT_BEHIND if orphans else code


if __name__ == "__main__":
    sys.exit(main())
