"""The small languages of the comparison with peers, each with its exact distribution over texts."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import outlines

import outlines_phi

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Language:
    """A regular expression after a prompt of the bundled model.

    Attributes
    ----------
    name, prompt, pattern
        Its name, the text before it, and its texts.
    budget
        Tokens at most, end of sequence included: more than the bytes of any member, so that it never binds.
    """

    name: str
    prompt: str
    pattern: str
    budget: int

    def generator(self, model: Any, **options: Any) -> Any:
        """Return this package's generator."""
        return outlines_phi.Generator(model, outlines.regex(self.pattern), **options)

    def distribution(self, model: Any) -> tuple[float, Mapping[str, float]]:
        """Return ``Phi``, and ``mu*`` over texts to within a total variation of 1e-6, by enumeration."""
        found = self.generator(model).probabilities(self.prompt, tolerance=TOLERANCE, max_new_tokens=self.budget)
        return math.exp(found.log_z_bounds[0]), found.distribution


def dyck(pairs: int) -> list[str]:
    """Return the balanced words of so many pairs of round brackets."""
    if pairs == 0:
        return [""]
    return [f"({a}){b}" for k in range(pairs) for a in dyck(k) for b in dyck(pairs - 1 - k)]


BRACKETS = "|".join(re.escape(word) for pairs in range(1, 5) for word in dyck(pairs))
ROLES = "wizard|rogue|healer|ranger captain"
RECORD = r'\{"race": "elf", "role": "(ranger|rogue|wizard|healer|warrior)", "level": [1-3], "alive": (true|false)\}'
QUESTION = "Question: is the bakery open on Sunday? Answer: "
LANGUAGES = (
    Language("literal, rare values", "Person: Nora is a baker. City: ", "Oslo|Lima|San Diego|Santiago|New York", 24),
    Language("Dyck-1 up to 8", "Brackets: ", BRACKETS, 12),
    Language("Dyck-1 up to 8, off-prompt", QUESTION, BRACKETS, 12),
    Language("enum", "Character: Aria is a brave elf. Role: ", ROLES, 20),
    Language("enum, off-prompt", "Brackets: ", ROLES, 20),
    Language("JSON", "Character: Aria is a brave elf. JSON: ", RECORD, 80),
    Language("JSON, off-prompt", QUESTION, RECORD, 80),
)
