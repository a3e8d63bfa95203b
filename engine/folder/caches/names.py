"""`find_model`: what a name of the list stands for, such as `ollama:llama3.2:1b`.

A name is never made into a path: it is looked for among those that the cache has.
"""

from collections.abc import Callable, Iterator

from engine.errors import DownloadError
from engine.folder.caches.found import Found, name_problem
from engine.folder.caches.gguf_folders import (
    LLAMA_CPP,
    LM_STUDIO,
    llama_cpp_models,
    lm_studio_models,
)
from engine.folder.caches.hugging_face import hugging_face_models
from engine.folder.caches.ollama import DEFAULT_TAG, OLLAMA, ollama_models

Lister = Callable[[list[str]], Iterator[Found]]
NAMED: dict[str, Lister] = {
    OLLAMA: ollama_models,
    LLAMA_CPP: llama_cpp_models,
    LM_STUDIO: lm_studio_models,
}


def all_models(notes: list[str]) -> Iterator[Found]:
    """Those of all caches, each name once: the first place that has it is the one that counts."""
    names: set[str] = set()
    for models in (hugging_face_models, *NAMED.values()):
        for found in models(notes):
            if found.name not in names:
                names.add(found.name)
                yield found


def find_model(name: str) -> Found | None:
    """None for a name that is of no such cache; hub ids are huggingface_hub's.

    Raises `DownloadError` for one that the cache does not have, or that cannot be served.
    """
    prefix = next((prefix for prefix in NAMED if name.startswith(prefix)), None)
    if prefix is None:
        return None
    wanted = {name, f"{name}:{DEFAULT_TAG}"} if prefix == OLLAMA else {name}
    notes: list[str] = []
    found = next((each for each in NAMED[prefix](notes) if each.name in wanted), None)
    if found is None:
        raise DownloadError(f"there is no {name} here; `parley models` lists what there is")
    if problem := name_problem(found.name) or found.problem:
        raise DownloadError(f"{name}: {problem}")
    return found
