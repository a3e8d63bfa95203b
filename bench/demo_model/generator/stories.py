"""Builds stories: scenes linked by a quest, from a few sentences to a dozen chapters.

A long story counts its chapters in their headings. The count is how a model with a short attention
window knows how far it has come, so a long request really gives a long answer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.demo_model.generator.grammar import Grammar, tidy
from bench.demo_model.generator.world import (
    ANIMALS,
    FEASTS,
    NAME_TO_BEING,
    PEOPLE,
    PLACES,
    THINGS,
    TIMES,
    VILLAGE,
    WEATHERS,
    Being,
    Feast,
    Place,
    Thing,
)

ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
    "thirteenth fourteenth fifteenth sixteenth"
).split()
QUESTS = ["lost", "pieces", "letters", "light", "feast", "storm"]
MIN_CHAPTERS, MAX_CHAPTERS = 10, 15  # about 250 tokens each: 2,200 tokens at the least

_WEATHER_TITLES = {
    "fog": "Fog", "rain": "Rain", "wind": "The West Wind", "sun": "A Golden Day",
    "snow": "Snow", "calm": "The Quiet Sea", "storm": "The Storm",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cast:
    """Who and what one story is about; the rest of the village is met on the way."""

    hero: Being
    companion: Being
    thing: Thing
    place: Place
    feast: Feast
    used: set[str]  # errands already told, so that no story tells one twice


class Storyteller:
    """Tells stories about the village, all of them fixed by the random generator."""

    def __init__(self, rules: Mapping[str, Sequence[str]], rng: random.Random) -> None:
        self.rng = rng
        self.rules = rules
        self.grammar = Grammar(rules, rng)

    def cast(self, subject: Being | Place | Thing | None = None) -> Cast:
        """Choose hero, companion, thing and first place around an optional subject."""
        rng = self.rng
        hero = rng.choice(PEOPLE)
        companion = rng.choice(ANIMALS) if rng.random() < 0.45 else rng.choice(PEOPLE)
        thing = rng.choice(THINGS)
        place = rng.choice(list(PLACES.values()))
        if isinstance(subject, Being) and subject.kind == "person":
            hero = subject
        elif isinstance(subject, Being):
            hero, companion = NAME_TO_BEING[subject.friend], subject
        elif isinstance(subject, Place):
            place = subject
        elif isinstance(subject, Thing):
            thing = subject
        while companion is hero:
            companion = rng.choice(ANIMALS)
        return Cast(hero, companion, thing, place, rng.choice(FEASTS), set())

    def short(
        self, subject: Being | Place | Thing | None = None, cast: Cast | None = None
    ) -> list[str]:
        """One errand, with a beginning and an end: 120 to 250 tokens."""
        cast = cast or self.cast(subject)
        bind = self._scene_bindings(cast, cast.place, self._someone(cast))
        start = self._join("short_start", bind)
        if isinstance(subject, Being) or self.rng.random() < 0.5:
            start = self._introduce(cast, subject, bind) + " " + start
        if isinstance(subject, Thing):
            start += " " + self._join("carried_thing", bind)
        scene = self._join("meet", bind) + " " + self._errand(bind)
        return [*self._perhaps_title(bind), start, scene, self._ending(bind)]

    def medium(
        self, subject: Being | Place | Thing | None = None, cast: Cast | None = None
    ) -> list[str]:
        """Two or three scenes of one day: 300 to 600 tokens."""
        cast = cast or self.cast(subject)
        place, other = cast.place, self._someone(cast)
        bind = self._scene_bindings(cast, place, other)
        paragraphs = [*self._perhaps_title(bind), self._introduce(cast, subject, bind)]
        if isinstance(subject, Thing) or self.rng.random() < 0.2:
            paragraphs[-1] += " " + self._join("carried_thing", bind)
        for index in range(self.rng.choice([2, 2, 3])):
            bind = self._scene_bindings(cast, place, other)
            start = self._join("next_scene" if index else "short_start", bind)
            # `bind` holds values of many types; "P" is always a place, and a place has a sight.
            start += " " + self._expand(bind["P"].sight, bind)  # type: ignore[attr-defined]
            paragraphs += [start, self._join("meet", bind) + " " + self._errand(bind)]
            paragraphs[-1 - self.rng.randint(0, 1)] += " " + self._pause(cast, bind)
            place, other = self._next(cast, bind)
        if self.rng.random() < 0.4:
            paragraphs.append(self._join("feast_scene", bind))
        return [*paragraphs, self._ending(bind)]

    def long(
        self, subject: Being | Place | Thing | None = None, cast: Cast | None = None
    ) -> list[str]:
        """Ten to fifteen chapters, or as many days: 2,200 tokens and more."""
        cast = cast or self.cast(subject)
        quest = self.rng.choice(QUESTS)
        in_days = self.rng.random() < 0.2
        place, other = cast.place, self._someone(cast)
        bind = self._scene_bindings(cast, place, other)
        # The title and the first heading come before anything else: from the first line on one can
        # see that this is a long story, also when its request is far back.
        paragraphs = [f"# {self._join('title_long', bind)}"]
        paragraphs.append(self._heading(1, "chapter_title", bind, in_days))
        paragraphs.append(self._introduce(cast, subject, bind))
        paragraphs.append(self._join(f"{quest}_start", bind))
        total = self.rng.randint(MIN_CHAPTERS, MAX_CHAPTERS)
        for number in range(1, total):
            bind = self._scene_bindings(cast, place, other, ORDINALS[number - 1])
            # Who, where and which day are said often, so that each can be copied from near by.
            day_start = self._join("day_start", bind)
            if number > 1:
                paragraphs.append(self._heading(number, "chapter_title", bind, in_days))
                paragraphs.append(self._join(f"{quest}_recap", bind) + " " + day_start)
            else:
                paragraphs[-1] += " " + day_start
            paragraphs += self._scene(cast, bind, quest)
            place, other = self._next(cast, bind)
            clue = self._join(f"{quest}_clue", {**bind, "N": place, "D": other})
            paragraphs.append(clue + " " + self._join("day_end", bind))
        bind = self._scene_bindings(cast, place, other, ORDINALS[total - 1])
        paragraphs.append(self._heading(total, "last_title", bind, in_days))
        return paragraphs + self._final(quest, bind)

    def sequel(self, cast: Cast) -> list[str]:
        """What happened next, when a told story is continued."""
        bind = self._scene_bindings(cast, self._place(cast.place), self._someone(cast))
        return [
            self._join("later", bind),
            self._join("meet", bind) + " " + self._errand(bind),
            self._ending(bind),
        ]

    def weather(self) -> str:
        return self.rng.choice(WEATHERS)

    def riddle(self) -> tuple[str, str]:
        """A riddle of the village and its answer."""
        question, _, answer = self.rng.choice(self.rules["riddle_ask"]).partition("#")
        return self.grammar.fill(question, {}), answer

    # Parts of a story, in the order in which they are told.

    def _perhaps_title(self, bind: Mapping[str, object]) -> list[str]:
        return [f"**{self._join('title_short', bind)}**"] if self.rng.random() < 0.4 else []

    def _introduce(self, cast: Cast, subject: object, bind: Mapping[str, object]) -> str:
        if isinstance(subject, Being) and subject.kind == "animal":
            animal = self.grammar.say("intro_animal", {**bind, "A": subject})
            return animal + " " + self._join("friend_hero", bind)
        return (
            self._join("intro", bind) + " " + self._join(f"companion_{cast.companion.kind}", bind)
        )

    def _scene(self, cast: Cast, bind: Mapping[str, object], quest: str) -> list[str]:
        """One chapter's scene: the way, the meeting and the errand, always a paragraph each."""
        rng = self.rng
        place = bind["P"]
        assert isinstance(place, Place)
        weather = self._join(f"weather_{bind['W']}", bind)
        if rng.random() < 0.5:
            start = self._join("go_when", bind)
            start = f"{start} {weather}" if rng.random() < 0.7 else start
        else:
            start = f"{weather} {self._join('set_out', bind)}"
        if rng.random() < 0.6:
            start += " " + self._expand(place.sight, bind)
        paragraphs = [start]
        if rng.random() < 0.2:
            paragraphs.append(self._animal_interlude(bind))
        meeting = self._join("meet", bind)
        if rng.random() < 0.75:
            meeting += " " + self._join("greet", bind)
        meeting += " " + self._join(f"{quest}_tell", bind)
        paragraphs += [meeting, self._errand(bind)]
        for _ in range(rng.choice([0, 1, 1, 2])):
            paragraphs[rng.randrange(len(paragraphs))] += " " + self._pause(cast, bind)
        return paragraphs

    def _pause(self, cast: Cast, bind: Mapping[str, object]) -> str:
        pauses = [f"react_{cast.companion.kind}", "sense", "think", "rest"]
        return self._join(self.rng.choice(pauses), bind)

    def _animal_interlude(self, bind: Mapping[str, object]) -> str:
        animals = [animal for animal in ANIMALS if animal is not bind["B"]]
        bind = {**bind, "C": self.rng.choice(animals)}
        return self._join("interlude", bind) + " " + self._errand(bind)

    def _errand(self, bind: Mapping[str, object]) -> str:
        other = bind["C"]
        assert isinstance(other, Being)
        # Likewise: "A", "B" and "C" are always beings.
        present = [bind[name].name for name in "ABC"]  # type: ignore[attr-defined]
        cast = bind["cast"]
        assert isinstance(cast, Cast)
        lines, fresh = [], []
        for line in self.rules[f"errand_{other.kind}"]:
            places, _, text = line[1:].partition(" ") if line[0] == "@" else ("", "", line)
            fits = not places or any(PLACES[key] is bind["P"] for key in places.split(","))
            if fits and not any(name in text for name in present):
                lines.append(text)
                fresh += [] if text in cast.used else [text]
        line = self.rng.choice(fresh or lines)
        cast.used.add(line)
        return self._expand(line, bind)

    def _final(self, quest: str, bind: Mapping[str, object]) -> list[str]:
        paragraphs = [
            self._join("last_day", bind) + " " + self._join("set_out", bind),
            self._join("meet", bind) + " " + self._join("final_sign", bind),
            self._join(f"{quest}_final", bind),
        ]
        if self.rng.random() < 0.6:
            paragraphs.append(self._join("feast_scene", bind))
        return [*paragraphs, self._ending(bind)]

    def _ending(self, bind: Mapping[str, object]) -> str:
        ending = self._join("moral" if self.rng.random() < 0.7 else "goodnight", bind)
        return ending + "\n\n" + self._join("the_end", bind) if self.rng.random() < 0.6 else ending

    def _heading(self, number: int, rule: str, bind: Mapping[str, object], in_days: bool) -> str:
        if in_days:
            return f"## The {ORDINALS[number - 1].title()} Day"
        return f"## Chapter {number}: {self._join(rule, bind)}"

    # Choosing people and places, and binding them to the names of the grammar.

    def _someone(self, cast: Cast, *others: object) -> Being:
        taken = (cast.hero, cast.companion, *others)
        return self.rng.choice([person for person in PEOPLE if person not in taken])

    def _place(self, last: object) -> Place:
        return self.rng.choice([place for place in PLACES.values() if place is not last])

    def _next(self, cast: Cast, bind: Mapping[str, object]) -> tuple[Place, Being]:
        return self._place(bind["P"]), self._someone(cast, bind["C"])

    def _scene_bindings(
        self, cast: Cast, place: Place, other: Being, ordinal: str = "first"
    ) -> dict[str, object]:
        rng = self.rng
        weather = rng.choice(WEATHERS)
        doing = other.doing if PLACES[other.home] is place else rng.choice(self.rules["doing_away"])
        question, answer = self.riddle()
        helps = self.grammar.rule(f"helps_{cast.companion.kind}", {"B": cast.companion})
        return {
            "cast": cast, "A": cast.hero,
            "B": cast.companion, "C": other, "P": place, "O": cast.thing,
            "K": ordinal, "W": weather, "T": rng.choice(TIMES), "V": VILLAGE,
            "F": cast.feast,
            "W_title": _WEATHER_TITLES[weather],
            "P_title_at": place.at, "C_doing": self._expand(doing, {}, plain=True),
            "riddle_question": question, "riddle": answer,
            "B_helps": helps, "B_helps_lower": helps.rstrip("."),
            "B_or_people": cast.companion.name if cast.companion.kind == "person" else "Oswin",
        }  # fmt: skip

    def _join(self, rule: str, bind: Mapping[str, object]) -> str:
        return self.grammar.say(rule, bind)

    def _expand(self, template: str, bind: Mapping[str, object], plain: bool = False) -> str:
        text = self.grammar.fill(template, bind)
        return text if plain else tidy(text)
