"""The parts of `make test-slow`: the folders of the tests, and apart from them the long tests.

`make test-slow PART=engine` runs one of them. CONTRIBUTING.md says how long each takes, which is
half an hour at most.
"""

from __future__ import annotations

from pathlib import Path

# Which part a test is in, by the first of these paths that it lies under.
PARTS = {
    "fuzz/test_fuzz.py[gguf": "fuzz-gguf",
    "fuzz/test_fuzz.py[http": "fuzz-http",
    "fuzz/test_fuzz.py[templates": "fuzz-templates",
    "fuzz/test_fuzz.py[websocket": "fuzz-websocket",
    "fuzz/test_targets.py": "tools",
    "end_to_end/own/": "tools",
    "end_to_end/bodies/": "fuzz-bodies",
    "compat/test_vllm_source.py": "tools",
    "bench/": "tools",
    "test_failure_reports.py": "tools",
    "test_running_time.py": "tools",
    "end_to_end/security/test_floods.py": "floods",
    "end_to_end/browser/": "browser",
    "end_to_end/browsers/": "browsers",
    "end_to_end/looks/": "looks",
    "end_to_end/admin/": "console",
    "end_to_end/terminal/test_logs.py": "outages",
    "end_to_end/terminal/test_terminal_deaths.py": "outages",
    "end_to_end/faults/test_core_faults.py": "outages",
    "end_to_end/faults/test_hosts.py": "outages",
    "end_to_end/faults/test_topologies.py": "outages",
    "end_to_end/redis/test_redis_": "outages",
    "deployment/": "outages",
    "end_to_end/engine/test_engine_group.py": "outages",
    "end_to_end/engine/test_remote_group.py": "remote",
    "end_to_end/engine/test_far_core.py": "outages",
    "end_to_end/engine/test_response_deaths.py": "responses",
    "end_to_end/sdks/": "clients",
    "end_to_end/storm/": "storm",
    "end_to_end/engine/test_call_deaths.py": "forms",
    "end_to_end/engine/test_form_deaths.py": "forms",
    "engine/core/ops/test_levels.py": "levels",
    "engine/core/structured/": "forms",
    "compat/": "compat",
    "csrc/test_decoder.py": "levels",
    "csrc/": "cuda",
    "end_to_end/": "end-to-end",
    "engine/": "engine",
    "server/engines/remote/": "remote",
    "server/": "server",
    "sessions/": "sessions",
    "upgrades/": "upgrades",
    "wheel/": "wheel",
}


def part_of(path: Path, parameters: str) -> str:
    """The part of a test in this file below tests/, with these parameters, as in `http-1]`.

    Raises KeyError if no part would run it.
    """
    place = f"{path.as_posix()}[{parameters}"
    for begin, part in PARTS.items():
        if place.startswith(begin):
            return part
    raise KeyError(f"tests/{place} is in no part of `make test-slow`: tests/slow_parts.py")
