"""A model's name → the folder it is in; a hub id is downloaded first.

Only what the engine reads is fetched: configuration, safetensors, tokenizer and template, never
code or pickled weights. Of a repository of GGUF files it is the one model that is meant. A GGUF
file has no folder: one is made for it (`engine/folder/gguf/derived.py`). The usual settings of
huggingface_hub hold (`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`).
"""

import glob
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.client.hub.plan import DownloadPlan, plan_download
from engine.errors import DownloadError, UnsupportedModelError
from engine.folder.caches.found import Found, reason
from engine.folder.caches.names import find_model
from engine.folder.gguf.choice import NotChosen, choose
from engine.folder.gguf.derived import derive_folder
from engine.folder.gguf.parts import SUFFIX, part_name

OnProgress = Callable[[float], None]
OnPlan = Callable[[DownloadPlan], None]

WEIGHTS = "*.safetensors"
PATTERNS = ("*.json", WEIGHTS, "tokenizer*", "*.jinja", "merges.txt", "vocab.txt")
IGNORED = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.py", "*/*")
HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
QUANTIZATION = re.compile(r"[\w][\w.+-]*")  # after a colon: which model of a repository


def resolve_model(
    model: str,
    *,
    revision: str | None = None,
    cache_dir: str | None = None,
    on_progress: OnProgress | None = None,
    on_plan: OnPlan | None = None,
    needs_weights: bool = True,
) -> Path:
    """The local folder of `model`: itself, or where its download is. Blocks, with progress.

    `on_progress` is called with the share of the bytes that have come, from other threads;
    `on_plan` before weights are downloaded, if the hub says how large they are: what it raises
    ends all.

    `model` may also be a GGUF file, one part of several, a folder of one, or the id of a repository
    of them, as `owner/name-GGUF` or `owner/name-GGUF:Q4_K_M`, or what lies in the cache of another
    program, as `ollama:llama3.2:1b`: `parley models` lists it.

    Without `needs_weights` nothing but configuration, tokenizer and template of it is fetched.

    Raises `DownloadError` with one line for a person: no network, no such model, no access; and
    `UnsupportedModelError` for a GGUF file that cannot be served.
    """
    if (found := find_model(model)) is not None:
        return _cached_folder(found)
    path = local_path(model)
    if os.path.isdir(path):
        return _local_folder(path.absolute())
    if path.suffix.lower() == SUFFIX and os.path.exists(path):
        return derive_folder(path)
    looks_local = model.startswith((".", "/", "~")) or model.count("/") > 1
    name, colon, wanted = model.partition(":")
    is_id = HUB_ID.fullmatch(name) and (not colon or QUANTIZATION.fullmatch(wanted))
    if looks_local or not is_id:
        kind = "file" if path.suffix.lower() == SUFFIX else "folder"
        raise DownloadError(f"there is no {kind} {model}")
    if colon:
        return _download_gguf(name, wanted, revision, cache_dir, on_progress, on_plan)
    patterns = [each for each in PATTERNS if needs_weights or each != WEIGHTS]
    folder = _download(name, patterns, list(IGNORED), revision, cache_dir, on_progress, on_plan)
    if not needs_weights or any(folder.glob("*.safetensors")):
        return folder
    return _download_gguf(name, None, revision, cache_dir, on_progress, on_plan)


def model_name(model: str) -> str:
    """What people call it: of a local model the name of its folder, or of its file."""
    path = local_path(model)
    if not os.path.exists(path):
        return model
    part = part_name(path.name)
    return part[0] if part else path.stem if path.suffix.lower() == SUFFIX else path.name


def local_path(model: str) -> Path:
    """Where it lies, if it is no name. Nobody's home and a text too long for a path are nowhere."""
    return Path(os.path.expanduser(model))


def _cached_folder(found: Found) -> Path:
    try:
        return derive_folder(found.path)
    except UnsupportedModelError as error:  # whose file, a blob, says nothing to a person
        raise UnsupportedModelError(f"{found.name}: {reason(error, found.path)}") from None


def _local_folder(folder: Path) -> Path:
    has_config = os.path.lexists(folder / "config.json")  # what it is, is seen when it is read
    if has_config and any(folder.glob("*.safetensors")):
        return folder
    names = [path.name for path in folder.iterdir() if path.suffix.lower() == SUFFIX]
    if has_config and not names:
        return folder
    if not names:
        raise DownloadError(f"{folder} is no model: it has no config.json")
    try:
        return derive_folder(folder / choose(names, is_only=True)[0])
    except NotChosen as error:
        raise DownloadError(f"{folder} {error}; name one of the files") from None


def _download_gguf(
    model: str,
    wanted: str | None,
    revision: str | None,
    cache_dir: str | None,
    on_progress: OnProgress | None,
    on_plan: OnPlan | None,
) -> Path:
    """Only the files of the model that is meant. The folder is the one that stands for them."""
    try:
        names = choose(_gguf_names(model, revision, cache_dir), wanted)
    except NotChosen as error:
        what = "has no safetensors weights, and it " if wanted is None else ""
        raise DownloadError(f"{model} {what}{error}") from None
    patterns = [glob.escape(name) for name in names]
    folder = _download(model, patterns, None, revision, cache_dir, on_progress, on_plan)
    return derive_folder(folder / names[0])


def _gguf_names(model: str, revision: str | None, cache_dir: str | None) -> list[str]:
    """The GGUF files of a repository; without a network those that are here."""
    import huggingface_hub
    from huggingface_hub import errors

    with _refusals(model, revision):
        try:
            about = huggingface_hub.HfApi().model_info(model, revision=revision)
            names = [file.rfilename for file in about.siblings or ()]
        except (errors.HfHubHTTPError, errors.HFValidationError):
            raise
        except Exception:  # of whichever HTTP client, or offline mode: as snapshot_download does
            path = huggingface_hub.snapshot_download(
                model,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=[],  # it need not be all here
                local_files_only=True,
            )
            names = [file.relative_to(path).as_posix() for file in Path(path).rglob("*.*")]
    return [name for name in names if name.lower().endswith(SUFFIX)]


def _download(
    model: str,
    patterns: list[str],
    ignored: list[str] | None,
    revision: str | None,
    cache_dir: str | None,
    on_progress: OnProgress | None,
    on_plan: OnPlan | None,
) -> Path:
    import huggingface_hub  # slow to import, and rarely needed

    if on_plan is not None:
        plan = plan_download(model, patterns, ignored, revision=revision, cache_dir=cache_dir)
        if plan is not None:
            on_plan(plan)
    with _refusals(model, revision):
        path = huggingface_hub.snapshot_download(
            model,
            revision=revision,
            cache_dir=cache_dir,
            allow_patterns=patterns,
            ignore_patterns=ignored,
            tqdm_class=None if on_progress is None else _bars(on_progress),
        )
    return Path(path)


def _bars(on_progress: OnProgress) -> Any:
    """Progress bars of huggingface_hub's kind, one of which counts the bytes of all files."""
    from huggingface_hub.utils import tqdm

    # huggingface_hub has no types for it.
    class Bar(tqdm):  # type: ignore[misc]
        """Counts for itself: a bar that is not shown, because nobody has a terminal, does not."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._is_of_bytes = options.get("unit") == "B"
            self._count = 0.0
            super().__init__(*args, **options)

        def update(self, n: float | None = 1) -> bool | None:
            self._count += n or 0
            if self._is_of_bytes and self.total:
                on_progress(min(self._count / self.total, 1.0))
            shown: bool | None = super().update(n)
            return shown

    return Bar


@contextmanager
def _refusals(model: str, revision: str | None) -> Iterator[None]:
    """Raise `DownloadError` for every error of huggingface_hub within."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise DownloadError(f"{model} is gated: accept its terms and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise DownloadError(
            f"the hub has no model {model}, or it is private: check the name and HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise DownloadError(f"{model} has no revision {revision}") from None
    except errors.LocalEntryNotFoundError:
        raise DownloadError(
            f"{model} is not downloaded yet, and {_endpoint()} cannot be reached"
        ) from None
    except errors.HFValidationError as error:
        raise DownloadError(f"{model} is neither a folder nor a hub id: {error}") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "?")
        raise DownloadError(f"{model}: the hub answered {status}") from None
    except OSError as error:
        raise DownloadError(f"{model} could not be downloaded: {_first_line(error)}") from None


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
