"""Several tokens per model call, and the same distribution: what each kind of draft brings for JSON, and a drafter of one's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

import outlines_phi
from outlines_phi.drafting import Draft, Drafter, Drafting, DraftRun, Site
from outlines_phi.lm import bundled

PROMPTS = [f"Person: {name} is a {job}. JSON: " for name in ("Nora", "Hugo") for job in ("baker", "teacher")]


class Person(BaseModel):
    """A person, as the bundled model writes people."""

    name: str = Field(max_length=30)
    age: int
    city: str = Field(max_length=30)


class NameOfThePrompt(Drafter, Drafting):
    """Knows that a record begins with the second word of its prompt, and nothing else."""

    name = "name of the prompt"

    def begin(self, run: DraftRun) -> Drafting:
        """Note the beginning of each record."""
        self.beginnings = []
        for prompt in run.prompts:
            text = run.vocabulary.decode(prompt).decode()
            beginning = f'{{"name": "{text.split()[1]}", "age": '
            self.beginnings.append(tuple(run.encode(beginning)) if run.encode else ())
        return self

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        """Propose the rest of the beginning, where the text is one of it so far."""
        drafts = []
        for site, length in zip(sites, lengths, strict=True):
            beginning, written = self.beginnings[site.row], len(site.tokens)
            fits = beginning[:written] == site.tokens
            drafts.append(Draft(beginning[written:][:length] if fits else ()))
        return drafts


DRAFTS: dict[str, Any] = {
    "none": None,
    "forced": "forced",
    "forced, prompt_lookup": ["forced", "prompt_lookup"],
    "name of the prompt": NameOfThePrompt(),
    "name of the prompt, forced": [NameOfThePrompt(), "forced"],
}


def main(n: int = 20) -> None:
    """Draw ``n`` records for each prompt with each draft."""
    model = outlines_phi.from_transformers(*bundled.load())
    for phi in ("local", "exact"):
        print(f"phi={phi!r:8} {'draft':36} {'model calls':>12} {'tokens per call':>16} {'drafts kept':>12}")
        for name, draft in DRAFTS.items():
            generator = outlines_phi.Generator(model, Person, phi=phi, draft=draft)
            counts = [draws.counts for draws in (generator.sample(prompt, 1, seed=0) for prompt in PROMPTS)]
            turns, drafted = sum(c.turns for c in counts), sum(c.drafted for c in counts)
            per_call = f"{sum(c.written for c in counts) / turns:.2f}" if turns else "1"
            kept = f"{sum(c.followed for c in counts) / drafted:.0%}" if drafted else ""
            print(f"{'':12} {name:36} {sum(c.calls for c in counts):12} {per_call:>16} {kept:>12}")

    print("\nThe same distribution: cities of exact records, without a draft and with one")
    for name in ("none", "forced, prompt_lookup"):
        generator = outlines_phi.Generator(model, Person, phi="exact", draft=DRAFTS[name])
        cities = Counter(person.city for prompt in PROMPTS for person in generator.sample(prompt, n, seed=1).values)
        print(f"{name:36}", ", ".join(f"{city} {count / cities.total():.0%}" for city, count in cities.most_common(5)))


if __name__ == "__main__":
    main()
