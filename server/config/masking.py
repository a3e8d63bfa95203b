"""What stands in the place of a secret, and texts without the secrets of their URLs."""

import re

MASK = "•••"

# As a path it has one slash less; a password may hold what should have been escaped. To the last @
# before another URL of the list.
_USER_OF_URL = re.compile(r"(:/{1,2})(?:(?!,\s\S*:/).)*@", re.DOTALL)
# An engine's `keys=` names a folder.
_SECRET_OF_URL = re.compile(
    r"([?&;](?!keys=)[\w.%-]*(?:pass|token|secret|key|auth|sig|credential)[\w.%-]*=)[^&;#\s]+",
    re.IGNORECASE,
)


def masked(text: str) -> str:
    """Without the names, passwords and keys of URLs."""
    return _SECRET_OF_URL.sub(rf"\1{MASK}", _USER_OF_URL.sub(rf"\1{MASK}@", text))
