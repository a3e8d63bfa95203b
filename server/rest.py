"""Every HTTP operation of a worker; each noun declares its own."""

from starlette.routing import Route

from server.admin import Admin
from server.admin_replicas import AdminReplicaOperations
from server.admin_sessions import AdminSessionOperations
from server.admin_users import AdminUserOperations
from server.openapi import openapi
from server.operations import Doors, Operation, routes_of
from server.rest_copies import CopyOperations
from server.rest_credentials import CredentialOperations
from server.rest_login import LoginOperations
from server.rest_messages import MessageOperations
from server.rest_ops import Ops
from server.rest_pages import Pages
from server.rest_responses import ResponseOperations
from server.rest_sessions import SessionOperations
from server.rest_shares import ShareOperations
from server.services import Services


def operations(doors: Doors) -> list[Operation]:
    """What can be done over HTTP, beside the websocket and the static files."""
    listed: list[Operation] = []
    listed += [
        *Pages(doors).operations(),
        *LoginOperations(doors).operations(),
        *Ops(doors, lambda: openapi(listed)).operations(),
        *CredentialOperations(doors).operations(),
        *SessionOperations(doors).operations(),
        *MessageOperations(doors).operations(),
        *ResponseOperations(doors).operations(),
        *CopyOperations(doors).operations(),
        *ShareOperations(doors).operations(),
        *admin_operations(doors.services),
    ]
    return listed


def admin_operations(services: Services) -> list[Operation]:
    """What an admin can do beyond that, under `/v1/admin`."""
    admin = Admin(services)
    return [
        *AdminSessionOperations(admin, services.store).operations(),
        *AdminUserOperations(admin, services.store).operations(),
        *AdminReplicaOperations(admin, services.store).operations(),
    ]


def routes(doors: Doors) -> list[Route]:
    """The routes of all operations."""
    return routes_of(operations(doors), doors)
