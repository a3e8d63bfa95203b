"""ZeroMQ's sockets between machines: CURVE on TCP, with bounds on sizes and on silence.

CURVE encrypts and authenticates each frame, in order: within one connection nothing is lost,
repeated or changed unnoticed. libzmq sets TCP_NODELAY by itself.
"""

import re
from urllib.parse import urlsplit

import zmq

from engine.far.keys import Keys
from engine.far.sizes import MAX_BYTES

ZAP_DOMAIN = b"parley"  # not empty: libzmq then refuses protocols that know no ZAP as well
HANDSHAKE_MS = 5000  # until both have shown their keys; a connection that does not is closed
# The core's kernel asks for a sign of life after so many seconds, again and again, and closes the
# connection after so many in vain. libzmq's own heartbeat ends the whole process where it meets a
# client that has died while more of its messages waited here than are taken.
KEEPALIVE_SECONDS = 2
MAX_UNANSWERED = 5
UNTAKEN_MS = 10_000  # that what was sent may wait for the peer's kernel to take it
MAX_UNSENT = 100  # messages to one client that libzmq keeps; the core itself bounds the rest
MAX_UNREAD = 32  # messages of one client that libzmq keeps; the rest waits at the client
MAX_REPLY_BYTES = 64 * 1024 * 1024  # to a client, which trusts its core's key and no more
IPV4 = re.compile(r"[0-9.]+")


def set_server(socket: "zmq.Socket[bytes]", keys: Keys, address: str) -> None:
    """Of a core, before it is bound. A `Gatekeeper` must be there by then."""
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, keys.secret)
    socket.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_SECONDS)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_SECONDS)
    socket.set(zmq.TCP_KEEPALIVE_CNT, MAX_UNANSWERED)
    socket.set(zmq.TCP_MAXRT, UNTAKEN_MS)
    socket.set(zmq.MAXMSGSIZE, MAX_BYTES)
    socket.set(zmq.SNDHWM, MAX_UNSENT)
    socket.set(zmq.RCVHWM, MAX_UNREAD)
    socket.set(zmq.IPV6, needs_ipv6(address))


def set_client(socket: "zmq.Socket[bytes]", keys: Keys, address: str) -> None:
    """Of one that connects once, and never again by itself. Raises `KeysError`."""
    socket.set(zmq.CURVE_SERVERKEY, keys.core)
    socket.set(zmq.CURVE_PUBLICKEY, keys.public)
    socket.set(zmq.CURVE_SECRETKEY, keys.secret)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    # Messages that are on their way when a connection breaks are lost, and libzmq would tell nobody
    # that it has made another one.
    socket.set(zmq.RECONNECT_IVL, -1)
    socket.set(zmq.MAXMSGSIZE, MAX_REPLY_BYTES)
    socket.set(zmq.IPV6, needs_ipv6(address))


def needs_ipv6(address: str) -> bool:
    """A name may stand for addresses of both kinds."""
    host = urlsplit(address).hostname or ""
    return not IPV4.fullmatch(host)
