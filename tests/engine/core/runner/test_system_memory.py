"""How much memory is left, in a machine and in a container."""

from pathlib import Path

import pytest

from engine.core.runner import system_memory


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine with 1,000 KiB left, and a process in the group /outer/inner."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 1000 kB\nHugePages_Total: 0\n")
    (proc / "self/cgroup").write_text("0::/outer/inner\n")
    return proc


def limit(group: Path, most: str, used: int, inactive_file: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")


def test_without_groups_it_is_what_the_system_says(proc: Path, tmp_path: Path) -> None:
    assert system_memory.available(proc, tmp_path / "none") == 1000 * 1024
    (proc / "self/cgroup").unlink()
    assert system_memory.available(proc, tmp_path / "none") == 1000 * 1024


def test_a_group_limits_what_is_in_it(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    limit(groups / "outer/inner", "max", 5)
    limit(groups / "outer", "70000", 60000, inactive_file=2000)
    assert system_memory.available(proc, groups) == 12000


def test_the_tightest_group_counts_and_nothing_is_less_than_none(
    proc: Path, tmp_path: Path
) -> None:
    groups = tmp_path / "groups"
    limit(groups, "90000", 10000)
    limit(groups / "outer/inner", "50000", 60000)
    assert system_memory.available(proc, groups) == 0


def test_a_container_sees_its_group_as_the_outermost(proc: Path, tmp_path: Path) -> None:
    (proc / "self/cgroup").write_text("12:cpu:/old\n0::/\n")
    limit(tmp_path / "groups", "3000", 1000)
    assert system_memory.available(proc, tmp_path / "groups") == 2000


def test_a_group_that_would_be_slowed_down_counts_too(proc: Path, tmp_path: Path) -> None:
    group = tmp_path / "groups/outer/inner"
    limit(group, "90000", 10000)
    (group / "memory.high").write_text("15000\n")
    assert system_memory.available(proc, tmp_path / "groups") == 5000


def test_groups_of_version_1_count(proc: Path, tmp_path: Path) -> None:
    (proc / "self/cgroup").write_text("9:cpu,cpuacct:/x\n8:memory:/docker/abc\n0::/\n")
    group = tmp_path / "groups/memory"  # a container sees its own one here
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("8000\n")
    (group / "memory.usage_in_bytes").write_text("5000\n")
    (group / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 400\n")
    assert system_memory.available(proc, tmp_path / "groups") == 3400


def test_what_cannot_be_read_limits_nothing_else(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    limit(groups / "outer", "", 5)
    limit(groups / "outer/inner", "9000", 1000)
    (groups / "outer/inner/memory.stat").unlink()
    assert system_memory.available(proc, groups) == 8000


def test_a_system_that_does_not_tell_is_an_error(proc: Path, tmp_path: Path) -> None:
    (proc / "meminfo").write_text("MemTotal: 4000 kB\n")
    with pytest.raises(OSError, match="MemAvailable"):
        system_memory.available(proc, tmp_path)


def test_this_machine_has_some() -> None:
    assert system_memory.available() > 1 << 20


def test_memory_that_was_mapped_from_files_is_not_a_processs_own(proc: Path) -> None:
    lines = "VmRSS: 900 kB\nRssAnon: 40 kB\nRssFile: 850 kB\nRssShmem: 10 kB\n"
    (proc / "self/status").write_text(lines)
    assert system_memory.own(proc) == 50 * 1024
    assert system_memory.own() > 1 << 20


@pytest.mark.parametrize(("free", "usable"), [(1 << 30, 768 << 20), (8 << 30, 7 << 30)])
def test_what_is_required_must_be_free_with_some_left_for_others(free: int, usable: int) -> None:
    system_memory.require(usable, lambda: free)
    with pytest.raises(ValueError, match=f"MiB of memory are needed, {usable >> 20} can be had"):
        system_memory.require(usable + 1, lambda: free)
