"""The same work by this package and by its peers: fidelity, model calls and tokens, processor time, masks and bans.

    python -m benchmarks.peers  # about ten minutes of processor time

Outlines with its three backends, assisted decoding of transformers and plain rejection run beside this package;
genlm-control in an environment of its own, ``.venv-genlm``, which is made on the first run. All draw from the same bundled model
after the same prompts, at temperature 1, and the exact distribution of each language is enumerated. ``--only-page`` measures
nothing and writes the tables and the figure of ``docs/peers.md`` from the kept results.

``peers.json`` is about **one draw** in a call of its own, caches and trees empty: its calls, its tokens beyond the prompt,
its processor time, and the total variation of its distribution beside the mean one that as many exact draws show (*floor*);
then about **many draws** of one prompt at equal model tokens, of which ``peers_curves.json`` has all points. *Probabilities* are
read, not drawn: they have no number of draws. ``peers_masks.json`` compares masks; ``peers_bans.json`` is about banned phrases,
``peers_tools.json`` about the tool that is called.
"""

import warnings
from importlib.metadata import version
from typing import Annotated, NamedTuple

import torch
import typer
from rich.progress import track

import outlines_phi
from benchmarks.bans.cases import roles, tactics
from benchmarks.control import Ours
from benchmarks.peers import page, tools
from benchmarks.peers.banning import COLUMNS, Banning
from benchmarks.peers.client import GenLM
from benchmarks.peers.comparison import Peers, Sizes
from benchmarks.peers.environment import interpreter
from benchmarks.peers.languages import LANGUAGES
from benchmarks.peers.stock import Stock
from benchmarks.report import Report

CHOSEN = (
    "literal, rare values",
    "Dyck-1 up to 8",
    "Dyck-1 up to 8, off-prompt",
    "enum, off-prompt",
    "JSON, off-prompt",
)


def main(
    genlm: Annotated[str, typer.Option(help="Interpreter with genlm-control; 'none' leaves it out.")] = "",
    languages: Annotated[str, typer.Option(help="Languages by name, separated by semicolons.")] = ";".join(CHOSEN),
    particles: Annotated[str, typer.Option(help="Particles of a run of genlm-control.")] = "1 10",
    ban_particles: Annotated[str, typer.Option(help="The same where phrases are banned.")] = "1 10 50",
    draws: Annotated[int, typer.Option(help="Draws that the distribution of one draw is read from.")] = 256,
    pool: Annotated[int, typer.Option(help="Draws of a curve, at most.")] = 1024,
    bans: Annotated[int, typer.Option(help="Draws of each method of banning.")] = 500,
    only_page: Annotated[bool, typer.Option(help="Measure nothing.")] = False,
) -> None:
    """Measure, write the five results, and show them in ``docs/peers.md``."""
    if not only_page:
        measure(Sides(genlm, numbers(particles), numbers(ban_particles)), languages.split(";"), draws, pool, bans)
        tools.main(8 * draws)
    page.write()


class Sides(NamedTuple):
    """The settings of genlm-control: its interpreter, and the particles of its runs, of languages and of bans."""

    genlm: str
    particles: list[int]
    ban_particles: list[int]


def numbers(text: str) -> list[int]:
    """Return the numbers of an option."""
    return [int(n) for n in text.split()]


def measure(sides: Sides, languages: list[str], draws: int, pool: int, bans: int) -> None:
    """Measure and write the four results."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", outlines_phi.FidelityWarning)
    ours, stock = Ours(), Stock()
    peer = None if sides.genlm == "none" else GenLM(sides.genlm or interpreter(), ours.model.lm.vocabulary.tokens)
    sizes = Sizes(draws=draws, pool=pool, single=min(24, draws), assisted=min(96, draws), particles=2 * draws)
    tables = Peers(ours, stock, peer, sides.particles, sizes)
    for language in track([one for one in LANGUAGES if one.name in languages], description="languages"):
        tables.add(language)
    title = "One draw without banned phrases: tokens, distance from the exact distribution, and leaks"
    banned = Report("peers_bans", title, COLUMNS)
    for case in track([tactics(9.0), tactics(1.2e10), roles()], description="bans"):
        for row in Banning(case, bans).rows(peer, sides.ban_particles):
            banned.add(*row)
    versions = {name: version(name) for name in ("llguidance", "xgrammar")}
    if peer is not None:
        peer.close()
        versions |= {f"its {name}" if name != "genlm-control" else name: v for name, v in peer.versions.items()}
    for report in (tables.draw, tables.curves, tables.masks, banned):
        report.write(draws=draws, pool=pool, bans=bans, **versions)


if __name__ == "__main__":
    typer.run(main)
