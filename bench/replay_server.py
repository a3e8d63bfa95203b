"""`parley`, but its engine core is `bench.replay_core`; used by `bench.relay`."""

import functools

from engine.client.launcher import CoreProcess
from server.cli import main
from server.supervisor import core as core_keeper

if __name__ == "__main__":
    vars(core_keeper)["CoreProcess"] = functools.partial(CoreProcess, module="bench.replay_core")
    main()
