"""Every HTTP operation of a worker; each noun declares its own."""

from starlette.routing import Route

from server.api.account.credentials import CredentialOperations
from server.api.account.presets import PresetOperations
from server.api.admin.actions import Admin
from server.api.admin.adapters import AdminAdapterOperations
from server.api.admin.engines import AdminEngineOperations
from server.api.admin.health import AdminHealthOperations
from server.api.admin.manage.audit import AdminAuditOperations
from server.api.admin.manage.busiest import AdminBusiestOperations
from server.api.admin.manage.groups import AdminGroupOperations
from server.api.admin.manage.notices import AdminNoticeOperations
from server.api.admin.manage.quotas import AdminQuotaOperations
from server.api.admin.manage.settings import AdminSettingsOperations
from server.api.admin.manage.shares import AdminShareOperations
from server.api.admin.manage.workers import AdminWorkerOperations
from server.api.admin.models import AdminModelOperations
from server.api.admin.sessions import AdminSessionOperations
from server.api.admin.users import AdminUserOperations
from server.api.admin.workers import AdminReplicaOperations
from server.api.conversations.operations import ConversationOperations
from server.api.login.operations import LoginOperations
from server.api.openai.chat import chat_completions
from server.api.openai.completions import completions
from server.api.openai.embeddings import Embeddings
from server.api.responses.operations import Responses
from server.api.rest.copies import CopyOperations
from server.api.rest.messages import MessageOperations
from server.api.rest.openapi import openapi
from server.api.rest.operation import ApiContext, Operation, routes_of
from server.api.rest.ops import Ops
from server.api.rest.pages import Pages
from server.api.rest.queues import QueueOperations
from server.api.rest.responses import ResponseOperations
from server.api.rest.sessions import SessionOperations
from server.api.shares.operations import ShareOperations
from server.api.tools.operations import ToolOperations


def operations(context: ApiContext) -> list[Operation]:
    """What can be done over HTTP, beside the websocket and the static files."""
    listed: list[Operation] = []
    listed += [
        *Pages(context).operations(),
        *LoginOperations(context).operations(),
        *Ops(context, lambda: openapi(listed)).operations(),
        *CredentialOperations(context).operations(),
        *PresetOperations(context).operations(),
        *SessionOperations(context).operations(),
        *MessageOperations(context).operations(),
        *ResponseOperations(context).operations(),
        *Responses(context).operations(),
        *QueueOperations(context).operations(),
        *ToolOperations(context).operations(),
        *CopyOperations(context).operations(),
        *ShareOperations(context).operations(),
        *chat_completions(context).operations(),
        *completions(context).operations(),
        *Embeddings(context).operations(),
        *ConversationOperations(context).operations(),
        *admin_operations(context),
    ]
    return listed


def admin_operations(context: ApiContext) -> list[Operation]:
    """What an admin can do beyond that, under `/v1/admin`."""
    services = context.services
    admin = Admin(services)
    return [
        *AdminHealthOperations(context, admin).operations(),
        *AdminSessionOperations(admin, services.store).operations(),
        *AdminUserOperations(admin, services.store).operations(),
        *AdminQuotaOperations(
            admin, services.store, services.limits.max_active_responses_per_user
        ).operations(),
        *AdminGroupOperations(admin, services.store).operations(),
        *AdminReplicaOperations(admin, services.store).operations(),
        *AdminWorkerOperations(admin, services.store).operations(),
        *AdminAuditOperations(admin).operations(),
        *AdminBusiestOperations(admin).operations(),
        *AdminShareOperations(admin, services.store).operations(),
        *AdminNoticeOperations(admin).operations(),
        *AdminSettingsOperations(services.settings).operations(),
        *AdminAdapterOperations(admin, services.adapters).operations(),
        *AdminModelOperations(admin, services.models).operations(),
        *AdminEngineOperations(admin, services.models).operations(),
    ]


def routes(context: ApiContext) -> list[Route]:
    """The routes of all operations."""
    return routes_of(operations(context), context)
