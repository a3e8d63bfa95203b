"""What a client on another machine may call of a core by name, and what only where it is permitted.

What answers need is open. All else acts on the core for all of its clients, or on files of its
machine.
"""

from collections.abc import Collection

OPEN = frozenset(("is_paused", "is_sleeping", "list_loras", "metrics", "num_unfinished"))
LORA = "lora"  # also what lets requests have adapters
PERMITS = {
    LORA: frozenset(("add_lora", "remove_lora", "pin_lora")),
    "control": frozenset(("pause", "resume", "sleep", "wake_up", "reset_prefix_cache", "drain")),
    "profile": frozenset(("start_profile", "stop_profile")),
    "collective_rpc": frozenset(("collective_rpc",)),
}


def refusal(name: str, permits: Collection[str]) -> str | None:
    """Why this call is not made for a client on another machine; None: it is."""
    if name in OPEN or any(name in PERMITS[permit] for permit in permits):
        return None
    group = next((group for group, names in PERMITS.items() if name in names), None)
    how = "" if group is None else f": its core permits that by --permit {group} alone"
    return f"{name} is refused from another machine{how}"


def lora_refusal(permits: Collection[str]) -> str | None:
    """Why a request with an adapter is not taken from another machine; None: it is."""
    if LORA in permits:
        return None
    return f"adapters are refused from another machine: its core permits them by --permit {LORA}"
