"""`CacheSalts`: a name for each user that tells the engine who shares prefixes, and turns."""

import hmac


class CacheSalts:
    """`secret` is one of the server, so that nobody makes the salt of another user."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def of(self, uid: str) -> str:
        """Users share no prefix: how soon a first token comes must not say what others asked.

        The engine also shares its time by it, as one salt is one user.
        """
        return hmac.digest(self._secret, uid.encode(), "sha256").hex()
