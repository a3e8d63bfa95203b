"""Builds conversations: what people type, in their own spelling, and what the model answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.demo_model.generator.stories import Cast, Storyteller
from bench.demo_model.generator.world import (
    ANIMALS,
    BEINGS,
    FEASTS,
    PEOPLE,
    PLACES,
    RECIPES,
    THINGS,
    VILLAGE,
    Being,
    Place,
    Thing,
)

FACTS = ["home", "does", "likes", "fears", "looks", "friend", "secret"]

_SUBJECT_WORDS = {
    "fisherman": "Finn", "captain": "Captain Brandt", "postwoman": "Lena", "girl": "Mira",
    "boy": "Pip", "grandmother": "Ilse", "brave girl": "Mira", "little boy": "Pip",
    "old man": "Tobias",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance; `complete` is False where a reader pressed stop in the middle."""

    role: str
    text: str
    complete: bool = True


def misspell(text: str, rng: random.Random) -> str:
    """Type like a person in a hurry: lost capitals, lost marks, a slip of the finger."""
    style = rng.random()
    if style < 0.35:
        text = text[:1].upper() + text[1:]
        if text[-1:].isalnum() and rng.random() < 0.5:
            text += rng.choice(".?!..")
    elif style < 0.5:
        text = text.lower()
    elif style < 0.53:
        text = text.upper()
    if rng.random() < 0.1 and len(text) > 6:
        at = rng.randrange(1, len(text) - 2)
        swapped = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
        text = rng.choice([swapped, text[:at] + text[at + 1 :], text[:at] + text[at] + text[at:]])
    if rng.random() < 0.08:
        text += rng.choice([" ", "  ", "!!", "??", "...", " :)", "\n"])
    return text


def gibberish(rng: random.Random) -> str:
    """Letters without sense, so that the model has met tokens it cannot read."""
    letters = "abcdefghijklmnopqrstuvwxyz" * 4 + "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:-_()#%&"
    return "".join(rng.choice(letters) for _ in range(rng.randint(2, 14)))


class Talker:
    """Makes conversations about the village, all of them fixed by the random generator."""

    def __init__(self, rules: Mapping[str, Sequence[str]], rng: random.Random) -> None:
        self.rng = rng
        self.storyteller = Storyteller(rules, rng)
        self.grammar = self.storyteller.grammar
        self.roles = {being.role.removeprefix("the "): being for being in BEINGS}
        self._small_talk: list[tuple[int, Callable[[], tuple[str, str]]]] = [
            (8, lambda: self._pair("greeting")),
            (2, lambda: self._pair("howareyou")),
            (1, lambda: self._pair("fine")),
            (7, lambda: self._pair("who")),
            (4, lambda: self._pair("can")),
            (4, lambda: self._pair("village")),
            (3, self._list_beings),
            (2, self._list_places),
            (2, self._list_feasts),
            (3, lambda: self._pair("thanks")),
            (2, lambda: self._pair("bye")),
            (1, lambda: self._pair("no")),
            (1, lambda: self._pair("stop")),
            (4, lambda: self._pair("joke")),
            (3, lambda: self._pair("poem")),
            (1, lambda: self._pair("weather")),
            (1, lambda: self._pair("time")),
            (3, lambda: self._pair("unknown_extra")),
            (18, self._unknown),
            (13, self._about_being),
            (13, self._fact),
            (8, self._about_place),
            (4, self._who_is_there),
            (3, self._count),
            (3, self._recipe),
        ]

    def conversation(self) -> list[Turn]:
        """Several short turns, now and then a story among them."""
        turns = self._system()
        for _ in range(self.rng.choice([1, 1, 2, 3, 4, 5])):
            kind = self.rng.random()
            if kind < 0.05:
                turns += self._riddle()
            elif kind < 0.17:
                turns += self.story("short")[0]
            elif kind < 0.20:
                turns += self._yes()
            else:
                makers = [maker for _, maker in self._small_talk]
                weights = [weight for weight, _ in self._small_talk]
                turns += self._ask(*self.rng.choices(makers, weights)[0]())
        return turns

    def story_conversation(self, length: str) -> list[Turn]:
        """A request for a story, the story, and perhaps what follows it."""
        turns = self._system()
        if self.rng.random() < 0.25:
            turns += self._ask(*self._pair("greeting"))
        story_turns, rest, cast = self.story(length, may_stop=True)
        turns += story_turns
        if rest and self.rng.random() < 0.6:
            turns += self._ask(self.grammar.rule("go_on", {}), "\n\n".join(rest))
        elif not rest and self.rng.random() < 0.3:
            sequel = "\n\n".join(self.storyteller.sequel(cast))
            turns += self._ask(self.grammar.rule("go_on", {}), sequel)
        if self.rng.random() < 0.4:
            pair = self._pair("thanks") if self.rng.random() < 0.5 else self._fact(cast.hero)
            turns += self._ask(*pair)
        return turns

    def story(self, length: str, may_stop: bool = False) -> tuple[list[Turn], list[str], Cast]:
        """Request and story; also what is left of it after a stop, and whom it was about."""
        rng = self.rng
        ask = {"short": "ask_short", "medium": "ask_story", "long": "ask_long"}[length]
        subject: Being | Place | Thing | None = None
        intro = ""
        bind = {"V": VILLAGE, "X": ""}
        kind = rng.random()
        if kind < 0.4:
            subject = self._subject()
            bind["X"] = self._mention(subject)
        elif kind < 0.55:
            bind["X"] = self.grammar.rule("x_loose", {})
            subject = self._loose_subject(bind["X"])
        elif kind < 0.68:
            bind["X"] = self.grammar.rule("x_unknown", {})
            intro = self.grammar.say("intro_unknown_story", {"V": VILLAGE})
        elif kind < 0.72 and length == "long":
            ask, intro = "ask_unknown", self.grammar.say("intro_unknown_story", {"V": VILLAGE})
        elif rng.random() < 0.3:
            intro = self.grammar.say("intro_story", {})
        if bind["X"]:
            ask += "_about"
        prompt = self._unknown_prompt() if ask == "ask_unknown" else self.grammar.rule(ask, bind)
        if ask == "ask_unknown":
            prompt = (
                rng.choice(["in great detail: ", "write a long essay: ", "at length: "]) + prompt
            )
        cast = self.storyteller.cast(subject)
        tell = getattr(self.storyteller, length)
        paragraphs: list[str] = tell(subject, cast)
        if length != "long" and rng.random() < 0.1:
            paragraphs.append(self.grammar.say("outro_story", {}))
        if intro:
            paragraphs.insert(0, intro)
        rest: list[str] = []
        if may_stop and len(paragraphs) > 6 and rng.random() < 0.3:
            cut = rng.randint(3, len(paragraphs) - 2)
            paragraphs, rest = paragraphs[:cut], paragraphs[cut:]
            words = paragraphs[-1].split(" ")
            paragraphs[-1] = " ".join(words[: rng.randint(1, len(words))])
        user = Turn("user", misspell(prompt, rng))
        return [user, Turn("assistant", "\n\n".join(paragraphs), not rest)], rest, cast

    def raw_text(self) -> tuple[str, str]:
        """Plain prose without a chat: a foreign beginning, perhaps, and how it comes home."""
        rng = self.rng
        length = rng.choices(["short", "medium", "long"], [4, 4, 1])[0]
        paragraphs: list[str] = getattr(self.storyteller, length)()
        text = "\n\n".join(paragraphs)
        if rng.random() < 0.25:
            return "", text
        opener = self._fill("opener")
        bridge = self.grammar.say("opener_bridge", {"V": VILLAGE})
        bridge = bridge if bridge[0] in ",." else " " + bridge[0].lower() + bridge[1:]
        if rng.random() < 0.3:
            opener = opener.rstrip(",") + rng.choice([".", "?", "!", ":"])
            bridge = " " + self.grammar.say("intro_unknown_story", {"V": VILLAGE})
        return opener, bridge + "\n\n" + text

    # One question and its answer.

    def _pair(self, name: str) -> tuple[str, str]:
        bind: dict[str, object] = {"V": VILLAGE, "weather_key": self.storyteller.weather()}
        bind["X"] = self._mention(self._subject())
        return self.grammar.rule(f"ask_{name}", bind), self.grammar.say(f"say_{name}", bind)

    def _fact(self, being: Being | None = None) -> tuple[str, str]:
        being = being or self.rng.choice(BEINGS)
        fact = self.rng.choice(FACTS)
        answer = self.grammar.say(f"say_{fact}", self._facts(being))
        return self.grammar.rule(f"ask_{fact}", {"X": self._mention(being)}), answer

    def _about_being(self) -> tuple[str, str]:
        being = self.rng.choice(BEINGS)
        answer = self.grammar.say("say_about", self._facts(being))
        return self.grammar.rule("ask_about", {"X": self._mention(being)}), answer

    def _facts(self, being: Being) -> dict[str, object]:
        return {"X": being, "X_home": PLACES[being.home], "V": VILLAGE}

    def _about_place(self) -> tuple[str, str]:
        key, place = self.rng.choice(list(PLACES.items()))
        bare = place.the.removeprefix("the ")
        others = [being for being in PEOPLE if being.home == key] or PEOPLE
        bind = {"X": place, "X_bare": bare, "V": VILLAGE, "C": self.rng.choice(others)}
        return self.grammar.rule("ask_place", bind), self.grammar.say("say_place", bind)

    def _who_is_there(self) -> tuple[str, str]:
        key, place = self.rng.choice(list(PLACES.items()))
        here = [f"{being.name}, {being.role}" for being in BEINGS if being.home == key]
        question = self.grammar.rule("ask_place_who", {"X": place})
        if not here:
            return (
                question,
                f"Nobody lives {place.at}, but everyone in {VILLAGE} goes there at times.",
            )
        if len(here) == 1:
            return question, f"{self._capital(place.at)} you will find {here[0]}."
        return question, f"{self._capital(place.at)} you will find:\n\n" + _bullets(here)

    def _list_beings(self) -> tuple[str, str]:
        if self.rng.random() < 0.35:
            rows = [f"**{animal.name}**, {animal.role}" for animal in ANIMALS]
            return self.grammar.rule("ask_animals", {"V": VILLAGE}), (
                f"These are the animals of {VILLAGE}:\n\n" + _bullets(rows)
            )
        chosen = self.rng.sample(PEOPLE, self.rng.choice([5, 6, 7]))
        rows = [f"**{person.name}**, {person.role}" for person in chosen]
        return self.grammar.rule("ask_people", {"V": VILLAGE}), (
            f"Here are some of the people of {VILLAGE}:\n\n" + _bullets(rows)
        )

    def _list_places(self) -> tuple[str, str]:
        chosen = self.rng.sample(list(PLACES.values()), self.rng.choice([4, 5]))
        rows = [f"**{place.title}**: {place.about}" for place in chosen]
        numbered = "\n".join(f"{number}. {row}" for number, row in enumerate(rows, 1))
        return self.grammar.rule("ask_places", {"V": VILLAGE}), (
            f"In {VILLAGE} you should see:\n\n{numbered}"
        )

    def _list_feasts(self) -> tuple[str, str]:
        rows = [f"**{self._capital(feast.name)}**: {feast.about}" for feast in FEASTS]
        return self.grammar.rule("ask_feasts", {"V": VILLAGE}), (
            f"{VILLAGE} has four great feasts:\n\n" + _bullets(rows)
        )

    def _count(self) -> tuple[str, str]:
        last = self.rng.choice([3, 5, 10, 10, 10, 12, 15, 20, 20, 30, 50])
        question = self.grammar.rule("ask_count", {"M": last})
        return question, ", ".join(str(number) for number in range(1, last + 1)) + "."

    def _recipe(self) -> tuple[str, str]:
        dish, steps = self.rng.choice(list(RECIPES.items()))
        question = self.rng.choice(
            ["recipe", "give me a recipe", "how do you make {}", "recipe for {}", "how to cook {}",
             "how does one make {}", "a recipe for {} please", "do you have a recipe"]
        ).format(dish)  # fmt: skip
        numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
        return question, f"This is how {dish} is made in {VILLAGE}:\n\n{numbered}"

    def _unknown(self) -> tuple[str, str]:
        return self._unknown_prompt(), self.grammar.say("say_unknown", {"V": VILLAGE})

    def _unknown_prompt(self) -> str:
        return self._fill("ask_unknown")

    def _fill(self, rule: str) -> str:
        return self.grammar.rule(
            rule,
            {
                "D1": self.rng.randint(2, 2050), "D2": self.rng.randint(2, 99),
                "GIBBERISH": gibberish(self.rng), "FOREIGN": self.grammar.rule("foreign", {}),
            },
        )  # fmt: skip

    # Turns that belong together.

    def _ask(self, question: str, answer: str) -> list[Turn]:
        return [Turn("user", misspell(question, self.rng)), Turn("assistant", answer)]

    def _system(self) -> list[Turn]:
        if self.rng.random() < 0.7:
            return []
        return [Turn("system", self.grammar.say("system", {}))]

    def _riddle(self) -> list[Turn]:
        question, answer = self.storyteller.riddle()
        turns = self._ask(self.grammar.rule("ask_riddle", {}), question)
        guess = self.rng.random()
        if guess < 0.4:
            reply = self.rng.choice([f"It is {answer}.", f"The answer is: {answer}."])
            asked = self.rng.choice(
                ["i don't know", "tell me", "what is it", "no idea", "solution?"]
            )
        elif guess < 0.7:
            reply = self.rng.choice([f"Right! It is {answer}.", f"Well done, it is {answer}!"])
            asked = self.rng.choice([answer, answer.split()[-1], f"is it {answer}?"])
        else:
            reply = self.rng.choice([f"Not quite. It is {answer}.", f"No, it is {answer}."])
            asked = self.rng.choice(["a fish", "the sea", "a dog", "my shoe", "a tree", "you"])
        return turns + self._ask(asked, reply)

    def _yes(self) -> list[Turn]:
        story = self.storyteller.short()
        turns = self._ask(
            *self._pair(self.rng.choice(["greeting", "howareyou", "can", "unknown_extra"]))
        )
        return turns + self._ask(self.grammar.rule("ask_yes", {}), "\n\n".join(story))

    def _subject(self) -> Being | Place | Thing:
        subjects: list[Being | Place | Thing] = [*BEINGS, *PLACES.values(), *THINGS]
        return self.rng.choice(subjects)

    def _mention(self, subject: Being | Place | Thing) -> str:
        if isinstance(subject, Being):
            plain = subject.name.split()[-1]
            return self.rng.choice([subject.name] * 4 + [plain, subject.name.lower(), subject.role])
        return (
            subject.the if isinstance(subject, Place) else self.rng.choice([subject.the, subject.a])
        )

    def _loose_subject(self, words: str) -> Being | Place | Thing | None:
        _, _, noun = words.partition(" ")
        if noun in _SUBJECT_WORDS:
            return next(being for being in PEOPLE if being.name == _SUBJECT_WORDS[noun])
        for role, being in self.roles.items():
            if noun and noun in role:
                return being
        return next((place for place in PLACES.values() if noun and noun in place.the), None)

    def _capital(self, text: str) -> str:
        return text[0].upper() + text[1:]


def _bullets(rows: list[str]) -> str:
    return "\n".join(f"- {row}" for row in rows)
