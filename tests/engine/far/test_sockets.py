"""The core's socket for other machines, in a process that libzmq ends where it finds a fault."""

import subprocess
import sys
import textwrap
from pathlib import Path

from engine.far.keys import make_keys, trust
from tests.engine.helpers.far.machines import free_address
from tests.helpers.patience import PATIENCE

SERVER = """
    import os, socket, sys, threading, time
    from pathlib import Path

    import zmq

    from engine.far.keys import read_keys
    from engine.far.sockets import set_client, set_server

    core, client, address = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    set_server(router, read_keys(core), address)
    router.set(zmq.RCVHWM, 1)
    router.bind(address)
    pid = os.fork()
    if pid == 0:
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        set_client(dealer, read_keys(client), address)
        dealer.set(zmq.SNDTIMEO, 500)
        dealer.connect(address)
        try:
            while True:
                dealer.send(bytes(100_000))
        except zmq.Again:
            os.kill(os.getpid(), 9)  # with what it has not read: its end is sudden
    os.waitpid(pid, 0)
    # The timer of libzmq that would end this process is no event of ours: it is outwaited.
    time.sleep(float(sys.argv[4]))
    assert router.recv_multipart()
"""


def test_a_client_that_dies_while_much_of_its_waits_ends_nothing_else(tmp_path: Path) -> None:
    core, client = tmp_path / "core", tmp_path / "client"
    trust(core, "front", (make_keys(core), make_keys(client))[1])
    trust(client, "core", make_keys(core))
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SERVER), core, client, free_address(), "3"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
