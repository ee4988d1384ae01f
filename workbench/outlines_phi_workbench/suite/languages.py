"""The languages of the fidelity suite: what is written, after which prompt of the bundled model, in which tokenizations."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, final

from pydantic import BaseModel, Field

from outlines_phi import Vocabulary
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.table import Table
from outlines_phi.plugin.session import PhiModel
from outlines_phi.plugin.types.tables import OWN
from outlines_phi.regex.code_automaton import CodeAutomaton
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.regex.spelling import spelled, utf8

PAIRS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))  # The kinds of brackets, in the order in which they are used
BEYOND = 0x10000  # The first character behind the plane that has the surrogates, which are none


@cache
def dyck(kinds: int, length: int) -> str:
    """Return a regular expression of the balanced words of ``length`` brackets, an even number, of 1 to 4 ``kinds``."""
    words = (
        f"{re.escape(opening)}{dyck(kinds, inner)}{re.escape(closing)}{dyck(kinds, length - 2 - inner)}"
        for inner in range(0, length, 2)
        for opening, closing in PAIRS[:kinds]
    )
    return f"({'|'.join(words)})" if length else ""


def of_single_bytes(automaton: ByteAutomaton, vocabulary: Vocabulary) -> FSMGuide:
    """Return the guide of the texts of ``automaton`` written one byte to a token: one tokenization per text.

    The model's distribution is as it is; other tokenizations are outside the language.
    """
    return _respelled(automaton, vocabulary, (token if len(token) == 1 else b"" for token in vocabulary.tokens))


def of_sequences(members: Iterable[Sequence[int]], vocabulary: Vocabulary) -> FSMGuide:
    """Return the guide of some token sequences, given without their end: of texts in which each token is a character."""
    letters = [chr(BEYOND + token) for token in range(len(vocabulary))]
    texts = CodeAutomaton.of_values("".join(map(letters.__getitem__, ids)) for ids in members)
    spelling = (b"" if token in vocabulary.eos_ids else letter.encode() for token, letter in enumerate(letters))
    return _respelled(spelled(texts, utf8), vocabulary, spelling)


def _respelled(automaton: ByteAutomaton, vocabulary: Vocabulary, tokens: Iterable[bytes]) -> FSMGuide:
    """Return the guide of the texts of ``automaton`` if ``tokens`` were the bytes of the tokens."""
    guide = FSMGuide.from_automaton(automaton, replace(vocabulary, tokens=tuple(tokens)))
    # The automaton knows other tokenizations.
    return replace(guide, vocabulary=vocabulary, automaton=None)


Build = Callable[[PhiModel], Table]  # Compiles what is allowed over the tokens of a model


@final
@dataclass(frozen=True)
class Language:
    """A language after a prompt."""

    family: str  # the panel of the figure that it is in
    name: str
    title: str  # what is written, in words
    prompt: Any  # what the model is asked: ``str`` or Outlines ``Chat``
    table: Build  # what is allowed, over the tokens of a model
    budget: int | None = None  # the most tokens, end of sequence included; ``None`` for the sampler's own choice


class Paid(BaseModel):
    """A record of one flag."""

    paid: bool


class CharacterRecord(BaseModel):
    """A record of enums and a flag."""

    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    alive: bool


class Person(BaseModel):
    """A record with free strings, as the model writes them."""

    name: str = Field(max_length=20)
    age: int
    city: str = Field(max_length=20)


class Painted(BaseModel):
    """A record whose last field the model never writes."""

    name: str = Field(max_length=20)
    age: int
    colour: Literal["red", "green", "blue"]


SIZES = ("small", "medium", "large", "extra large", "extra hot")
ROLES = ("ranger", "ranger scout", "ranger captain", "wizard", "wizard apprentice", "rogue")
CITIES = ("San Diego", "San Francisco", "Santiago", "Saint Petersburg", "New York", "New Orleans")
NAMES = ("Aria", "Bram", "Nora", "Hugo", "Zoe", "Tessa")


def canonical(texts: Iterable[str], model: PhiModel) -> Table:
    """Return ``texts`` as the tokenizer writes them: one tokenization per text."""
    encode = partial(model.hf_tokenizer.encode, add_special_tokens=False)
    return Table(of_sequences(map(encode, texts), model.lm.vocabulary))


def orders() -> list[str]:
    """Return every order as JSON."""
    fields = itertools.product(SIZES, range(1, 10), (True, False))
    return [json.dumps({"size": size, "count": count, "paid": paid}) for size, count, paid in fields]


def painted() -> list[str]:
    """Return some people with their colours as JSON: few enough to enumerate."""
    fields = itertools.product(NAMES, range(30, 50), ("red", "green", "blue"))
    return [json.dumps({"name": name, "age": age, "colour": colour}) for name, age, colour in fields]


def matching(pattern: str, *, single: bool = False) -> Build:
    """Return the language of a regular expression in all tokenizations, or in ``single`` bytes alone."""
    guide = of_single_bytes if single else FSMGuide.from_automaton
    return lambda model: Table(guide(compile_regex(pattern), model.lm.vocabulary))


def _dyck(name: str, prompt: str, kinds: int, length: int, exactly: bool, *, single: bool = False) -> Language:
    pattern = "|".join(dyck(kinds, each) for each in range(length if exactly else 2, length + 1, 2))
    title = (
        f"Dyck-{kinds} of {'' if exactly else 'up to '}{length} brackets, {'one-bracket' if single else 'BPE'} tokens"
    )
    return Language("brackets", name, title, prompt, matching(pattern, single=single), length + 1)


def _typed(family: str, name: str, title: str, prompt: str, output_type: Any, budget: int | None = None) -> Language:
    # What outlines_core makes of the type: few enough texts that the truth about them is known.
    title += ", all tokenizations, free whitespace"
    return Language(family, name, title, prompt, lambda model: model.table(output_type, backend=OWN), budget)


def _regex(family: str, name: str, title: str, prompt: str, pattern: str, budget: int) -> Language:
    return Language(family, name, f"{title}, all tokenizations", prompt, matching(pattern), budget)


def _listed(family: str, name: str, title: str, prompt: str, texts: Callable[[], list[str]]) -> Language:
    return Language(
        family, name, f"{title}, canonical tokenization", prompt, lambda model: canonical(texts(), model), 64
    )


BRACKETS, STORY = "Brackets: ", "Character: Aria is a brave elf. Story: "
ORDER, QUESTION = "Order: green tea for Nora. JSON: ", "Question: is the bakery open on Sunday? Answer: "
CHARACTER = "New character: Aria. JSON: "
BAKER, TEACHER = "Person: Nora is a baker. ", "Person: Nora is a teacher. JSON: "
ONE_ORDER = matching("|".join(map(re.escape, orders())), single=True)
DATE = "-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"

SUITE = (
    _dyck("dyck1-8-single", BRACKETS, 1, 8, True, single=True),
    _dyck("dyck1-12-single", BRACKETS, 1, 12, True, single=True),
    _dyck("dyck1-16-single", BRACKETS, 1, 16, True, single=True),
    _dyck("dyck2-8-single", BRACKETS, 2, 8, True, single=True),
    _dyck("dyck1-8", BRACKETS, 1, 8, True),
    _dyck("dyck1-upto8", BRACKETS, 1, 8, False),
    _dyck("dyck1-upto8-off", STORY, 1, 8, False),
    _dyck("dyck2-upto6", BRACKETS, 2, 6, False),
    _dyck("dyck2-upto6-off", STORY, 2, 6, False),
    _typed("finite JSON", "json-flag", "one bool", ORDER, Paid, 32),
    _listed("finite JSON", "json-order", "enum, 1 to 9, bool", ORDER, orders),
    _listed("finite JSON", "json-order-off", "the same off-prompt", QUESTION, orders),
    Language("finite JSON", "json-order-single", "the same on-prompt, one-byte tokens", ORDER, ONE_ORDER, 96),
    _typed("finite JSON", "json-character", "two enums and a bool", CHARACTER, CharacterRecord, 128),
    _regex("literals", "answer", "yes or no", QUESTION, "yes|no", 8),
    _regex("literals", "roles", "6 roles", "Character: Aria is a brave elf. Role: ", "|".join(ROLES), 32),
    _regex("literals", "cities", "6 cities", f"{BAKER}City: ", "|".join(CITIES), 32),
    _regex("literals", "cities-off", "6 cities off-prompt", QUESTION, "|".join(CITIES), 32),
    _regex("dates", "date", "10,080 dates", "Date: ", f"20[012][0-9]{DATE}", 16),
    _regex("dates", "date-off", "3,360 dates off-prompt", QUESTION, f"202[0-9]{DATE}", 16),
    _typed("free strings", "person", "two strings, an int", f"{BAKER}JSON: ", Person),
    _typed("free strings", "person-off", "the same off-prompt", QUESTION, Person),
    _listed("late bottleneck", "late-finite", "name, age, then a colour", TEACHER, painted),
    _typed("late bottleneck", "late-free", "free name, any age, then a colour", TEACHER, Painted),
)
"""The languages, in the order of the table."""


QUICK = frozenset({"dyck1-8-single", "dyck1-upto8", "json-order", "answer", "cities"})  # Those that take a moment


def own(name: str, prompt: Any, output_type: Any) -> Language:
    """Return the language of an application's output type after one of its prompts."""
    return Language("own", name, f"after {str(prompt)!r:.70}", prompt, lambda model: model.table(output_type))
