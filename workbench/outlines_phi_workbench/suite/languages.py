"""The languages of the fidelity suite: what is written, after which prompt of the bundled model, in which tokenizations."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

import numpy as np
from pydantic import BaseModel, Field

from outlines_phi import EmptyLanguageError, Vocabulary
from outlines_phi.automata.automaton import ByteAutomaton, explored
from outlines_phi.automata.lift import FIRST, Transformations
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.table import Table
from outlines_phi.plugin.session import PhiModel
from outlines_phi.plugin.types.tables import OWN
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.vocabulary import EOS, NEVER, Partition

PAIRS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))  # The kinds of brackets, in the order in which they are used


def dyck(kinds: int, length: int, *, exactly: bool) -> ByteAutomaton:
    """Return the automaton of balanced words of ``length`` brackets, or at most that, of 1 to 4 ``kinds``; not empty."""
    pairs = PAIRS[:kinds]

    def steps(place: tuple[str, int]) -> list[tuple[str, int] | None]:
        """Return the place after each bracket: the closing ones that are due, and how many brackets are left."""
        due, left = place
        opened = [(due + closing, left - 1) if len(due) + 2 <= left else None for _, closing in pairs]
        closed = [(due[:-1], left - 1) if due.endswith(closing) else None for _, closing in pairs]
        return [after for both in zip(opened, closed, strict=True) for after in both]

    places, after = explored([("", length)], steps)
    targets = np.zeros((len(after), 256), dtype=np.int32)
    targets[:, [ord(bracket) for pair in pairs for bracket in pair]] = after
    ends = [not due and (left == 0 if exactly else left < length) for due, left in places]
    return ByteAutomaton.from_table(targets, np.array([False, *ends])).trim()


def of_single_bytes(automaton: ByteAutomaton, vocabulary: Vocabulary) -> FSMGuide:
    """Return the guide of the texts of ``automaton`` written one byte to a token: one tokenization per text.

    The model's distribution is as it is; other tokenizations are outside the language.
    """
    single = tuple(token if len(token) == 1 else b"" for token in vocabulary.tokens)
    guide = FSMGuide.from_automaton(automaton, replace(vocabulary, tokens=single))
    # The automaton knows too many tokenizations.
    return replace(guide, vocabulary=vocabulary, automaton=None)


def of_sequences(members: Iterable[Sequence[int]], vocabulary: Vocabulary) -> FSMGuide:
    """Return the guide of some token sequences, given without their end: the least automaton."""
    sequences = frozenset(map(tuple, members))
    used = sorted(set().union(*sequences))

    def steps(rests: frozenset[tuple[int, ...]]) -> list[frozenset[tuple[int, ...]] | None]:
        """Return the rests behind each token: prefixes that are continued alike are one place."""
        after: dict[int, set[tuple[int, ...]]] = {}
        for token, *rest in filter(None, rests):
            after.setdefault(token, set()).add(tuple(rest))
        return [frozenset(after[token]) if token in after else None for token in used]

    if not sequences:
        raise EmptyLanguageError("A language of no token sequences was given; give at least one.")
    places, targets = explored([sequences], steps)
    classes, source = np.nonzero(targets.T)
    offsets = np.append(0, np.cumsum(np.bincount(classes, minlength=len(used))))
    moves = Transformations(offsets, source.astype(np.int32), targets[source, classes])
    class_of = np.full(len(vocabulary), NEVER, dtype=np.int32)
    class_of[used] = np.arange(FIRST, FIRST + len(used))
    class_of[list(vocabulary.eos_ids)] = EOS
    accepting = np.array([False, *(() in rests for rests in places)])
    guide = FSMGuide.from_moves(vocabulary, Partition(class_of, FIRST + len(used)), moves, accepting, 1)
    assert guide is not None
    return guide


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


def _dyck(name: str, prompt: str, kinds: int, length: int, exactly: bool, *, single: bool = False) -> Language:
    def table(model: PhiModel) -> Table:
        return Table(spelled(dyck(kinds, length, exactly=exactly), model.lm.vocabulary))

    spelled = of_single_bytes if single else FSMGuide.from_automaton
    title = (
        f"Dyck-{kinds} of {'' if exactly else 'up to '}{length} brackets, {'one-bracket' if single else 'BPE'} tokens"
    )
    return Language("brackets", name, title, prompt, table, length + 1)


def _typed(family: str, name: str, title: str, prompt: str, output_type: Any, budget: int | None = None) -> Language:
    # What outlines_core makes of the type: few enough texts that the truth about them is known.
    title += ", all tokenizations, free whitespace"
    return Language(family, name, title, prompt, lambda model: model.table(output_type, backend=OWN), budget)


def _regex(family: str, name: str, title: str, prompt: str, pattern: str, budget: int) -> Language:
    def table(model: PhiModel) -> Table:
        return Table(FSMGuide.from_automaton(compile_regex(pattern), model.lm.vocabulary))

    return Language(family, name, f"{title}, all tokenizations", prompt, table, budget)


def _listed(family: str, name: str, title: str, prompt: str, texts: Callable[[], list[str]]) -> Language:
    return Language(
        family, name, f"{title}, canonical tokenization", prompt, lambda model: canonical(texts(), model), 64
    )


def _spelled(model: PhiModel) -> Table:
    return Table(of_single_bytes(compile_regex("|".join(map(re.escape, orders()))), model.lm.vocabulary))


BRACKETS, STORY = "Brackets: ", "Character: Aria is a brave elf. Story: "
ORDER, QUESTION = "Order: green tea for Nora. JSON: ", "Question: is the bakery open on Sunday? Answer: "
CHARACTER = "New character: Aria. JSON: "
BAKER, TEACHER = "Person: Nora is a baker. ", "Person: Nora is a teacher. JSON: "
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
    Language("finite JSON", "json-order-single", "the same on-prompt, one-byte tokens", ORDER, _spelled, 96),
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
