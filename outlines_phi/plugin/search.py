"""What is known of the conditioned law without drawing from it: probabilities of values, and the most probable members."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig

from ..errors import EmptyLanguageError, UnsupportedError
from ..guides.table import Table
from ..phi.estimator import Phi, ProposalPhi
from ..phi.estimators.exact import Effort, ExactPhi
from ..phi.estimators.lookahead import LookaheadPhi
from ..sampling.draws import Draws
from .choices import MEANT, MISFITS, refuse_misfits, refuse_unknown
from .hosts.generation_config import said
from .options import USED, CallOptions

SEARCH_EFFORT = Effort(tokens=100_000)
"""Of an enumeration or a search for which no other effort is given. A certificate takes more than a draw."""

NOTHING_DRAWN = "nothing is drawn here, so leave it out"
MEANT_BY: dict[str, dict[str, str]] = {
    "probabilities()": {**MEANT, "n": NOTHING_DRAWN, "samples": NOTHING_DRAWN, "top": "the values are sorted already"},
    "mode()": {**MEANT, "n": "give top=, the number of members", "samples": NOTHING_DRAWN},
}
"""What is meant by keywords that these do not take."""


def texts(draws: Draws, options: CallOptions) -> str | list[str]:
    """Return what stock Outlines would: a text, or a list where several were asked for."""
    if draws.failures:
        raise EmptyLanguageError(
            f"{draws.failures} of {draws.failures + len(draws)} {options.launched} met a step where {options.obstacle}; they are "
            f"draws of weight 0, which texts cannot tell. {options.remedy}, use phi='exact', or take the weights: "
            "outlines_phi.Generator(model, T).sample(prompt, n=...)."
        )
    return draws.texts[0] if len(draws) == 1 else draws.texts


def search_options(
    phi: Phi, keywords: dict[str, Any], defaults: GenerationConfig | None
) -> tuple[CallOptions, dict[str, Any]]:
    """Return what a call with ``do_sample=False`` asks for, and the limits of its search.

    Raises
    ------
    UnsupportedError
        A proposal, which names a way to draw and no law whose mode this would be.
    """
    refuse_misfits("do_sample=False", keywords)
    match phi:
        case ProposalPhi() | LookaheadPhi():
            raise UnsupportedError(
                f"do_sample=False was given with phi={phi.name!r}: the most probable member is that of the conditioned law, "
                "whatever proposal draws would come from. Give phi='exact', or phi=None for Hugging Face's step-by-step argmax."
            )
        case ExactPhi():
            tolerance = phi.tolerance
        case _:
            tolerance = 0.0
    options = CallOptions.read({**keywords, "do_sample": None}, defaults)
    return options, {"tolerance": tolerance, "effort": search_effort(phi, None)}


def check_closed(table: Table, door: str) -> None:
    """Refuse to search free text, of which ``door`` was asked.

    Raises
    ------
    UnsupportedError
        Says what to use.
    """
    if table.guide.open:
        raise UnsupportedError(
            f"{door} was asked of free text with banned phrases. There are as many texts as the budget has room for, and none "
            "has a probability that could be ranked. Give an output type, draw texts (sample()), or give phi=None and "
            "do_sample=False to a call for Hugging Face's step-by-step argmax under the mask of the phrases."
        )


def check_tolerance(tolerance: object) -> None:
    """Raise :class:`UnsupportedError` unless an interval may have this width."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 <= tolerance < 1:
        raise UnsupportedError(f"tolerance={tolerance!r} was given; expected a number in [0, 1).")


def law_options(table: Table, door: str, keywords: dict[str, Any], defaults: GenerationConfig | None) -> CallOptions:
    """Return what defines the law that ``door`` is asked about.

    Raises
    ------
    UnsupportedError
        Free text, a keyword of calls that draw, or one that is not known.
    """
    check_closed(table, door)
    refuse_misfits(door, keywords)
    known = [name for name in USED if all(name not in misfit.names for misfit in MISFITS[door])]
    refuse_unknown(said(keywords), known, MEANT_BY[door])
    return CallOptions.read(keywords, defaults)


def search_effort(phi: Phi | None, effort: Effort | None) -> Effort:
    """Return the effort of the call, else that of the estimator where it is not the default of draws."""
    if effort is not None:
        if not isinstance(effort, Effort):
            raise UnsupportedError(f"effort={effort!r} was given; expected Effort(tokens=..., seconds=...).")
        return effort
    match phi:
        case ExactPhi() if phi.effort != Effort():
            return phi.effort
    return SEARCH_EFFORT
