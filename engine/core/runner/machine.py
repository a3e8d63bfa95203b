"""What computes here, in one line: other processors, threads or libraries may round otherwise.

See docs/engine.md, on determinism.
"""

from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
NAMES = ("model name", "CPU part")  # of x86, and of ARM


def describe_machine(device: torch.device, attn_backend: str, dtype: torch.dtype) -> str:
    """The same for two cores that compute alike, with the same model and version of Parley."""
    parts = [attn_backend, str(dtype).removeprefix("torch."), f"torch {torch.__version__}"]
    if device.type == "cuda":
        parts.append(torch.cuda.get_device_name(device))
    else:
        level = torch.ops.parley.cpu_level() if attn_backend == "cpu" else ""
        parts += [_processor(), str(level), f"{torch.get_num_threads()} threads"]
    return ", ".join(filter(None, parts))


def _processor() -> str:
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    found = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in found if name.strip() in NAMES), "")
