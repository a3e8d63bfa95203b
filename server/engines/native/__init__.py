"""The native kind: our own engine, whose core is a process of this host.

The supervisor gets a `CoreKeeper` by `manage`; each worker joins the core by `connect`, and knows
the model by `served_model`.
"""

from server.engines.native.connection import connect, served_model
from server.engines.native.preparation import manage

__all__ = ["connect", "manage", "served_model"]
