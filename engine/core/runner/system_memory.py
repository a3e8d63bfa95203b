"""`available`: how much memory we may still take, by the system and by our control groups."""

from collections.abc import Callable, Iterator
from pathlib import Path

RESERVE_BYTES, RESERVE_SHARE = 1 << 30, 0.25  # of the memory that is free: it stays for others
PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
Names = tuple[tuple[str, ...], str, str]  # of limits, of what is used, of files' memory in the stat
VERSION_2: Names = (("memory.max", "memory.high"), "memory.current", "inactive_file")
VERSION_1: Names = (
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    "total_inactive_file",
)


def available(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Bytes of memory. Raises OSError where the system does not say.

    A container sees the memory of the whole machine; what limits it is its control group, or one
    that this one is in. What a group has read of files and not used lately is free.
    """
    return min([_of_system(proc), *_of_groups(proc, groups)])


def own(proc: Path = PROC, pid: int | str = "self") -> int:
    """Bytes that a process has to itself: what it has mapped of files, others may share."""
    fields = _fields(proc / f"{pid}/status")
    return (fields["RssAnon:"] + fields["RssShmem:"]) * 1024


def require(num_bytes: int, free: Callable[[], int] = available) -> None:
    """Raise ValueError unless there is so much memory, and some more for all others."""
    found = free()
    usable = found - min(RESERVE_BYTES, int(found * RESERVE_SHARE))
    if usable < num_bytes:
        wanted = f"{num_bytes >> 20} MiB of memory are needed"
        raise ValueError(f"{wanted}, {max(0, usable) >> 20} can be had")


def _of_system(proc: Path) -> int:
    fields = _fields(proc / "meminfo")
    if "MemAvailable:" not in fields:
        raise OSError(f"{proc / 'meminfo'} has no MemAvailable")
    return fields["MemAvailable:"] * 1024


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    """What is left of each group that has a limit."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            root, names = groups, VERSION_2
        elif "memory" in controllers.split(","):
            root, names = groups / "memory", VERSION_1
        else:
            continue
        own = root / path.strip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(root):
                yield from _left(folder, names)


def _left(folder: Path, names: Names) -> Iterator[int]:
    """For each limit of a group. The outermost one has none, and in a container no name of ours."""
    limits, used, old_files = names
    for limit in limits:
        try:
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
        except (OSError, ValueError):  # a limit may be "max"
            continue
        try:
            left += _fields(folder / "memory.stat").get(old_files, 0)
        except OSError:
            pass
        yield max(0, left)


def _fields(path: Path) -> dict[str, int]:
    """Of lines that begin with a name and a number."""
    words = (line.split() for line in path.read_text().splitlines())
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}
