"""What users keep and have used today, beside what each may, over HTTP, for admins."""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from server.access.identities import BUILT_IN
from server.api.admin.actions import Admin
from server.api.admin.manage.objects import UsedQuotas
from server.api.admin.users import PageQuery
from server.api.rest.operation import Access, Call, Operation, json_response
from sessions.directory.users import User
from sessions.model.quotas import OwnQuotas
from sessions.store.store import SessionStore


class AdminQuotaOperations:
    """The endpoint. `max_answers`: at a time, as the setting says; 0: any number."""

    def __init__(self, admin: Admin, store: SessionStore, max_answers: int) -> None:
        self._admin = admin
        self._store = store
        self._max_answers = max_answers

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/admin/quotas",
                access=Access.ADMIN,
                endpoint=self.page,
                summary="What users keep and have used today, beside what they may",
                query=PageQuery,
                answers={200: UsedQuotas},
            ),
        ]

    async def page(self, call: Call) -> Response:
        page = await self._admin.users.page(call.query.limit, call.query.cursor)
        users = list(page.users)
        if call.query.cursor is None:  # those that are built in come first
            users = [*(User(uid, one.name, (), 0) for uid, one in BUILT_IN.items()), *users]
        usages = await self._store.budgets.usage([user.uid for user in users])
        groups = await self._groups({user.group for user in users if user.group})
        rows = [
            {
                "user": {"id": user.uid, "name": user.name},
                "sessions": usage.num_sessions,
                "tokens_today": usage.tokens_today,
                "limits": self._limits(user.quotas),
                "group": groups.get(user.group),
            }
            for user, usage in zip(users, usages, strict=True)
        ]
        limits = nulled(asdict(self._store.context.quotas))
        return json_response({"limits": limits, "quotas": rows, "next_cursor": page.next_cursor})

    def _limits(self, own: OwnQuotas) -> dict[str, int | None]:
        """What is a user's own, and the settings' where nothing is."""
        settings = self._store.context.quotas
        of_all = OwnQuotas(settings.tokens_per_day, settings.sessions_per_user, self._max_answers)
        given = {name: most for name, most in asdict(own).items() if most is not None}
        return nulled(asdict(of_all) | given)

    async def _groups(self, gids: Collection[str]) -> dict[str, dict[str, Any]]:
        """What these groups may and have used, by their ids."""
        groups = await self._admin.groups.groups(gids)
        usages = await self._store.budgets.group_usage([group.gid for group in groups])
        return {
            group.gid: {
                "id": group.gid,
                "name": group.name,
                "limits": nulled(asdict(group.quotas)),
                "sessions": usage.num_sessions,
                "tokens_today": usage.tokens_today,
                "tokens_held": usage.tokens_held,
            }
            for group, usage in zip(groups, usages, strict=True)
        }


def nulled(limits: dict[str, int]) -> dict[str, int | None]:
    """0 is no limit, and so is null on the wire."""
    return {name: most or None for name, most in limits.items()}
