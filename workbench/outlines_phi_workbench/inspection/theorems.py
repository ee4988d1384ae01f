"""The dependency graph of the theorems: what each rests on, and what shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..verification.verification import CHECKS


class Theorem(NamedTuple):
    """A statement of the theory, or with a ``G`` of that of grammars, which are pages of the documentation.

    ``rests_on``: The statements and assumptions that its argument uses.
    ``proofs``: Theorems of ``proofs/``, by file and name.
    ``checks``: What ``outlines-phi verify`` runs for a given grammar or schema.
    """

    id: str
    says: str
    rests_on: str = ""
    proofs: str = ""
    checks: str = ""


THEOREMS = (
    Theorem("1.1", "A walk along live tokens is never cut short."),
    Theorem("1.2", "Doob transform: p times Phi, token by token, is the conditioned distribution.", "", "doob.doob_identity"),
    Theorem("1.3", "A proposal is exact if and only if h is proportional to Phi among siblings.", "1.2"),
    Theorem("1.4", "TV <= 1 - (a / b)^N, where h is within factors a and b of Phi.", "1.2", "distance.a_priori"),
    Theorem("1.5", "Of texts that begin with a member, the longest counts; no member of the language begins another."),
    Theorem("2.1", "Tokens with equal transformations are interchangeable."),
    Theorem("4.1", "E[w f] = Phi mu*(f), for any proposal.", "", "doob.weighted_mean doob.mean_weight"),
    Theorem("4.2", "One of several, picked by weight, keeps the mean.", "4.1"),
    Theorem("4.3", "TV is one less the mean of min(1, w / Phi).", "4.1", "distance.tv_overlap"),
    Theorem("4.4", "A mass that is tested token by token is estimated without bias.", "4.1"),
    Theorem("5.1", "The bounds of the tree hold, and only tighten."),
    Theorem(
        "5.2", "Thinning: an attempt returns a member with p / U, whatever happens to the bounds meanwhile.", "5.1",
        "thinning.thinning thinning.step_distribution thinning.accepted thinning.returned_conditioned "
        "pick.count_choose pick.count_fail pick.choose_step pick.choose_free counterexamples.the_coin_is_needed",
    ),
    Theorem(
        "5.2a", "Tokens drawn ahead are draws of the same step.", "5.2",
        "ahead.taken_first ahead.proportional ahead.drawn_ahead",
    ),
    Theorem(
        "5.3", "Launch order: accepted draws are independent.", "5.2",
        "thinning.launch_order counterexamples.launch_order_is_needed",
    ),
    Theorem("5.4", "An effort changes a set by at most the chance that it runs out.", "5.3"),
    Theorem("5.5", "Residual attempts estimate Phi without bias.", "5.1", "residual.residual residual.unbiased"),
    Theorem("5.6", "Walks by frozen bounds are within (U - Lo) / U.", "5.1 4.3", "distance.certificate"),
    Theorem("5.7", "The members that the tree holds are at a distance of 1 - Lo / Phi.", "5.1"),
    Theorem("5.8", "A bound by betting holds at its confidence, at all times together.", "5.5 5.7"),
    Theorem("5.9", "Weights of the adaptive proposal are unbiased.", "4.1 5.1"),
    Theorem("6.1", "Runs of a matcher that have met stay together."),
    Theorem("6.2", "A look-ahead draws each window exactly.", "5.2", "windows.telescope"),
    Theorem("6.3", "The weight of a look-ahead's text is unbiased.", "6.2 5.5 4.1", "windows.window_weight"),
    Theorem("6.4", "Early release draws given that the token comes to be committed.", "6.2"),
    Theorem("6.5", "Fields are drawn from the model's own distribution of each, given those before it.", "6.2"),
    Theorem("6.6", "The weight of a text drawn field by field is unbiased.", "6.3 6.5 5.3 5.5 5.9 4.2"),
    Theorem("6.7", "The weights of the last field vary no more than those of masking.", "6.5 4.1"),
    Theorem("7.1", "Verification of a draft draws the target.", "", "drafts.verified drafts.residual_sum"),
    Theorem("7.2", "A round of drafts is a walk by the target.", "7.1"),
    Theorem("7.3", "Drafts draw masking for h = 1, and the conditioned distribution for h = Phi.", "7.2 1.2 5.2"),
    Theorem("8.1", "Particles estimate Phi without bias.", "4.1"),
    Theorem("8.2", "A particle picked by weight keeps the mean.", "8.1"),
    Theorem("9.1", "Intervals of probabilities hold.", "5.1"),
    Theorem("9.2", "The mode that is found is the mode.", "5.1"),
    Theorem("G2.1", "Grammars over characters, cut into terminals, derive the same texts."),
    Theorem(
        "G3.1", "The lexing transducer emits what longest match cuts.", "",
        "lexing.transducer lexing.longest_lexeme lexing.longest_most lexing.terminalsE certificate.lexer_certified "
        "mask.published_accepts mask.longest_match_does_not mask.ours_does_not", "T1",
    ),
    Theorem("G4.1", "What tokens do depends on their bytes alone.", "", "transducer.reads_cat mask.classes"),
    Theorem("G5.1", "The parser reads what begins a word of the grammar.", "", "", "T7"),
    Theorem(
        "G5.2", "The top of a stack decides, or leaves a rest that depends on what lies below.", "G5.1",
        "pushdown.invariance pushdown.decided_or_below pushdown.over_the_top preprocessing.preprocessing",
    ),
    Theorem("G6.1", "The distance to the end is finite if and only if tokens complete a member.", "G3.1 G4.1 G5.1", "", "T16"),
    Theorem(
        "G7.1", "Soundness: what is allowed can be completed.", "G6.1",
        "mask.sound_and_complete mask.no_dead_end grammar.derived_spells certificate.mask_certified", "T10",
    ),
    Theorem(
        "G7.2", "Completeness: what begins a member is allowed.", "G6.1 G4.1 G5.1 S5",
        "mask.sound_and_complete mask.mask_characterization mask.over_approximation grammar.nothing_derived "
        "certificate.mask_certified", "T11",
    ),
    Theorem(
        "G7.3", "The end is allowed after members alone.", "G3.1 G5.1",
        "mask.end_characterization mask.checker certificate.end_certified", "T12",
    ),
    Theorem("G7.4", "Masks depend on the text, not on its tokens.", "G4.1", "transducer.reads_cat mask.stack_invariance"),
    Theorem("G7.5", "Length limits cut nothing short.", "G6.1"),
    Theorem("G9.1", "A formula of a schema and its shapes have the same values."),
    Theorem("G9.2", "The machine of a schema is deterministic.", "G9.1"),
    Theorem("G9.3", "It accepts the texts of the values that the schema is true of.", "G9.1 G9.2", "", "T10 T11 T12"),
    Theorem("G9.4", "Every configuration has a way to the end.", "G9.2", "", "T10 T16"),
    Theorem("G9.5", "Masks of a schema do not depend on the stack.", "G9.2"),
)  # fmt: skip


def theorem_graph(verdicts: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Return the statements and assumptions, and an edge from each to what it rests on; ``verdicts`` are those of checks, by id."""
    checks = {check.id: check for check in CHECKS}
    shown = {
        id: ": ".join([f"{id} {check.statement}", *filter(None, [verdicts.get(id)])]) for id, check in checks.items()
    }
    nodes: list[dict[str, Any]] = [
        {"id": id, "kind": "assumption", "label": f"{id} {check.statement}", "text": f"Assumption {shown[id]}"}
        for id, check in checks.items()
        if id.startswith("S")
    ]
    used = {id for each in THEOREMS for id in each.rests_on.split()}
    edges = []
    for each in THEOREMS:
        kind = "proven" if each.proofs else "checked" if each.checks else "argued"
        page = "Grammar theory" if each.id.startswith("G") else "Theory"
        lines = [f"{each.says}", "", f"{page}, Statement {each.id.removeprefix('G')}"]
        lines += [f"proven in Coq: {proof}" for proof in each.proofs.split()]
        lines += [f"checked: {shown[check]}" for check in each.checks.split()]
        label, text = f"{each.id} {each.says}", "\n".join(lines)
        nodes.append({"id": each.id, "kind": kind, "label": label, "text": text, "start": each.id not in used})
        edges += [{"source": each.id, "target": below, "label": ""} for below in each.rests_on.split()]
    return {"nodes": nodes, "edges": edges}
