"""Which phrases of a list are at fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .banned import BannedPhrases, Phrase

QUESTIONS = 100
"""How often it is asked whether part of a list is at fault. That finds a few culprits among many thousand phrases."""


def some_of(phrases: BannedPhrases, chosen: Iterable[Phrase]) -> BannedPhrases:
    """Return the list of the ``chosen`` phrases alone, with the same options."""
    options = ("ignore_case", "whole_word", "across_prompt", "level")
    return BannedPhrases(chosen, **{name: getattr(phrases, name) for name in options})


def culprits(phrases: BannedPhrases, at_fault: Callable[[BannedPhrases], bool]) -> BannedPhrases:
    """Return phrases of a list that are at fault together, none of which can be left out where they are few.

    QuickXplain (Junker 2004): halves the list again and again, so ``k`` culprits among ``n`` phrases are found with about
    ``2 k log2(n / k)`` questions. After :data:`QUESTIONS` what has not been asked about stays in.

    Parameters
    ----------
    phrases
        A list that is at fault.
    at_fault
        Whether part of the list is; a list at fault stays so with more phrases.
    """
    questions = iter(range(QUESTIONS))

    def find(taken: tuple[Phrase, ...], rest: tuple[Phrase, ...], asked: bool) -> tuple[Phrase, ...]:
        """Return what of ``rest`` is needed beside ``taken``; ``asked`` if ``taken`` alone is known not to do."""
        if not asked and taken:
            if next(questions, None) is None:
                return rest
            if at_fault(some_of(phrases, taken)):
                return ()
        if len(rest) == 1:
            return rest
        left, right = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        needed = find(taken + left, right, False)
        return find(taken + needed, left, not needed) + needed

    return some_of(phrases, find((), phrases.phrases, True))
