"""The closed world of the demo model: the harbour village of Tidewick, its people and its places.

The facts stand in `world.toml`; here are their types. Stories and answers both read them, so that a
trade, a home and a pronoun are the same wherever they appear.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

VILLAGE = "Tidewick"
TIMES = ["dawn", "morning", "noon", "afternoon", "evening", "night"]
WEATHERS = ["fog", "rain", "wind", "sun", "snow", "calm", "storm"]


@dataclass(frozen=True, slots=True)
class Being:
    """A person or an animal of the village."""

    name: str
    he: str
    role: str  # with its article: "the baker"
    kind: str  # "person" or "animal"
    home: str  # key of a place
    does: str  # simple present, after the name: "bakes bread before the sun is up"
    doing: str  # what one may find them doing at home, "-ing" forms in brackets
    likes: str
    fears: str
    looks: str  # after "has": "strong arms and flour on her sleeves"
    nature: str  # two adjectives: "warm and busy"
    friend: str  # the name of the best friend
    secret: str  # one sentence that only answers use

    def __str__(self) -> str:
        return self.name

    @property
    def him(self) -> str:
        return "him" if self.he == "he" else "her"

    @property
    def his(self) -> str:
        return "his" if self.he == "he" else "her"

    @property
    def himself(self) -> str:
        return "himself" if self.he == "he" else "herself"


@dataclass(frozen=True, slots=True)
class Place:
    """A place of the village, with its article and its prepositions."""

    the: str
    title: str  # as a heading
    at: str
    to: str
    sight: str  # a sentence for stories, past tense
    about: str  # a sentence for answers, present tense


@dataclass(frozen=True, slots=True)
class Thing:
    """An object worth a story."""

    name: str  # without its article: "brass key"
    a: str
    looks: str  # a clause that begins with "It was"
    worth: str  # why it matters, after "because"

    @property
    def the(self) -> str:
        return "the " + self.name

    @property
    def title(self) -> str:
        return self.name.title()


@dataclass(frozen=True, slots=True)
class Feast:
    """A feast and the place where it is held."""

    name: str
    about: str
    place: str  # key of a place

    @property
    def at(self) -> str:
        return PLACES[self.place].at

    @property
    def to(self) -> str:
        return PLACES[self.place].to


_facts = tomllib.loads(Path(__file__).with_name("world.toml").read_text(encoding="utf-8"))

BEINGS = [Being(**being) for being in _facts["beings"]]
PEOPLE = [being for being in BEINGS if being.kind == "person"]
ANIMALS = [being for being in BEINGS if being.kind == "animal"]
NAME_TO_BEING = {being.name: being for being in BEINGS}
PLACES = {key: Place(**place) for key, place in _facts["places"].items()}
THINGS = [Thing(**thing) for thing in _facts["things"]]
FEASTS = [Feast(**feast) for feast in _facts["feasts"]]
RECIPES: dict[str, list[str]] = {recipe["dish"]: recipe["steps"] for recipe in _facts["recipes"]}
