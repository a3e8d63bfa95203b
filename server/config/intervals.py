"""`Intervals`: how often a worker renews, looks and reports, and how long it waits for others.

They belong together: an owner renews several times within one lease, and falls silent before the
lease ends. Tests run with all of them shortened in proportion, and with nothing else changed.
"""

import msgspec

STORE_RETRY_SECONDS = 0.2  # between two tries of what must reach a store that is away


class Intervals(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, all of them."""

    lease: float = 10.0  # that an owner may be silent before others take its answers over
    renewal: float = 1.0  # an answer without events renews its lease and reads its cancel flag
    silence: float = 8.0  # since the last renewal; then nothing is shown that others might correct
    index: float = 3.0  # between two writes of own leases to the index of live runs
    sweep: float = 1.0  # between two looks for leases that ended
    promotion: float = 1.0  # between two looks whether an answer's turn has come
    consent: float = 300.0  # for a user to say whether a call of a tool may run
    repeat: float = 10.0  # that a call whose client has gone waits for its repeat
    report: float = 0.5  # between two of a worker's signs of life, with its figures, in the store
    heartbeat: float = 3.0  # between two looks who else gives some
    heartbeat_late: float = 8.0  # after so long a silence operators see the worker as missing
    heartbeat_life: float = 15.0  # a worker that was silent for so long is not there
    ping: float = 20.0  # between two pings of a websocket, and until its pong must be here
    drain: float = 30.0  # for running answers, when a worker has to stop
    settings: float = 30.0  # between two looks at Redis' settings and memory
    watchdog: float = 30.0  # an engine core that answers nothing for so long is killed
    restart: float = 600.0  # that answers wait for an engine that was told to end, or for their own
    # An answer of an engine at an address that stands still for so long is asked for again; one
    # that has not begun may wait ten times as long, for its turn.
    stillness: float = 60.0


SHORTENED = Intervals(
    lease=1.0,
    renewal=0.1,
    silence=0.67,
    index=0.3,
    sweep=0.2,
    promotion=0.2,
    consent=30.0,
    repeat=1.0,
    report=0.3,
    heartbeat=0.3,
    heartbeat_late=1.0,
    heartbeat_life=1.5,
    ping=1.0,
    drain=2.0,
    settings=0.5,
    watchdog=2.0,
    restart=60.0,
    stillness=4.0,
)
