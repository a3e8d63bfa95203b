"""`Identities`: the user of a credential, from a record that is at most a few seconds old.

Rights end while sockets are open: a token is revoked or expires, a user is disabled or gets another
role. Every worker hears of it over Redis and checks at once; since a message may be lost, it also
checks the credentials of all its open connections every few seconds, in one pipeline. Either way a
connection that lost its rights is closed within five seconds. While Redis is unavailable, open
connections keep the rights that were known last, and no new one is accepted.
"""

import asyncio
import contextlib
import hmac
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import structlog

from server.protocol.errors import ApiError
from sessions.directory.credentials import Credential, Credentials, digest_of
from sessions.directory.users import User as StoredUser
from sessions.directory.users import Users
from sessions.model.errors import StoreUnavailable
from sessions.model.events import LiveFrame, LivePayload

logger = structlog.get_logger("server")

CACHE_SECONDS = 3.0  # a record so young is not read again for a new request
RECORD_SECONDS = 5.0  # no frame is handled by an older one
CHECK_SECONDS = 1.0  # how often open connections are looked at; with the next line: 3 s at most
RECHECK_SECONDS = 2.0
TOUCH_SECONDS = 300.0  # how often the use of a cookie is noted
MAX_KNOWN = 10_000  # besides the credentials of open connections, which are needed again at once
CHECKED_PER_TURN = 50  # credentials, in 2 to 3 ms: then others have their turn
EXPIRIES_PER_TURN = 1000

USED_LOGIN_CODE = "this login link was used already, is too old, or was taken back"
OLD_LOGIN_CODE = "this login link was made by an older version of Parley"


@dataclass(frozen=True, slots=True)
class User:
    """Who is asking. `credential` is what they came in with, and no part of who they are."""

    uid: str
    name: str
    roles: tuple[str, ...] = ("user",)
    scopes: tuple[str, ...] = ()
    credential: Credential | None = field(default=None, compare=False, repr=False)

    @property
    def is_admin(self) -> bool:
        return "admin" in self.roles

    def may(self, scope: str) -> bool:
        """Whether an admin's credential carries this scope; nobody else's ever does."""
        return self.is_admin and scope in self.scopes


ADMIN_SCOPES = ("admin", "admin:transcripts", "admin:operate")
LOCAL_USER = User("local", "local")
ADMIN_USER = User("admin", "admin", ("user", "admin"), ADMIN_SCOPES)
BUILT_IN = {user.uid: user for user in (LOCAL_USER, ADMIN_USER)}


@dataclass(frozen=True, slots=True, eq=False)
class _Holder:
    """An open connection, and how to end it with an error's code."""

    user: User
    end: Callable[[ApiError], None]


class UserDisabled(ApiError):
    """`forbidden`: the credential is good, and no other one of this user would be better."""

    def __init__(self) -> None:
        super().__init__("forbidden", "an admin has disabled this user")


@dataclass(frozen=True, slots=True)
class _Known:
    """What a credential stood for when the question was sent."""

    at: float
    user: User


class Identities:
    """Of one worker. Refusals are `ApiError`: `token_invalid`, `token_expired` or `forbidden`."""

    def __init__(
        self, credentials: Credentials, users: Users, *, token: str, admin_token: str
    ) -> None:
        self._credentials = credentials
        self._users = users
        self._configured = {
            digest_of(raw): _with_credential(user, digest_of(raw))
            for raw, user in ((token, LOCAL_USER), (admin_token, ADMIN_USER))
        }
        self._known: dict[str, _Known] = {}
        self._touched: dict[str, float] = {}
        self._holders: dict[str, set[_Holder]] = {}
        self._due: set[str] = set()  # digests that were said to have changed
        self._wake = asyncio.Event()

    # ---- who is it ------------------------------------------------------------------------------

    async def of_token(self, raw: str) -> User:
        """The user of a bearer token."""
        digest = digest_of(raw)
        for configured, user in self._configured.items():
            if hmac.compare_digest(configured, digest):
                return user
        return await self._find(digest, "token", "the bearer token is not valid")

    async def of_cookie(self, raw: str, *, is_of_older_version: bool = False) -> User:
        """The user of a cookie, without any role or scope of an admin.

        `is_of_older_version`: it came under a name that only cookies of older versions have.
        """
        digest = digest_of(raw)
        refusal = "the cookie is not valid any more; log in again"
        user = await self._find(digest, "cookie", refusal)
        is_old = user.credential is not None and user.credential.minted_by is None
        if is_of_older_version and not is_old:
            raise ApiError("token_invalid", refusal)
        await self._touch(digest)
        return user

    async def of_login_code(self, code: str) -> User:
        """Whom a login code lets in; it is not used up."""
        found = await self._credentials.login_code(code)
        if found is not None and found.minted_by is None:
            raise ApiError("token_invalid", OLD_LOGIN_CODE)
        if found is None or not await self._counts(found.minted_by or ""):
            raise ApiError("token_invalid", USED_LOGIN_CODE)
        user = await self._of_uid(found.uid)
        if user is None:
            raise ApiError("token_invalid", USED_LOGIN_CODE)
        return user

    async def redeem_login_code(self, code: str, most_seconds: float) -> tuple[str, float]:
        """The cookie for a login code, which then works no more, and its lifetime in seconds."""
        user = await self.of_login_code(code)
        made = await self._credentials.redeem_login_code(code, most_seconds)
        if made is None:
            raise ApiError("token_invalid", USED_LOGIN_CODE)
        if await self._of_uid(user.uid) is None:  # they went meanwhile, and nothing of them stays
            await self._credentials.revoke(made[0])
            raise ApiError("token_invalid", USED_LOGIN_CODE)
        return made

    async def of_ticket(self, raw: str) -> User:
        """The user of a websocket ticket, which then works no more."""
        credential = await self._credentials.redeem_ticket(raw)
        if credential is None:
            raise ApiError("token_invalid", "the ticket is not valid any more")
        if (user := self._configured.get(credential.digest)) is not None:
            return user
        return await self._find(credential.digest, credential.kind, "the ticket is not valid")

    async def confirm(self, user: User) -> None:
        """Check again the user who was accepted when the request began.

        The record is as young as for a new request. Raises `ApiError`, also when the user's rights
        are others by now, and `StoreUnavailable`.
        """
        credential = user.credential
        if credential is None or credential.digest in self._configured:
            return
        refusal = "the credential is not valid any more"
        found = await self._find(credential.digest, credential.kind, refusal)
        if _rights(found) != _rights(user):
            raise _rights_changed()

    async def is_known(self, uid: str) -> bool:
        """Whether somebody has this id and may come in, by Redis and not by memory."""
        return await self._of_uid(uid) is not None

    async def _of_uid(self, uid: str) -> User | None:
        """The user of this id, if they may come in, by Redis and not by memory."""
        if uid in BUILT_IN:
            return BUILT_IN[uid]
        record = (await self._users.users([uid])).get(uid)
        if record is None or record.disabled:
            return None
        return User(record.uid, record.name, record.roles)

    async def _counts(self, digest: str) -> bool:
        """Whether this credential works now, by Redis and not by memory."""
        return digest in self._configured or isinstance((await self._read([digest]))[0], User)

    async def _find(self, digest: str, kind: str, refusal: str) -> User:
        known = self._known.get(digest)
        if known is None or time.monotonic() - known.at > CACHE_SECONDS:
            (found,) = await self._read([digest])
            if isinstance(found, ApiError):
                raise found
        else:
            found = known.user
        if found.credential is None or found.credential.kind != kind:
            raise ApiError("token_invalid", refusal)
        if found.credential.has_expired:
            raise _expired()
        return found

    async def _read(self, digests: list[str]) -> list[User | ApiError]:
        """What these credentials stand for now; the good ones are remembered for a moment."""
        at = time.monotonic()
        credentials = await self._credentials.lookup_digests(digests)
        stored = await self._users.users(c.uid for c in credentials if c is not None)
        minters = await self._working(c.minted_by for c in credentials if c and c.minted_by)
        found = [_judge(credential, stored, minters) for credential in credentials]
        for digest, user in zip(digests, found, strict=True):
            if isinstance(user, User):
                if len(self._known) >= MAX_KNOWN + len(self._holders):
                    self._known.clear()
                self._known[digest] = _Known(at, user)
            else:
                self._known.pop(digest, None)
        return found

    async def _working(self, digests: Iterable[str]) -> set[str]:
        """Those of these tokens that work."""
        asked = set(digests)
        working = asked & self._configured.keys()
        if stored := list(asked - working):
            for credential in await self._credentials.lookup_digests(stored):
                if credential is not None and not credential.has_expired:
                    working.add(credential.digest)
        return working

    async def _touch(self, digest: str) -> None:
        now = time.monotonic()
        if now - self._touched.get(digest, -TOUCH_SECONDS) < TOUCH_SECONDS:
            return
        if len(self._touched) >= MAX_KNOWN:
            self._touched.clear()
        self._touched[digest] = now
        await self._credentials.touch([digest])

    # ---- open connections -----------------------------------------------------------------------

    @contextlib.contextmanager
    def holding(self, user: User, end: Callable[[ApiError], None]) -> Iterator[None]:
        """For as long as a connection is open: `end` is called once its rights are others."""
        holder = _Holder(user, end)
        digest = user.credential.digest if user.credential is not None else ""
        self._holders.setdefault(digest, set()).add(holder)
        try:
            yield
        finally:
            holders = self._holders[digest]
            holders.discard(holder)
            if not holders:
                del self._holders[digest]

    async def still_holds(self, user: User) -> bool:
        """Whether the user of an open connection may go on, by a record that is 5 s old at most.

        The record is young already unless Redis was away. False: the connection is being ended.
        """
        digest = user.credential.digest if user.credential is not None else ""
        if not digest or digest in self._configured:
            return True
        known = self._known.get(digest)
        if known is None or time.monotonic() - known.at > RECORD_SECONDS:
            try:
                await self._check([digest])
            except StoreUnavailable:
                return True
            known = self._known.get(digest)
        return known is not None and _rights(known.user) == _rights(user)

    def on_announcement(self, payload: LivePayload) -> None:
        """A message to all workers says that something was revoked or changed."""
        if not isinstance(payload, LiveFrame):
            return
        match payload.data:
            case {"type": "revoked", "digest": str(digest)}:
                self._look_again([digest, *self._digests(lambda user: _minter(user) == digest)])
            case {"type": "user_changed", "uid": str(uid)}:
                self._look_again(self._digests(lambda user: user.uid == uid))

    def on_resync(self) -> None:
        """Messages were lost for a while: anything may have changed."""
        self._look_again([*self._holders, *self._known])

    def _digests(self, is_meant: Callable[[User], bool]) -> list[str]:
        """The credentials of such users that are remembered or held open here."""
        known = [digest for digest, one in self._known.items() if is_meant(one.user)]
        held = [d for d, holders in self._holders.items() if any(is_meant(h.user) for h in holders)]
        return [*known, *held]

    def _look_again(self, digests: Iterable[str]) -> None:
        for digest in digests:
            self._known.pop(digest, None)
            if digest in self._holders:
                self._due.add(digest)
        self._wake.set()

    async def watch_forever(self) -> None:
        """Check open connections' rights: at once on notice, else every few seconds."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            await self._end_expired()
            noticed, self._due = self._due, set()
            due = [*noticed, *(self._stale() - noticed)]
            try:
                # In pieces: those who came at once would be checked at once, for as long as 0.5 s.
                for start in range(0, len(due), CHECKED_PER_TURN):
                    await self._check(due[start : start + CHECKED_PER_TURN])
            except StoreUnavailable:
                self._due.update(due)
                await asyncio.sleep(CHECK_SECONDS)  # the event may be set again by what is due

    def _stale(self) -> set[str]:
        before = time.monotonic() - RECHECK_SECONDS
        return {
            digest
            for digest in self._holders
            if (known := self._known.get(digest)) is None or known.at < before
        }

    async def _check(self, digests: list[str]) -> None:
        """Read these credentials again and end the connections whose rights have changed."""
        digests = [d for d in digests if d and d not in self._configured]
        if not digests:
            return
        for digest, found in zip(digests, await self._read(digests), strict=True):
            for holder in list(self._holders.get(digest, ())):
                if isinstance(found, ApiError):
                    holder.end(found)
                elif _rights(found) != _rights(holder.user):
                    holder.end(_rights_changed())
                elif found.credential is not None and found.credential.kind == "cookie":
                    await self._touch(digest)

    async def _end_expired(self) -> None:
        """Needs no Redis: this clock knows when a credential ends."""
        for number, holders in enumerate(list(self._holders.values()), 1):
            if number % EXPIRIES_PER_TURN == 0:
                await asyncio.sleep(0)
            for holder in list(holders):
                if holder.user.credential is not None and holder.user.credential.has_expired:
                    holder.end(_expired())


def _judge(
    credential: Credential | None, stored: Mapping[str, StoredUser], minters: Container[str]
) -> User | ApiError:
    """The user that a stored credential stands for, or why it stands for none.

    `minters` are the tokens that work, among those that cookies depend on.
    """
    if credential is None or (credential.minted_by and credential.minted_by not in minters):
        return ApiError("token_invalid", "the credential is not valid")
    if credential.has_expired:
        return _expired()
    record = stored.get(credential.uid)
    if credential.uid in BUILT_IN:
        user = replace(BUILT_IN[credential.uid], scopes=credential.scopes, credential=credential)
    elif record is None:
        return ApiError("token_invalid", "the credential is not valid")
    elif record.disabled:
        return UserDisabled()
    else:
        user = User(record.uid, record.name, record.roles, credential.scopes, credential)
    if credential.kind == "cookie":  # it travels by itself, so it never makes an admin
        roles = tuple(role for role in user.roles if role != "admin")
        return replace(user, roles=roles, scopes=())
    return user


def _minter(user: User) -> str | None:
    return user.credential.minted_by if user.credential is not None else None


def _rights(user: User) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return user.roles, user.scopes


def _rights_changed() -> ApiError:
    return ApiError("token_invalid", "the user's rights have changed")


def _expired() -> ApiError:
    return ApiError("token_expired", "the credential has expired")


def _with_credential(user: User, digest: str) -> User:
    credential = Credential(user.uid, user.scopes, "token", None, digest)
    return replace(user, credential=credential)
