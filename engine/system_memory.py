"""`available`: how much memory we may still take, by the system and by our control groups."""

from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Bytes. Raises OSError where the system does not tell.

    A container sees the memory of the whole machine; what limits it is its control group (version
    2), or one that this one is in. What a group has read of files and not used lately is free.
    """
    return min([_of_system(proc), *_of_groups(proc, groups)])


def _of_system(proc: Path) -> int:
    fields = _fields(proc / "meminfo")
    if "MemAvailable:" not in fields:
        raise OSError(f"{proc / 'meminfo'} has no MemAvailable")
    return fields["MemAvailable:"] * 1024


def _of_groups(proc: Path, groups: Path) -> list[int]:
    """What is left of each group that has a limit."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return []
    left = []
    for folder in (groups / own, *(groups / own).parents):
        if not folder.is_relative_to(groups):
            break
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            old_files = _fields(folder / "memory.stat").get("inactive_file", 0)
        except OSError:
            continue  # the outermost group has no limit, nor a file for it
        if limit != "max":
            left.append(max(0, int(limit) - used + old_files))
    return left


def _fields(path: Path) -> dict[str, int]:
    """Of lines that begin with a name and a number."""
    words = (line.split() for line in path.read_text().splitlines())
    return {line[0]: int(line[1]) for line in words if len(line) > 1}
