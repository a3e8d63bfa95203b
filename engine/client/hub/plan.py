"""`DownloadPlan`: what a download is going to fetch, known before a byte of its weights has come.

The hub tells the size of each file; the header of a file of safetensors is its first kilobytes.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine.folder.gguf.choice import models_among
from engine.folder.gguf.parts import SUFFIX

SAFETENSORS = ".safetensors"
DESCRIPTIONS = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")
TIMEOUT_SECONDS = 10.0
NUM_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """Of a model whose weights are not here, or not all of them."""

    model: str  # the hub's id
    commit: str
    files: Mapping[str, int]  # that are going to lie here, and their bytes
    missing_bytes: int  # of them
    cache: Path  # the folder in which they will
    choices: Mapping[str, int]  # the GGUF models of the repository, and the bytes of each

    @property
    def is_gguf(self) -> bool:
        return any(name.lower().endswith(SUFFIX) for name in self.files)

    @property
    def size_bytes(self) -> int:
        """Of the weights."""
        return sum(size for name, size in self.files.items() if _is_of_weights(name))

    def outline(self, folder: Path) -> None:
        """Fill a folder with what describes the weights: of themselves there are headers alone.

        What follows a header is a hole in a file that is as long as the hub's. Raises what
        huggingface_hub raises.
        """
        import huggingface_hub

        for name in DESCRIPTIONS:
            if name in self.files:
                huggingface_hub.hf_hub_download(
                    self.model, name, revision=self.commit, local_dir=folder
                )
        names = [name for name in self.files if name.endswith(SAFETENSORS)]
        read = partial(
            huggingface_hub.HfApi().parse_safetensors_file_metadata,
            self.model,
            revision=self.commit,
            timeout=TIMEOUT_SECONDS,
        )
        with ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
            for name, header in zip(names, pool.map(read, names), strict=True):
                _write_outline(folder / name, header.tensors)


def plan_download(
    model: str,
    patterns: Sequence[str],
    ignored: Sequence[str] | None,
    *,
    revision: str | None,
    cache_dir: str | None,
) -> DownloadPlan | None:
    """None if all weights are here, and where the hub does not say what there is to be known."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    try:
        about = huggingface_hub.HfApi().model_info(
            model, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS
        )
    except Exception:  # the download, which follows, says what is wrong
        return None
    siblings = {file.rfilename: file for file in about.siblings or ()}
    chosen = filter_repo_objects(siblings, allow_patterns=[*patterns], ignore_patterns=ignored)
    sizes = {name: file.size for name, file in siblings.items()}
    files = {name: sizes[name] or 0 for name in chosen}
    cache = Path(cache_dir or huggingface_hub.constants.HF_HUB_CACHE)
    blobs = cache / f"models--{model.replace('/', '--')}" / "blobs"
    missing = [name for name in files if not (blobs / _blob_name(siblings[name])).is_file()]
    is_told = about.sha is not None and None not in (sizes[name] for name in files)
    if not is_told or not any(map(_is_of_weights, missing)):
        return None
    return DownloadPlan(
        model,
        str(about.sha),
        files,
        max(0, sum(files[name] for name in missing) - _begun_bytes(blobs)),
        cache,
        {
            name: sum(sizes[part] or 0 for part in parts)
            for name, parts in models_among(sizes).items()
        },
    )


def _blob_name(file: Any) -> str:
    """Under which its content lies in the cache, whichever commits have it."""
    return str(file.blob_id if file.lfs is None else file.lfs.sha256)


def _is_of_weights(name: str) -> bool:
    return name.lower().endswith((SAFETENSORS, SUFFIX))


def _begun_bytes(folder: Path) -> int:
    """Of files whose download has been interrupted, and goes on."""
    return sum(512 * file.stat().st_blocks for file in folder.glob("*.incomplete"))


def _write_outline(file: Path, tensors: Mapping[str, Any]) -> None:
    entries = {
        name: {"dtype": it.dtype, "shape": it.shape, "data_offsets": it.data_offsets}
        for name, it in tensors.items()
    }
    header = json.dumps(entries).encode()
    end = max((it.data_offsets[1] for it in tensors.values()), default=0)
    with file.open("wb") as writing:
        writing.write(len(header).to_bytes(8, "little") + header)
        writing.truncate(8 + len(header) + end)
