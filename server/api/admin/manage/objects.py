"""What the answers of these operations hold; the OpenAPI document is made from it."""

from msgspec import Struct

from server.api.admin.objects import UserName, UserObject
from server.protocol.objects import Count, Milliseconds


class SharedQuotas(Struct, frozen=True):
    """What the members of a group share; null means no limit."""

    tokens_per_day: Count | None
    sessions: Count | None
    answers: Count | None


class GroupObject(Struct, frozen=True):
    """`tokens_held`: those of the day that running answers may still use."""

    id: str
    name: str
    created_at: Milliseconds
    quotas: SharedQuotas
    members: Count
    sessions: Count
    tokens_today: Count
    tokens_held: Count


class GroupList(Struct, frozen=True, omit_defaults=True):
    """`found`: how many groups have such a name, where one was looked for."""

    groups: list[GroupObject]
    next_cursor: str | None
    found: Count | None = None


class MemberList(Struct, frozen=True):
    users: list[UserObject]
    next_cursor: str | None


class Member(Struct, frozen=True):
    group: str
    user: UserName


class AdminNotice(Struct, frozen=True):
    """`by`: whose notice it is; users are not told."""

    id: str
    level: str
    text: str
    until: Milliseconds
    created_at: Milliseconds
    by: str


class ShownNotice(Struct, frozen=True):
    notice: AdminNotice | None


class AdminShare(Struct, frozen=True):
    """A share link. `title` is null without the scope for transcripts."""

    session_id: str
    user: UserName
    title: str | None
    shared_at: Milliseconds


class ShareList(Struct, frozen=True):
    shares: list[AdminShare]
    next_cursor: str | None


class Storage(Struct, frozen=True):
    """`messages` and `bytes` are those of the `counted` newest sessions; `tokens_today` are kept
    beside them, for the user's quota.
    """

    user_id: str
    sessions: Count
    counted: Count
    messages: Count
    bytes: Count
    tokens_today: Count


class RunningSetting(Struct, frozen=True):
    """`origin`: `default`, `environment` or `option`."""

    name: str
    value: str | None
    origin: str
    about: str


class RunningSettings(Struct, frozen=True):
    settings: list[RunningSetting]


class WorkerLogLevel(Struct, frozen=True):
    id: str
    level: str


class Restarting(Struct, frozen=True):
    id: str


class BusyUser(Struct, frozen=True):
    """`answers` that run or wait for the engine."""

    user: UserName
    connections: Count
    answers: Count


class BusyAddress(Struct, frozen=True):
    """`refused`: connections of the present minute."""

    address: str
    connections: Count
    refused: Count


class BusiestObject(Struct, frozen=True):
    """As the workers said half a second ago, each of a few; whoever is most first."""

    users: list[BusyUser]
    addresses: list[BusyAddress]


class QuotaLimits(Struct, frozen=True):
    """The same for every user; null means unlimited."""

    sessions_per_user: Count | None
    messages_per_session: Count | None
    bytes_per_session: Count | None
    tokens_per_day: Count | None


class UserLimits(Struct, frozen=True):
    """What one user may: their own quotas, where they have some, else the settings'.

    null means unlimited. `answers` at a time.
    """

    tokens_per_day: Count | None
    sessions: Count | None
    answers: Count | None


class UsedGroup(Struct, frozen=True):
    """What all members may together, and have used; `tokens_held` running answers may still use."""

    id: str
    name: str
    limits: UserLimits
    sessions: Count
    tokens_today: Count
    tokens_held: Count


class UsedQuota(Struct, frozen=True):
    """`limits` hold for this user alone; those of `group` besides."""

    user: UserName
    sessions: Count
    tokens_today: Count
    limits: UserLimits
    group: UsedGroup | None


class UsedQuotas(Struct, frozen=True):
    limits: QuotaLimits
    quotas: list[UsedQuota]
    next_cursor: str | None
