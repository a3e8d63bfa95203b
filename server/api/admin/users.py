"""Users and their tokens over HTTP, for admins.

A token is in the answer that makes it, once; nobody can read it again. An admin gives no right that
their own credential does not have.
"""

import time
from dataclasses import asdict
from hashlib import sha256
from typing import Annotated, Any

import orjson
from msgspec import Meta, Struct
from starlette.responses import Response

from server.access.audit import TRANSCRIPTS, Actor, changes
from server.access.identities import ADMIN_SCOPES
from server.api.admin.actions import Admin
from server.api.admin.objects import NewToken, NewUser, Revoked, UserDetails, UserPage
from server.api.admin.sessions import actor_of
from server.api.rest.objects import LoginCode
from server.api.rest.operation import (
    OPTIONAL_KEY,
    Call,
    Operation,
    admin_operation,
    json_response,
    optional_key,
)
from server.api.rest.sessions import Cursor, Limit
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError, invalid_field
from server.protocol.titles import VISIBLE, given_line, needed_line
from sessions.directory.credentials import Credential, digest_of, expiry_of
from sessions.directory.users import ROLES, User, new_user_id
from sessions.model.errors import UserNotFound
from sessions.model.ids import derived_user_id, is_user_id
from sessions.model.quotas import OwnQuotas
from sessions.store.store import SessionStore

MAX_NAME_CHARACTERS = 100
MAX_LIFETIME_SECONDS = 10 * 365 * 86_400
MAX_NAMESAKES = 20
TOKEN_ID_CHARACTERS = 16  # of the digest: enough to name one of a user's few tokens

# What msgspec lets through and we refuse then is declared all the same, for `/openapi.json`.
Name = Annotated[
    str,
    Meta(max_length=MAX_NAME_CHARACTERS, extra_json_schema={"minLength": 1, "pattern": VISIBLE}),
]
Role = Annotated[str, Meta(max_length=32, extra_json_schema={"enum": list(ROLES)})]
Scope = Annotated[str, Meta(max_length=32, extra_json_schema={"enum": list(ADMIN_SCOPES)})]
Roles = Annotated[tuple[Role, ...], Meta(max_length=8)]
Scopes = Annotated[tuple[Scope, ...], Meta(max_length=8)]
Lifetime = Annotated[int, Meta(ge=1, le=MAX_LIFETIME_SECONDS)]
Purpose = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]
OwnQuota = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class OwnQuotasBody(Struct, frozen=True):
    """null: the server's setting holds; 0: no limit."""

    tokens_per_day: OwnQuota | None = None
    sessions: OwnQuota | None = None
    answers: OwnQuota | None = None


class PageQuery(Struct, frozen=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class CreateUserBody(Struct, frozen=True):
    """`scopes`, `expires_in_s` and `purpose` are those of the user's first token."""

    name: Name
    roles: Roles = ("user",)
    scopes: Scopes = ()
    expires_in_s: Lifetime | None = None
    purpose: Purpose = ""


class UpdateUserBody(Struct, frozen=True):
    """What is given is changed; open connections end if roles do, or with `disabled`, and with that
    the user's answers are stopped.

    `quotas` are replaced together.
    """

    name: Name | None = None
    roles: Roles | None = None
    disabled: bool | None = None
    quotas: OwnQuotasBody | None = None


class CreateTokenBody(Struct, frozen=True):
    """`purpose`: what the token is for, as admins see it beside the others."""

    scopes: Scopes = ()
    expires_in_s: Lifetime | None = None
    purpose: Purpose = ""


class AdminUserOperations:
    """The endpoints."""

    def __init__(self, admin: Admin, store: SessionStore) -> None:
        self._admin = admin
        self._users = admin.users
        self._credentials = admin.credentials
        self._store = store

    def operations(self) -> list[Operation]:
        users, one = "/v1/admin/users", "/v1/admin/users/{uid}"

        return [
            admin_operation(
                "GET",
                users,
                self.page,
                "Every user, the newest first",
                query=PageQuery,
                answers={200: UserPage},
            ),
            admin_operation(
                "POST",
                users,
                self.create,
                "A new user with a token, which is shown this once",
                headers=(OPTIONAL_KEY,),
                body=CreateUserBody,
                answers={201: NewUser, 200: NewUser},
            ),
            admin_operation(
                "GET", one, self.read, "One user with their tokens", answers={200: UserDetails}
            ),
            admin_operation(
                "PATCH",
                one,
                self.update,
                "Change a user's name, roles or quotas, or keep them out",
                body=UpdateUserBody,
                answers={200: UserDetails},
            ),
            admin_operation(
                "DELETE",
                one,
                self.delete,
                "Remove a user with all their sessions and credentials",
                answers={204: None},
            ),
            admin_operation(
                "POST",
                one + "/tokens",
                self.create_token,
                "Another token for a user, which is shown this once",
                scope=TRANSCRIPTS,  # logging in as the user shows what the user wrote
                body=CreateTokenBody,
                answers={201: NewToken},
            ),
            admin_operation(
                "DELETE",
                one + "/tokens",
                self.revoke_all,
                "Revoke every token of a user and log their browsers out",
                answers={200: Revoked},
            ),
            admin_operation(
                "DELETE",
                one + "/tokens/{token_id}",
                self.revoke,
                "Revoke one token or cookie of a user",
                answers={204: None},
            ),
            admin_operation(
                "POST",
                one + "/login-codes",
                self.create_login_code,
                "A one-time code for a login URL of a user",
                scope=TRANSCRIPTS,
                answers={201: LoginCode},
            ),
        ]

    # ---- users ----------------------------------------------------------------------------------

    async def page(self, call: Call) -> Response:
        page = await self._users.page(call.query.limit, call.query.cursor)
        gids = {user.group for user in page.users if user.group}
        groups = await self._admin.groups.groups(gids)
        listed = {
            "users": [user_wire(user) for user in page.users],
            "groups": [{"id": group.gid, "name": group.name} for group in groups],
        }
        return json_response({**listed, "next_cursor": page.next_cursor})

    async def create(self, call: Call) -> Response:
        body: CreateUserBody = to_struct(await call.body(), CreateUserBody)
        actor = actor_of(call)
        roles, scopes = check_roles(body.roles), check_scopes(body.scopes, body.roles, actor)
        name, purpose = check_name(body.name), given_line("purpose", body.purpose)
        key = optional_key(call)
        uid = new_user_id() if key is None else derived_user_id(actor.user.uid, key)
        await self._admin.auditor.note(
            actor, "user.create", uid, f"{name}: {' '.join((*roles, *scopes))}"
        )
        namesakes = [one for one in await self._admin.names.same(name) if one != uid]
        now = int(time.time() * 1000)
        expires_at = expiry_of(body.expires_in_s, now)
        token = await self._credentials.prepare_token(
            uid, now, expires_at, scopes=scopes, purpose=purpose
        )
        asked = orjson.dumps([name, roles, scopes, body.expires_in_s, purpose])
        user, before = await self._users.create_once(
            uid,
            name,
            roles,
            content=sha256(asked).hexdigest(),
            digest=digest_of(token),
            expires_at=expires_at,
        )
        await self._credentials.keep_token(token, expires_at)
        for digest in before:  # of tokens that perhaps nobody has got
            await self._credentials.revoke_digest(digest)
        wire = {**user_wire(user), "scopes": list(scopes), "token": token}
        wire["namesakes"] = namesakes[:MAX_NAMESAKES]
        return json_response(wire, 200 if before else 201)

    async def read(self, call: Call) -> Response:
        user = await self._user(call)
        return json_response(await self._details(user))

    async def update(self, call: Call) -> Response:
        body: UpdateUserBody = to_struct(await call.body(), UpdateUserBody)
        user = await self._user(call)
        name = None if body.name is None else check_name(body.name)
        roles = None if body.roles is None else check_roles(body.roles)
        quotas = None if body.quotas is None else own_quotas(body.quotas)
        given: dict[str, Any] = {"name": name, "roles": roles, "disabled": body.disabled}
        given["quotas"] = None if quotas is None else asdict(quotas)
        await self._admin.auditor.note(actor_of(call), "user.update", user.uid, changes(given))
        changed = await self._users.update(
            user.uid, name=name, roles=roles, disabled=body.disabled, quotas=quotas
        )
        self._store.allowances.forget()
        if body.disabled:
            await self._admin.stop_all(user.uid)
        elif quotas is not None:
            await self._admin.count_all(user.uid)
        return json_response(await self._details(changed))

    async def delete(self, call: Call) -> Response:
        user = await self._user(call)
        await self._admin.auditor.note(actor_of(call), "user.delete", user.uid, user.name)
        await self._admin.delete_user(user.uid)
        return Response(status_code=204)

    # ---- their credentials ----------------------------------------------------------------------

    async def create_token(self, call: Call) -> Response:
        body: CreateTokenBody = to_struct(await call.body(), CreateTokenBody)
        user, actor = await self._user(call), actor_of(call)
        scopes = check_scopes(body.scopes, user.roles, actor)
        purpose = given_line("purpose", body.purpose)
        reason = " ".join((*scopes, purpose)).strip()
        await self._admin.auditor.note(actor, "token.create", user.uid, reason)
        token = await self._credentials.create_token(
            user.uid, body.expires_in_s, scopes=scopes, purpose=purpose
        )
        try:
            await self._users.user(user.uid)
        except UserNotFound:  # deleted meanwhile: nothing of them stays
            await self._credentials.revoke(token)
            raise
        made = await self._credentials.lookup(token)
        wire = {"user_id": user.uid, "scopes": list(scopes), "token": token, "purpose": purpose}
        return json_response({**wire, "expires_at": made and made.expires_at}, 201)

    async def revoke_all(self, call: Call) -> Response:
        user = await self._user(call)
        await self._admin.auditor.note(actor_of(call), "token.revoke_all", user.uid)
        return json_response({"revoked": await self._credentials.revoke_all(user.uid)})

    async def revoke(self, call: Call) -> Response:
        user, token_id = await self._user(call), call.path("token_id")
        for credential in await self._credentials.of_user(user.uid):
            if credential.digest[:TOKEN_ID_CHARACTERS] == token_id:
                await self._admin.auditor.note(actor_of(call), "token.revoke", user.uid, token_id)
                await self._credentials.revoke_digest(credential.digest)
                return Response(status_code=204)
        raise ApiError("not_found", "no such token")

    async def create_login_code(self, call: Call) -> Response:
        user = await self._user(call)
        await self._admin.auditor.note(actor_of(call), "login_code.create", user.uid)
        assert call.user.credential is not None
        code = await self._credentials.create_login_code(user.uid, call.user.credential)
        return json_response({"code": code, "path": f"/login?code={code}"}, 201)

    # ---- inside ---------------------------------------------------------------------------------

    async def _user(self, call: Call) -> User:
        """The user that the path names. Raises `UserNotFound`."""
        uid = call.path("uid")
        if not is_user_id(uid):
            raise UserNotFound
        return await self._users.user(uid)

    async def _details(self, user: User) -> dict[str, Any]:
        credentials = await self._credentials.of_user(user.uid)
        return {**user_wire(user), "tokens": [token_wire(one) for one in credentials]}


def user_wire(user: User) -> dict[str, Any]:
    """The `user` object of the admin's API."""
    return {
        "id": user.uid,
        "name": user.name,
        "roles": list(user.roles),
        "created_at": user.created_at,
        "disabled": user.disabled,
        "group": user.group or None,
        "quotas": asdict(user.quotas),
    }


def token_wire(credential: Credential) -> dict[str, Any]:
    """What may be known of a token: not the token."""
    return {
        "id": credential.digest[:TOKEN_ID_CHARACTERS],
        "kind": credential.kind,
        "scopes": list(credential.scopes),
        "created_at": credential.created_at,
        "expires_at": credential.expires_at,
        "purpose": credential.purpose,
    }


def own_quotas(body: OwnQuotasBody) -> OwnQuotas:
    return OwnQuotas(body.tokens_per_day, body.sessions, body.answers)


def check_name(name: str) -> str:
    """One line that can be seen. Raises `ApiError`."""
    return needed_line("name", name, "a name is needed")


def check_roles(roles: tuple[str, ...]) -> tuple[str, ...]:
    """Known roles, each once. Raises `ApiError`."""
    if unknown := set(roles) - set(ROLES):
        raise invalid_field("roles", f"no such role: {min(unknown)}; there are {', '.join(ROLES)}")
    return tuple(role for role in ROLES if role in roles)


def check_scopes(scopes: tuple[str, ...], roles: tuple[str, ...], actor: Actor) -> tuple[str, ...]:
    """Known scopes, each once, that the user can use and the actor may give. Raises `ApiError`."""
    if unknown := set(scopes) - set(ADMIN_SCOPES):
        known = ", ".join(ADMIN_SCOPES)
        raise invalid_field("scopes", f"no such scope: {min(unknown)}; there are {known}")
    if scopes and "admin" not in roles:
        raise invalid_field("scopes", "these scopes need the role admin")
    if not set(scopes) <= set(actor.user.scopes):
        raise ApiError("forbidden", "nobody can give a scope that they lack", param="scopes")
    return tuple(scope for scope in ADMIN_SCOPES if scope in scopes)
