"""The engines that an operator names, by `PARLEY_ENGINES`: what each is, and where it is reached.

One entry of the list is `KIND[*COUNT][=URL][;option=value]...`. Nothing is looked at here but the
text: whether such an engine is there, its own kind finds out.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

NATIVE = "native"  # our own, on this machine or, with an address, on another one
GROUP = "group"  # several engines as one, which nobody asks for by this name
REMOTE_KINDS = ("vllm", "sglang", "llamacpp", "openai")  # of an address
MAX_ENGINES = 64
MAX_WEIGHT = 1000.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
ENTRY = re.compile(r"(?P<kind>[^*=;]+)(?:\*(?P<count>[^=;]*))?(?:=(?P<url>[^;]*))?(?P<rest>;.*)?")
PLAIN = re.compile(r"[!-~]+")  # all that a request can have in its first line
# A name or an address, and nothing of what libzmq reads beside it, such as `SOURCE;HOST` and `*`.
FAR_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+(%[a-z0-9._-]+)?")
MAX_LABEL = 63  # characters, of a part of a host's name
OPTIONS = {
    "weight": "its share of the answers, beside those of the others",
    "name": "what administrators call it",
    "for": "the model that it serves, where there are several",
}
FILES = ("key", "ca", "keys")
FAR_OPTIONS = OPTIONS | {
    "keys": "the folder with our keys and the public key of the core",
}
REMOTE_OPTIONS = OPTIONS | {
    "key": "the file with the key that it asks for",
    "ca": "the file with the certificates that its own is checked against",
    "model": "what it calls the model",
}


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine. What its kind alone understands is in `options`, as it was written."""

    kind: str
    name: str  # what administrators call it: no other engine of this server has it
    url: str | None = None  # without a slash at its end; None: it is ours
    weight: float = 1.0
    options: Mapping[str, str] = field(default_factory=dict)
    num_sharing: int = 1  # cores of ours on this machine that share its processors

    @property
    def key_file(self) -> Path | None:
        """With what it is asked; None: it asks for no key."""
        return self._file("key")

    @property
    def ca_file(self) -> Path | None:
        """None: what the system trusts."""
        return self._file("ca")

    @property
    def keys_folder(self) -> Path | None:
        """With our keys and that of a core on another machine."""
        return self._file("keys")

    @property
    def model(self) -> str | None:
        """What it calls the model, if somebody has said that."""
        return self.options.get("model")

    @property
    def serves(self) -> str | None:
        """The name of the one model that it is for, if somebody has said that."""
        return self.options.get("for")

    def with_files_in(self, folder: Path) -> "EngineEntry":
        """Its files lie in this folder: an administrator names them, and not where they lie.

        Raises ValueError for one that would lie elsewhere.
        """
        files = {option: self.options[option] for option in FILES if option in self.options}
        for option, name in files.items():
            if "/" in name or name in (".", ".."):
                raise ValueError(f"{option}={name}: a file's name, without its folder")
        placed = {option: str(folder / name) for option, name in files.items()}
        return replace(self, options={**self.options, **placed})

    def _file(self, option: str) -> Path | None:
        value = self.options.get(option)
        return None if value is None else Path(value).expanduser().absolute()


SOLE = EngineEntry(NATIVE, NATIVE)  # what answers when nobody says anything


def listed_engines(text: str) -> tuple[str, ...]:
    """A list in one text, separated by commas or spaces."""
    return tuple(part for part in re.split(r"[,\s]+", text) if part)


def parse_engines(texts: Sequence[str]) -> tuple[EngineEntry, ...]:
    """One entry for each engine: `native*2` is two of them. Raises ValueError.

    `native` alone is the one that answers when nobody says anything; after `native*1`, or with a
    name, others may come while it serves.
    """
    entries: list[EngineEntry] = []
    for text in texts:
        entries += _parse(text, entries)
    if not 1 <= len(entries) <= MAX_ENGINES:
        raise ValueError(f"from 1 to {MAX_ENGINES} engines can be named")
    names = [entry.name for entry in entries]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two engines have the name {min(twice)}: give one as ;name=NAME")
    return (SOLE,) if [*texts] == [NATIVE] else tuple(entries)


def _parse(text: str, before: Iterable[EngineEntry]) -> list[EngineEntry]:
    found = ENTRY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no engine: KIND[*COUNT][=URL][;option=value]...")
    kind = found["kind"]
    options = _options(kind, found["rest"] or "", has_address=found["url"] is not None)
    count, url = _count(found["count"]), _url(kind, found["url"])
    if kind == NATIVE and url is not None and "keys" not in options:
        problem = "nothing is said unencrypted, or to a core whose key is unknown"
        raise ValueError(f"{text} needs ;keys=FOLDER, which `parley core keys` makes: {problem}")
    if url is not None and count > 1:
        raise ValueError(f"{kind}: each engine of an address is named for itself")
    weight = _weight(options.pop("weight", "1"))
    given = options.pop("name", None)
    if given is not None and not NAME.fullmatch(given):
        raise ValueError(f"{given!r} is no name: letters, digits, '.', '_', ':' and '-'")
    first = 1 + sum(entry.kind == kind for entry in before)
    names = [given] if given and count == 1 else []
    names = names or [f"{given or kind}-{(1 if given else first) + i}" for i in range(count)]
    return [EngineEntry(kind, name, url, weight, options) for name in names]


def _options(kind: str, rest: str, *, has_address: bool) -> dict[str, str]:
    if kind != NATIVE and kind not in REMOTE_KINDS:
        kinds = ", ".join((NATIVE, *REMOTE_KINDS))
        raise ValueError(f"{kind!r} is no kind of engine: there are {kinds}")
    known = REMOTE_OPTIONS
    if kind == NATIVE:
        known = FAR_OPTIONS if has_address else OPTIONS
    options: dict[str, str] = {}
    for part in filter(None, rest.split(";")):
        name, _, value = part.partition("=")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{kind} has no option {name!r}{hint}")
        if not value or name in options:
            raise ValueError(f"{kind}: the option {name} has one value")
        options[name] = value
    return options


def _count(text: str | None) -> int:
    if text is None:
        return 1
    if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= MAX_ENGINES:
        raise ValueError(f"{text!r} engines: from 1 to {MAX_ENGINES} can be named")
    return int(text)


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0 < weight <= MAX_WEIGHT:  # not either of what is no number
        raise ValueError(f"weight={text}: a number above 0, of at most {MAX_WEIGHT:g}")
    return weight


def _url(kind: str, text: str | None) -> str | None:
    if kind == NATIVE:
        return None if text is None else far_address(text)
    if text is None:
        raise ValueError(f"{kind} needs an address: {kind}=https://HOST:PORT")
    if "@" in text:  # before anything that would repeat it
        raise ValueError(f"{kind}: a key belongs in a file, which ;key=FILE names")
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        parts, has_port = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port:
        raise ValueError(f"{kind}: {text} is no address; one looks like https://HOST:PORT")
    if not PLAIN.fullmatch(text):
        raise ValueError(f"{kind}: an address has letters, digits and marks of ASCII")
    if not _is_host(parts.hostname):
        raise ValueError(f"{kind}: {text} is no address: its host is none")
    if "?" in text or "#" in text:
        raise ValueError(f"{kind}: an address ends with its path")
    return text.rstrip("/")


def far_address(text: str) -> str:
    """Where a core of ours listens on another machine. Raises ValueError."""
    problem = f"{NATIVE}: {text} is no address; one looks like tcp://HOST:PORT"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port or 0
    except ValueError:
        raise ValueError(problem) from None
    is_bare = text == f"{parts.scheme}://{parts.netloc}" and "@" not in text
    if parts.scheme != "tcp" or not port or not is_bare or not PLAIN.fullmatch(text):
        raise ValueError(problem)
    if not FAR_HOST.fullmatch(host) or not _is_host(host):
        raise ValueError(problem)
    return text


def _is_host(name: str) -> bool:
    labels = name.removesuffix(".").split(".")
    return all(0 < len(label) <= MAX_LABEL for label in labels)
