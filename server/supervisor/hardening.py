"""Process hardening, inherited from the first process: no core dumps, private files."""

import os
import resource

from server.config.masking import masked
from server.config.settings import OTLP_HEADERS, PREFIX

# Our children get their secrets on stdin, because every process of a user can read the environment
# of the others.
SECRETS = ("PARLEY_TOKEN", "PARLEY_ADMIN_TOKEN", "PARLEY_REDIS_URL", "PARLEY_REDIS_SECRET")
MAX_DESCRIPTORS = 65_536  # the usual 1,024 are used up by so many sockets


def harden() -> None:
    """Leave no core dumps, which hold keys and words; make files private; allow many sockets; keep
    secrets out of the environment of what we start.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    in_urls = [n for n, text in os.environ.items() if n.startswith(PREFIX) and masked(text) != text]
    for name in (*SECRETS, *OTLP_HEADERS, *in_urls):
        os.environ.pop(name, None)
