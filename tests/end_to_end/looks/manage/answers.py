"""What the server says of users, groups and so on, made of its own structs: a usual day, and a day
on which whoever may choose a word chose the worst one.
"""

from dataclasses import dataclass

import msgspec

from server.api.admin.manage.objects import (
    AdminNotice,
    AdminShare,
    GroupList,
    GroupObject,
    MemberList,
    RunningSetting,
    RunningSettings,
    SharedQuotas,
    ShareList,
    ShownNotice,
    Storage,
)
from server.api.admin.objects import (
    AdminEngine,
    AuditEntryObject,
    AuditPage,
    GroupName,
    ListedSession,
    ListedSessions,
    LiveResponse,
    OwnQuotasObject,
    ResponseTimeline,
    SessionDetails,
    StopWish,
    TokenObject,
    UserDetails,
    UserName,
    UserObject,
    UserPage,
)
from server.protocol.objects import SessionUsage
from tests.end_to_end.looks.stage import FIGURES, NOW
from tests.end_to_end.looks.texts import LONG_WORD

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
AT = int(NOW.timestamp() * 1000)
OPEN_USER, OPEN_GROUP = "usr_Ks1hQpV0x7TnM2ZbW9eRlA", "grp_b8Yc3JtQ5mXv0LrWkPz2fA"
OPEN_SESSION = "ses_Zt4rVnC8mWqXy1HbKs7JdE"
NO_QUOTAS = OwnQuotasObject(None, None, None)


@dataclass(frozen=True)
class Words:
    """What users and admins may choose."""

    names: tuple[str, ...]
    groups: tuple[str, ...]
    titles: tuple[str, ...]
    purposes: tuple[str, ...]
    reasons: tuple[str, ...]
    notice: str
    value: str  # of a setting


USUAL = Words(
    names=("Ada Lovelace", "Grace Hopper", "Alan Turing", "Emmy Noether", "backup-script"),
    groups=("Physics, first year", "Support", "Night shift"),
    titles=("Tides twice a day", "Letter to the harbour master", "", "Ropes and knots"),
    purposes=("laptop", "backup script", ""),
    reasons=("left the company", "", "spam in three chats", ""),
    notice="On Saturday from 10:00 to 10:15 the answers pause: the machine gets another disk.",
    value="demo",
)
HOSTILE = Words(
    names=(
        '<img src=x onerror="alert(1)"> <b>Ada</b>',
        "\u202eecarG\u202c \u200b\u200d\u2066",
        "سلمى بنت عبد الرحمن الفهري",
        LONG_WORD,
        "👩‍👩‍👧‍👦🏴‍☠️🏳️‍🌈 Z̴̛̳̤̪͐̓̚ä̶̪́l̵̡͐g̷̱̈́o\u0007\u001b[31m",
    ),
    groups=("</td></table><script>alert(1)</script>", "\u200b\u200b", f"فريق {LONG_WORD}"),
    titles=("\u2066\u200b\u2069", "W" * 120, "javascript:alert(1) <svg onload=alert(1)>", "   "),
    purposes=("<a href=javascript:alert(1)>click</a>", "\u202egnp.exe", "x" * 100),
    reasons=("\u202eon saw eh\u202c <i>spam</i>", "y" * 200, "مزعج جدا", "one\u0000two\u001b[2J"),
    notice=f"<marquee>Free tokens</marquee> \u202ehttps://evil.example\u202c {LONG_WORD} 🎉 "
    + "إعلان " * 12,
    value="x" * 300,
)


def answers(words: Words) -> dict[str, msgspec.Struct]:
    """By the path below `/v1/admin`, without the query."""
    users, groups = users_of(words), groups_of(words)
    opened = msgspec.structs.asdict(users[0])
    sessions = sessions_of(words)
    return {
        "/sessions": ListedSessions(sessions, None),
        f"/sessions/{OPEN_SESSION}": SessionDetails(sessions[1], {}, [timeline_of(words)]),
        "/users": UserPage(users, [GroupName(one.id, one.name) for one in groups], "2"),
        f"/users/{OPEN_USER}": UserDetails(**opened, tokens=tokens_of(words)),
        f"/users/{OPEN_USER}/storage": Storage(OPEN_USER, 1312, 1312, 24_870, 48_213_004, 12_407),
        "/groups": GroupList(groups, None),
        f"/groups/{OPEN_GROUP}": groups[0],
        f"/groups/{OPEN_GROUP}/members": MemberList(users[:4], None),
        "/audit": AuditPage(entries_of(words), "2"),
        "/shares": ShareList(shares_of(words), None),
        "/notice": ShownNotice(
            AdminNotice("ntc_1", "warning", words.notice, AT + DAY, AT - HOUR, "admin")
        ),
        "/settings": RunningSettings(settings_of(words)),
    }


NOTHING: dict[str, msgspec.Struct] = {
    "/sessions": ListedSessions([], None),
    "/users": UserPage([], [], None),
    "/groups": GroupList([], None),
    "/audit": AuditPage([], None),
    "/shares": ShareList([], None),
    "/notice": ShownNotice(None),
}


LONG_MODEL = "mistral-small-3.2-24b-instruct-2506"


def engines() -> list[AdminEngine]:
    refused = "the certificate is not one for gpu1.example"
    return [
        AdminEngine(
            name=name,
            model=model,
            kind=kind,
            weight=1.0,
            state=state,
            draining=name == "second",
            answers=3,
            sessions=1200,
            moved=0,
            url=url,
            problem=refused if url else None,
            running=3,
            waiting=1,
            kv_blocks=512,
            kv_blocks_free=128,
            exactness=exactness,
        )
        for name, model, kind, state, url, exactness in (
            ("first", "demo", "native", "ready", None, "exact"),
            ("second", "demo", "native", "connecting", None, "exact"),
            ("far-away", "demo", "vllm", "dead", "https://gpu1.example:8000", "tokens"),
            ("first", LONG_MODEL, "native", "ready", None, "exact"),
        )
    ]


def sessions_of(words: Words) -> list[ListedSession]:
    """The first one is answered, the second one open and locked."""
    answer = LiveResponse("resp_1", "in_progress", str(FIGURES["replica"]), 1, 412, 42.0, 12_000)
    return [
        ListedSession(
            id=OPEN_SESSION if number == 1 else f"ses_{number}",
            user=UserName(f"usr_{number}", words.names[number]),
            title=title,
            model="demo",
            state="idle" if number else "in_progress",
            created_at=AT - DAY,
            updated_at=AT - number * 400_000,
            message_count=4,
            usage=SessionUsage(input_tokens=90, output_tokens=412 * number),
            locked=words.reasons[0] if number == 1 else None,
            viewers=number % 3,
            queued=0,
            response=None if number else answer,
        )
        for number, title in enumerate(words.titles)
    ]


def timeline_of(words: Words) -> ResponseTimeline:
    asked = AT - MINUTE
    moments = {"created_at": 0, "started_at": 21, "first_token_at": 180, "done_at": 9100}
    return ResponseTimeline(
        id="resp_2",
        session_id=OPEN_SESSION,
        message_id="msg_2",
        model="demo",
        status="cancelled",
        reason="admin_cancelled",
        tokens=381,
        text_length=1524,
        timeline={name: asked + later for name, later in moments.items()},
        replica=str(FIGURES["replica"]),
        fence=2,
        stop=StopWish("admin", words.reasons[2]),
    )


def users_of(words: Words) -> list[UserObject]:
    ids = [OPEN_USER, *(f"usr_{number}" * 3 for number in range(1, len(words.names)))]
    ages = (3 * MINUTE, 5 * HOUR, 2 * DAY, 40 * DAY, 400 * DAY)
    groups = (OPEN_GROUP, None, OPEN_GROUP, "grp_1", None)
    quotas = (OwnQuotasObject(250_000, None, 2), NO_QUOTAS, NO_QUOTAS, OwnQuotasObject(0, 500, 1))
    return [
        UserObject(
            id=uid,
            name=words.names[number],
            roles=["user", "admin"] if number == 1 else ["user"],
            created_at=AT - ages[number],
            disabled=number == 3,
            group=groups[number],
            quotas=(*quotas, NO_QUOTAS)[number],
        )
        for number, uid in enumerate(ids)
    ]


def tokens_of(words: Words) -> list[TokenObject]:
    first, second, third = words.purposes
    scopes = ["admin", "admin:transcripts", "admin:operate"]
    return [
        TokenObject("tk_1", "token", [], AT - 30 * DAY, None, first),
        TokenObject("tk_2", "token", scopes, AT - 2 * DAY, AT + 28 * DAY, second),
        TokenObject("tk_3", "cookie", [], AT - HOUR, AT + 7 * DAY, third),
    ]


def groups_of(words: Words) -> list[GroupObject]:
    quotas = (
        SharedQuotas(2_000_000, 5000, 20),
        SharedQuotas(None, None, None),
        SharedQuotas(50_000, None, None),
    )
    used = ((212, 1_204_551, 24_000, 3120), (14, 0, 0, 96), (1, 50_000, 0, 4))
    return [
        GroupObject(
            id=(OPEN_GROUP, "grp_1", "grp_2")[number],
            name=name,
            created_at=AT - (number + 1) * 30 * DAY,
            quotas=quotas[number],
            members=used[number][0],
            sessions=used[number][3],
            tokens_today=used[number][1],
            tokens_held=used[number][2],
        )
        for number, name in enumerate(words.groups)
    ]


def entries_of(words: Words) -> list[AuditEntryObject]:
    ada, other = words.names[0], UserName("usr_" + "Zk" * 11, words.names[2])
    rows = (
        ("admin", "admin", "user.update", OPEN_USER, ada, None),
        (OPEN_USER, ada, "share.revoke", "ses_" + "Qm" * 11, None, None),
        ("admin", "admin", "session.evict_and_lock", "ses_" + "Zk" * 11, None, other),
        ("admin", "admin", "group.join", OPEN_GROUP, words.groups[0], UserName(OPEN_USER, ada)),
    )
    addresses = ("192.0.2.14", "2001:db8:85a3::8a2e:370:7334", "192.0.2.14", "")
    return [
        AuditEntryObject(
            id=str(number),
            at=AT - number * HOUR,
            actor=actor,
            action=action,
            target=target,
            reason=words.reasons[number],
            address=addresses[number],
            actor_name=actor_name,
            target_name=target_name,
            user=user,
        )
        for number, (actor, actor_name, action, target, target_name, user) in enumerate(rows)
    ]


def shares_of(words: Words) -> list[AdminShare]:
    return [
        AdminShare(
            f"ses_{number}" * 4,
            UserName(f"usr_{number}", words.names[number]),
            title,
            AT - (number + 1) * 7 * HOUR,
        )
        for number, title in enumerate(words.titles)
    ]


def settings_of(words: Words) -> list[RunningSetting]:
    return [
        RunningSetting("PARLEY_MODEL", words.value, "option", "Name, file or folder of the model."),
        RunningSetting("PARLEY_WORKERS", "2", "environment", "How many web processes there are."),
        RunningSetting("PARLEY_REDIS_URL", "redis://…:…@redis.example:6379/0", "environment", ""),
        RunningSetting(
            "PARLEY_MAX_TOKENS_PER_DAY",
            None,
            "default",
            "Tokens that each user may use a day, `0` for no limit; a user's own goes before.",
        ),
        RunningSetting("PARLEY_ADMIN_TOKEN", "…", "environment", "The built-in admin's token."),
    ]
