"""A model's name → the folder it is in; a hub id is downloaded first.

Only what the engine reads is fetched: configuration, safetensors, tokenizer and template, never
code or pickled weights. The usual settings of huggingface_hub hold (`HF_HOME`, `HF_TOKEN`,
`HF_ENDPOINT`, `HF_HUB_OFFLINE`).
"""

import os
import re
from pathlib import Path

from engine.errors import DownloadError

PATTERNS = ("*.json", "*.safetensors", "tokenizer*", "*.jinja", "merges.txt", "vocab.txt")
IGNORED = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.py", "*/*")
HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")


def resolve_model(model: str, *, revision: str | None = None, cache_dir: str | None = None) -> Path:
    """The local folder of `model`: itself, or where its download is. Blocks, with progress.

    Raises `DownloadError` with one line for a person: no network, no such model, no access.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not os.path.lexists(folder / "config.json"):  # what it is, is seen when it is read
            raise DownloadError(f"{folder} is no model: it has no config.json")
        return folder.absolute()
    looks_local = model.startswith((".", "/", "~")) or model.count("/") > 1
    if looks_local or not HUB_ID.fullmatch(model):
        raise DownloadError(f"there is no folder {model}")
    return _download(model, revision, cache_dir)


def _download(model: str, revision: str | None, cache_dir: str | None) -> Path:
    import huggingface_hub  # slow to import, and rarely needed
    from huggingface_hub import errors

    try:
        path = huggingface_hub.snapshot_download(
            model,
            revision=revision,
            cache_dir=cache_dir,
            allow_patterns=list(PATTERNS),
            ignore_patterns=list(IGNORED),
        )
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
    folder = Path(path)
    if not any(folder.glob("*.safetensors")):
        raise DownloadError(f"{model} has no safetensors weights")
    return folder


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
