"""`parley`, but its engine core is `bench.relay.replay_core`; used by `bench.relay`."""

import functools

from engine.client.launcher import CoreProcess
from server.cli import main
from server.engines.native import core_keeper

if __name__ == "__main__":
    replaying = functools.partial(CoreProcess, module="bench.relay.replay_core")
    vars(core_keeper)["CoreProcess"] = replaying
    main()
