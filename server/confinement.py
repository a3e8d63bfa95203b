"""What every process of Parley inherits from the first one: nothing of it is left lying about."""

import os
import resource

MAX_DESCRIPTORS = 65_536  # the usual 1,024 are used up by so many sockets


def confine() -> None:
    """Leave no core dumps, which hold keys and words; make files private; allow many sockets."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
