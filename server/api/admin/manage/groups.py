"""Groups of users, who share quotas, over HTTP, for admins."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from server.access.audit import changes
from server.api.admin.actions import Admin
from server.api.admin.manage.objects import GroupList, GroupObject, Member, MemberList
from server.api.admin.sessions import Sought, actor_of
from server.api.admin.users import Name, PageQuery, check_name, user_wire
from server.api.rest.operation import Call, Operation, admin_operation, json_response
from server.api.rest.sessions import Cursor, Limit
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError
from sessions.directory.groups import Group, new_group_id
from sessions.directory.users import User
from sessions.model.errors import GroupNotFound, UserNotFound
from sessions.model.ids import is_group_id, is_user_id
from sessions.model.quotas import GroupQuotas, GroupUsage
from sessions.store.store import SessionStore

MAX_QUOTA = 2**53 - 1
Quota = Annotated[int, Meta(ge=0, le=MAX_QUOTA)]


class GroupQuotasBody(Struct, frozen=True):
    """null and 0: no limit."""

    tokens_per_day: Quota | None = None
    sessions: Quota | None = None
    answers: Quota | None = None

    def quotas(self) -> GroupQuotas:
        return GroupQuotas(self.tokens_per_day or 0, self.sessions or 0, self.answers or 0)


class CreateGroupBody(Struct, frozen=True):
    name: Name
    quotas: GroupQuotasBody = GroupQuotasBody()


class UpdateGroupBody(Struct, frozen=True):
    """What is given is changed; `quotas` are replaced together."""

    name: Name | None = None
    quotas: GroupQuotasBody | None = None


class GroupsQuery(Struct, frozen=True):
    """`find`: an id, or a part of the name in any case; those that begin with it come first."""

    limit: Limit = 50
    cursor: Cursor | None = None
    find: Sought | None = None


class AdminGroupOperations:
    """The endpoints."""

    def __init__(self, admin: Admin, store: SessionStore) -> None:
        self._admin = admin
        self._groups = admin.groups
        self._store = store

    def operations(self) -> list[Operation]:
        groups, one = "/v1/admin/groups", "/v1/admin/groups/{gid}"
        member = one + "/members/{uid}"

        return [
            admin_operation(
                "GET",
                groups,
                self.page,
                "Groups with what they may and have used, the newest first",
                query=GroupsQuery,
                answers={200: GroupList},
            ),
            admin_operation(
                "POST",
                groups,
                self.create,
                "A new group, whose members share quotas",
                body=CreateGroupBody,
                answers={201: GroupObject},
            ),
            admin_operation("GET", one, self.read, "One group", answers={200: GroupObject}),
            admin_operation(
                "PATCH",
                one,
                self.update,
                "Change a group's name or quotas",
                body=UpdateGroupBody,
                answers={200: GroupObject},
            ),
            admin_operation(
                "DELETE",
                one,
                self.delete,
                "Remove a group; its members stay users",
                answers={204: None},
            ),
            admin_operation(
                "GET",
                one + "/members",
                self.members,
                "Who is in a group, those who came last first",
                query=PageQuery,
                answers={200: MemberList},
            ),
            admin_operation(
                "PUT",
                member,
                self.join,
                "Make a user a member; they leave the group that they were in",
                answers={200: Member},
            ),
            admin_operation(
                "DELETE", member, self.leave, "Let a member leave the group", answers={204: None}
            ),
        ]

    async def page(self, call: Call) -> Response:
        query: GroupsQuery = call.query
        if query.find:
            groups, number = await self._groups.find(query.find, query.limit)
            found = {"groups": await self._listed(groups), "next_cursor": None, "found": number}
            return json_response(found)
        page = await self._groups.page(query.limit, query.cursor)
        listed = await self._listed(page.groups)
        return json_response({"groups": listed, "next_cursor": page.next_cursor})

    async def create(self, call: Call) -> Response:
        body: CreateGroupBody = to_struct(await call.body(), CreateGroupBody)
        name, quotas, gid = check_name(body.name), body.quotas.quotas(), new_group_id()
        given = {"name": name, "quotas": limits(quotas)}
        await self._note(call, "group.create", gid, changes(given))
        return await self._answer(await self._groups.create(name, quotas, gid=gid), 201)

    async def read(self, call: Call) -> Response:
        return await self._answer(await self._group(call))

    async def update(self, call: Call) -> Response:
        body: UpdateGroupBody = to_struct(await call.body(), UpdateGroupBody)
        group = await self._group(call)
        name = None if body.name is None else check_name(body.name)
        quotas = None if body.quotas is None else body.quotas.quotas()
        given = {"name": name, "quotas": None if quotas is None else limits(quotas)}
        await self._note(call, "group.update", group.gid, changes(given))
        return await self._answer(await self._groups.update(group.gid, name=name, quotas=quotas))

    async def delete(self, call: Call) -> Response:
        group = await self._group(call)
        await self._note(call, "group.delete", group.gid, group.name)
        await self._groups.remove(group.gid)
        return Response(status_code=204)

    # ---- members --------------------------------------------------------------------------------

    async def members(self, call: Call) -> Response:
        group = await self._group(call)
        page = await self._groups.members(group.gid, call.query.limit, call.query.cursor)
        users = [user_wire(user) for user in page.users]
        return json_response({"users": users, "next_cursor": page.next_cursor})

    async def join(self, call: Call) -> Response:
        group, user = await self._group(call), await self._user(call)
        await self._note(call, "group.join", group.gid, user.uid)
        await self._groups.join(group.gid, user.uid)
        await self._admin.count_all(user.uid)
        name = {"id": user.uid, "name": user.name}
        return json_response({"group": group.gid, "user": name})

    async def leave(self, call: Call) -> Response:
        group, user = await self._group(call), await self._user(call)
        if user.group != group.gid:
            raise ApiError("not_found", "this user is no member of that group")
        await self._note(call, "group.leave", group.gid, user.uid)
        await self._groups.leave(group.gid, user.uid)
        return Response(status_code=204)

    # ---- inside ---------------------------------------------------------------------------------

    async def _group(self, call: Call) -> Group:
        """The group that the path names. Raises `GroupNotFound`."""
        gid = call.path("gid")
        if not is_group_id(gid):
            raise GroupNotFound
        return await self._groups.group(gid)

    async def _user(self, call: Call) -> User:
        uid = call.path("uid")
        if not is_user_id(uid):
            raise UserNotFound
        return await self._admin.users.user(uid)

    async def _listed(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        usages = await self._store.budgets.group_usage([group.gid for group in groups])
        return [group_wire(*pair) for pair in zip(groups, usages, strict=True)]

    async def _answer(self, group: Group, status: int = 200) -> Response:
        (usage,) = await self._store.budgets.group_usage([group.gid])
        return json_response(group_wire(group, usage), status)

    async def _note(self, call: Call, action: str, target: str, reason: str) -> None:
        await self._admin.auditor.note(actor_of(call), action, target, reason)


def group_wire(group: Group, usage: GroupUsage) -> dict[str, Any]:
    """The `group` object of the admin's API."""
    return {
        "id": group.gid,
        "name": group.name,
        "created_at": group.created_at,
        "quotas": limits(group.quotas),
        "members": usage.num_members,
        "sessions": usage.num_sessions,
        "tokens_today": usage.tokens_today,
        "tokens_held": usage.tokens_held,
    }


def limits(quotas: GroupQuotas) -> dict[str, int | None]:
    """null is no limit."""
    return {name: most or None for name, most in asdict(quotas).items()}
