"""What can be said of a model folder before torch is imported: so a broken one is told at once."""

import json
from pathlib import Path
from typing import Any

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class UnsupportedModelError(ValueError):
    """The model cannot be served. The message is one line for a person."""


def check_folder(folder: Path, *, needs_weights: bool = True) -> None:
    """Raise `UnsupportedModelError` unless this is a Hugging Face folder that we may load."""
    if not folder.is_dir():
        raise UnsupportedModelError(f"{folder} is not a folder")
    if "auto_map" in _read_config(folder):
        raise UnsupportedModelError(f"{folder} needs code of its own (auto_map), which never runs")
    if not needs_weights or any(folder.glob("*.safetensors")):
        return
    if any(file for pattern in PICKLED for file in folder.glob(pattern)):
        raise UnsupportedModelError(f"{folder} has only pickled weights; safetensors are needed")
    raise UnsupportedModelError(f"{folder} has no safetensors")


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text())
    except FileNotFoundError:
        raise UnsupportedModelError(f"{folder} has no config.json") from None
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{file} is unreadable: {error}") from None
    if not isinstance(config, dict):
        raise UnsupportedModelError(f"{file} is not an object")
    return config
