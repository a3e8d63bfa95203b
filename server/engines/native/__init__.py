"""The native kind: our own engine, whose core is a process of this host.

The supervisor gets a `CoreKeeper` by `manage`; each worker joins the core by `connect`.
"""

from server.engines.native.connection import connect
from server.engines.native.preparation import manage

__all__ = ["connect", "manage"]
