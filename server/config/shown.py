"""The settings as they run, for admins: each with its value and where that comes from.

What is secret is masked where it is read, in the supervisor: no worker, and no log, gets it.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from server.config.masking import MASK, masked
from server.config.models import discreet

if TYPE_CHECKING:
    from server.config.settings import Settings  # with pydantic, which no worker needs

SECRETS = frozenset(("token", "admin_token", "redis_secret"))


class ShownSetting(msgspec.Struct, frozen=True, kw_only=True):
    """`value` null: there is none. `origin`: `default`, `environment` or `option`."""

    name: str
    value: str | None
    origin: str
    about: str


def shown_settings(settings: "Settings") -> tuple[ShownSetting, ...]:
    """All of them, in the order of the documentation."""
    return tuple(
        ShownSetting(
            name=f"PARLEY_{name.upper()}",
            value=_value(settings, name),
            origin=_origin(settings, name),
            about=field.description or "",
        )
        for name, field in type(settings).model_fields.items()
    )


def _value(settings: "Settings", name: str) -> str | None:
    value = _in_force(settings, name)
    if value is None or value == "":
        return None
    if name in SECRETS:
        return MASK
    if isinstance(value, tuple | list):
        return discreet(masked(", ".join(map(str, value)))) or None
    return discreet(masked(str(value)))


def _in_force(settings: "Settings", name: str) -> Any:
    """What is not given may follow from other settings: the limits, from the address."""
    given = getattr(settings, name)
    if given is not None:
        return given
    limits = settings.limits
    if name == "max_tokens_per_day":
        return limits.quotas.tokens_per_day
    return getattr(limits, name, None)


def _origin(settings: "Settings", name: str) -> str:
    if name in settings.options:
        return "option"
    return "environment" if name in settings.from_environment else "default"
