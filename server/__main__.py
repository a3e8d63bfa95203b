"""`python -m server` is the `parley` command. Ctrl+C ends it also before it has begun."""

import signal

_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where it is ignored
if _ours:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once, and without a word of what was imported

from server.cli import main as parley  # noqa: E402  (after Ctrl+C is ours)


def main() -> None:
    if _ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    parley()


if __name__ == "__main__":
    main()
