"""What a run draws: everything but its prompts, before the model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

from ..errors import too_small
from ..phi.estimator import Phi
from ..plugin.call import Call
from ..plugin.generator import Generator, PhiGenerator
from ..plugin.options import CallOptions
from ..plugin.session import PhiModel
from ..plugin.types.output_types import to_language
from ..plugin.wrapping import wrapped
from ..sampling.phi_options import LookaheadPhi
from ..settings import SamplingSettings
from . import journal
from .batches import Batches
from .loaded_model import identity


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """All that decides the draws of a run but its prompts. It holds no model, so that it travels to where there is one."""

    # What makes the model, and its name.
    load: Callable[[], Any]
    model: str
    # The output type, its name, and the call that is made for each batch of prompts.
    output_type: Any
    type_name: str
    call: Call
    # Draws per prompt, and where all random streams come from; fresh ones where there is none.
    n: int
    seed: int | None
    told: tuple[tuple[str, Any], ...] = ()  # what else a file of the draws says of them

    def loaded(self) -> PhiModel:
        """Return the model."""
        return wrapped(self.load())

    def batches(self, model: PhiModel) -> Batches:
        """Compile the output type, and return what draws; raises what every prompt would raise."""
        options, ban = self._options(model), self.call.ban
        generator = Generator(model, self.output_type, phi=self.call.phi, banned_phrases=ban, draft=options.draft)
        _check_length(generator, options.settings)
        keep = {name: value for name, value in self.call.keywords.items() if name != "draft"}
        return Batches(generator=generator, keywords=keep, n=self.n, seed=self.seed)

    def header(self, model: PhiModel) -> journal.Record:
        """Return the first line of a file of the draws."""
        options = self._options(model)
        language = "" if self.output_type is None else to_language(self.output_type)
        return journal.header(
            model=identity(self.model, model),
            output_type=self.type_name,
            pattern=language if isinstance(language, str) else language.text,
            settings=options.settings,
            tokenization=options.tokenization,
            ban=self.call.ban,
            phi=_told(self.call.phi),
            sampler=None if options.sampler is None else asdict(options.sampler),
            draft=None if options.draft is None else {"names": options.draft.names, "length": options.draft.length},
            n=self.n,
            seed=self.seed,
            **dict(self.told),
        )

    def _options(self, model: PhiModel) -> CallOptions:
        return CallOptions.read(self.call.keywords, model.defaults, self.call.ban)


def _told(phi: Phi | None) -> str:
    """Return how a file names an estimator: two that differ in the distribution of their draws differ in it."""
    assert phi is not None  # a file has an output type, or a ban
    return f"{phi.name} (weighted)" if phi == LookaheadPhi(weights=True) else phi.name


def _check_length(generator: PhiGenerator, settings: SamplingSettings) -> None:
    """Raise now what every prompt would raise: the length limit is too small for the format."""
    table = generator.logits_processor.table
    least, most = table.guide.min_tokens(table.start), settings.max_new_tokens
    if most is not None and most < least:
        raise too_small(most, least)
