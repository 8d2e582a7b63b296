"""Deterministic prose. The same seed gives the same words on every machine.

Text is made of sentences with varied openings, so that two prompts with different seeds part within a few tokens and
a tokenizer meets the usual mix of words, numbers and punctuation.
"""

import random

_NAMES = "Ada Boris Clara Dmitri Elena Farid Greta Hugo Ines Jonas Keiko Lars Mira Nils Olga Priya Quinn Rosa".split()
_NOUNS = (
    "archive bridge camera deadline engine factory garden harbour invoice journal kitchen ladder machine network "
    "orchard packet quarry report schedule telescope umbrella valley warehouse window expedition library turbine "
    "notebook committee glacier workshop pipeline station letter market compass forest budget catalogue"
).split()
_VERBS = (
    "repaired measured opened described carried compared followed painted reviewed replaced sorted printed shipped "
    "tested borrowed explained closed counted labelled moved"
).split()
_ADJECTIVES = (
    "quiet broken narrow yellow careful distant heavy recent wooden empty public second frozen modern rough small "
    "unusual early patient northern"
).split()
_PLACES = (
    "near the river|behind the station|in the old town|on the third floor|at the edge of the field|under the roof|"
    "between two meetings|before the storm|after lunch|along the coast"
).split("|")
_SENTENCES = (
    "{name} {verb} the {adj} {noun} {place}.",
    "The {noun} that {name} {verb} was {adj}, and nobody had asked for {number} of them.",
    "Every {noun} needs a {adj} {noun2}; without one, {name} would have {verb} it {place}.",
    "When the {adj} {noun} arrived, {name} and {name2} {verb} it {number} times.",
    "According to {name2}, the {noun} stood {place}, next to a {adj} {noun2}.",
    "Rule {number}: a {noun} is {verb} only when the {noun2} is {adj}.",
    "\"Is the {noun} {adj}?\" asked {name}, who had {verb} the {noun2} {place}.",
    "It took {number} hours until the {adj} {noun2} was {verb} and the {noun} could stay {place}.",
)
_QUESTIONS = (
    "What should {name} do with the {adj} {noun}?",
    "Why was the {noun} {verb} {place}?",
    "Can you tell me who {verb} the {adj} {noun2} and what happened to the {noun}?",
    "How many of the {number} {adj} {noun}s are still {place}?",
)


class Text:
    """An endless source of sentences."""

    def __init__(self, *seed):
        self._random = random.Random("/".join(str(part) for part in seed))

    def _fill(self, templates):
        pick = self._random.choice
        return pick(templates).format(
            name=pick(_NAMES), name2=pick(_NAMES), noun=pick(_NOUNS), noun2=pick(_NOUNS), verb=pick(_VERBS),
            adj=pick(_ADJECTIVES), place=pick(_PLACES), number=self._random.randrange(2, 980),
        )

    def words(self, count):
        """About `count` words (never fewer) in whole sentences."""
        out, have = [], 0
        while have < count:
            sentence = self._fill(_SENTENCES)
            out.append(sentence)
            have += len(sentence.split())
        return " ".join(out)

    def question(self):
        return self._fill(_QUESTIONS)

    def ask(self, count):
        """About `count` words that end in a question."""
        question = self.question()
        rest = count - len(question.split())
        return f"{self.words(rest)} {question}" if rest > 0 else question
