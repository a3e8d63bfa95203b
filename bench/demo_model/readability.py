"""Measures whether a story reads like the village's own: words, word pairs, repetition, form.

None of this proves good prose. Each figure is therefore also taken from stories that come straight
from the generator and were never trained on: they are the best that the model could reach.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bench.demo_model.generator.stories import ORDINALS
from bench.demo_model.generator.world import BEINGS

REPEAT_LENGTH = 12  # words
LONG_PARAGRAPH = 30  # words
SENTENCE = re.compile(r'[^.!?]+[.!?]+"?')
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
HEADING = re.compile(r"^## (?:Chapter (\d+): \S|The (\w+) Day$)", re.MULTILINE)

_NAME_TO_HE = {being.name.split()[-1]: being.he for being in BEINGS}
_PRONOUN_TO_HE = {"he": "he", "him": "he", "his": "he", "she": "she", "her": "she"}


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def sentences(text: str) -> list[str]:
    """Sentences of the prose, headings left out."""
    prose = " ".join(line for line in text.split("\n") if line and line[0] not in "#*-")
    return [sentence.strip() for sentence in SENTENCE.findall(prose)]


class Language:
    """What the generator says: its words and its runs of three words."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.words: set[str] = set()
        self.triples: set[tuple[str, str, str]] = set()
        for text in texts:
            found = words(text)
            self.words.update(found)
            self.triples.update(zip(found, found[1:], found[2:], strict=False))


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one text."""

    num_tokens: int
    known_sentences: float  # share of sentences all of whose words the generator uses
    strange_triples: float  # share of runs of three words that the generator never wrote
    most_repeated: int  # how often the commonest run of twelve words occurs
    most_copied: int  # how often the commonest long paragraph occurs word for word
    whole_paragraphs: float  # share that begin and end like paragraphs, with paired quotes
    wrong_pronouns: float  # share of sentences with one name and a pronoun that does not fit it
    chapters_in_order: bool

    def fails(self) -> list[str]:
        """The names of the measures that miss the mark; empty if the text passes."""
        marks = {
            "words": self.known_sentences >= 0.98,
            "triples": self.strange_triples <= 0.03,
            "repetition": self.most_repeated <= 10 and self.most_copied <= 2,
            "paragraphs": self.whole_paragraphs >= 0.95,
            "pronouns": self.wrong_pronouns <= 0.3,
            "chapters": self.chapters_in_order,
        }
        return [name for name, reached in marks.items() if not reached]


def read(text: str, num_tokens: int, finished: bool, language: Language) -> Reading:
    """Measure one text; the last paragraph of an unfinished one is left out of its form."""
    found = words(text)
    triples = list(zip(found, found[1:], found[2:], strict=False))
    strange = sum(triple not in language.triples for triple in triples)
    runs = Counter(
        tuple(found[start : start + REPEAT_LENGTH])
        for start in range(len(found) - REPEAT_LENGTH + 1)
    )
    paragraphs = text.strip().split("\n\n")
    paragraphs = paragraphs if finished or len(paragraphs) < 2 else paragraphs[:-1]
    copies = Counter(
        paragraph for paragraph in paragraphs if len(paragraph.split()) >= LONG_PARAGRAPH
    )
    all_sentences = sentences("\n\n".join(paragraphs))
    known = sum(language.words.issuperset(words(sentence)) for sentence in all_sentences)
    numbers = [_number(*heading) for heading in HEADING.findall(text)]
    return Reading(
        num_tokens=num_tokens,
        known_sentences=known / max(1, len(all_sentences)),
        strange_triples=strange / max(1, len(triples)),
        most_repeated=max(runs.values(), default=0),
        most_copied=max(copies.values(), default=0),
        whole_paragraphs=sum(map(_is_whole, paragraphs)) / len(paragraphs),
        wrong_pronouns=_wrong_pronouns(all_sentences),
        chapters_in_order=numbers == list(range(1, len(numbers) + 1)),
    )


def _number(digits: str, word: str) -> int:
    if digits:
        return int(digits)
    return ORDINALS.index(word.lower()) + 1 if word.lower() in ORDINALS else 0


def _is_whole(paragraph: str) -> bool:
    if paragraph.startswith("#"):
        return True
    starts = paragraph[0].isupper() or paragraph[0] in '"*'
    return starts and paragraph[-1] in '.!?:"*' and paragraph.count('"') % 2 == 0


def _wrong_pronouns(all_sentences: list[str]) -> float:
    """Only sentences with one name and pronouns of one kind can be judged; most name nobody else.

    In the generator's own stories some of them speak of a person of the sentence before, so the
    share is not zero there either.
    """
    judged = wrong = 0
    for sentence in all_sentences:
        outside = re.sub(r'"[^"]*"?', " ", sentence)
        names = {_NAME_TO_HE[name] for name in _NAME_TO_HE if name in outside.split()[:1]}
        kinds = {_PRONOUN_TO_HE[word] for word in words(outside) if word in _PRONOUN_TO_HE}
        others = sum(name in outside for name in _NAME_TO_HE)
        if len(names) == 1 and len(kinds) == 1 and others == 1:
            judged += 1
            wrong += names != kinds
    return wrong / max(1, judged)
