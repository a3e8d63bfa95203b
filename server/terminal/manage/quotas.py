"""What users and groups may have, as commands read it, and as tables show it."""

from typing import Annotated, Any, NamedTuple

import typer

from server.terminal.tables import Cell, Table

NUMBERS = ("sessions", "tokens today", "answers at a time")
MAX_QUOTA = 2**53 - 1


def _quota(about: str) -> Any:
    return typer.Option(help=about, metavar="<quota>")


class GivenQuotas(NamedTuple):
    """Options of a command, by the names of the API."""

    tokens_per_day: Annotated[str | None, _quota("Tokens a day.")] = None
    sessions: Annotated[str | None, _quota("Sessions that are kept.")] = None
    answers: Annotated[str | None, _quota("Answers at a time.")] = None

    def changed(self, own: dict[str, int | None], *, is_group: bool) -> Any:
        """What is to stand in the place of `own`; None where nothing was given.

        Raises `typer.BadParameter`.
        """
        given = {name: text for name, text in self._asdict().items() if text is not None}
        read = {name: _read(name, text, is_group) for name, text in given.items()}
        return {**own, **read} if read else None


NO_QUOTAS = GivenQuotas()


def _read(name: str, text: str, is_group: bool) -> int | None:
    """null is the setting's for a user, and no limit for a group."""
    text = text.strip().lower()
    if text == "none":
        return 0
    if text == "default" and not is_group:
        return None
    if text.isdecimal() and 0 < int(text) <= MAX_QUOTA:
        return int(text)
    words = "a number or none" if is_group else "a number, none or default"
    option = "--" + name.replace("_", "-")
    raise typer.BadParameter(f"{text!r} is no quota: {words}", param_hint=option)


def users_table(limits: dict[str, Any], rows: list[dict[str, Any]]) -> Table:
    """What each has, beside what the settings allow or what an admin allows them instead."""
    table = Table("user", *NUMBERS, numbers=NUMBERS)
    for row in rows:
        own = row["own"]
        table.add(
            row["user"]["name"] or row["user"]["id"],
            of_limit(row["sessions"], _most(own["sessions"], limits["sessions_per_user"])),
            of_limit(row["tokens_today"], _most(own["tokens_per_day"], limits["tokens_per_day"])),
            "default" if own["answers"] is None else own["answers"] or "any",
        )
    return table


def groups_table(groups: list[dict[str, Any]]) -> Table:
    table = Table("id", "name", "members", *NUMBERS, numbers=("members", *NUMBERS), whole=("id",))
    for group in groups:
        quotas = group["quotas"]
        table.add(
            *(group[name] for name in ("id", "name", "members")),
            of_limit(group["sessions"], quotas["sessions"]),
            of_limit(group["tokens_today"] + group["tokens_held"], quotas["tokens_per_day"]),
            quotas["answers"] or "any",
        )
    return table


def _most(own: int | None, of_settings: int | None) -> int | None:
    """None: no limit, which 0 of one's own is, too."""
    return of_settings if own is None else own or None


def of_limit(used: int, limit: int | None) -> Cell:
    """How much of a limit is used; red where nothing is left."""
    if limit is None:
        return Cell(f"{used:,}")
    return Cell(f"{used:,} of {limit:,}", "red" if used >= limit else "")
