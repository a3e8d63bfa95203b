"""The tree of a session's messages, from the list of `message_id parent_id`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sessions.model.errors import MessageNotFound


def parents_of(entries: Iterable[bytes]) -> dict[str, str | None]:
    """Message id -> parent id, in order of creation, of the entries of `tree`."""
    pairs = (entry.decode().split(" ") for entry in entries)
    return {message_id: parent_id or None for message_id, parent_id in pairs}


def path_to(parents: Mapping[str, str | None], leaf: str | None) -> list[str]:
    """The ids from the root to `leaf`, none for None. Raises `MessageNotFound`."""
    ids: list[str] = []
    while leaf is not None:
        if leaf not in parents:
            raise MessageNotFound
        ids.append(leaf)
        leaf = parents[leaf]
    return ids[::-1]


def newest_below(parents: Mapping[str, str | None], message_id: str) -> str:
    """The newest of the messages that came of that one, or itself. Raises `MessageNotFound`."""
    if message_id not in parents:
        raise MessageNotFound
    family, newest = {message_id}, message_id
    for other, parent_id in parents.items():  # in order of creation: parents come first
        if parent_id in family:
            family.add(other)
            newest = other
    return newest


def children_of(parents: Mapping[str, str | None]) -> dict[str | None, tuple[str, ...]]:
    """Parent id -> its children in order of creation."""
    children: dict[str | None, list[str]] = {}
    for message_id, parent_id in parents.items():
        children.setdefault(parent_id, []).append(message_id)
    return {parent_id: tuple(ids) for parent_id, ids in children.items()}
