"""The inspection that ``outlines-phi inspect`` shows, made for the vocabulary of a tokenizer or of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

from outlines_phi.cli.command_options import ModelOptions, SettingOptions
from outlines_phi.cli.inputs import load, load_tokenizer
from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.plugin.call import CallOptions
from outlines_phi.plugin.types.output_types import to_language
from outlines_phi.plugin.types.tables import CompiledTypes
from outlines_phi.vocabulary.trie import fewest_tokens
from outlines_phi.vocabulary.vocabulary import Vocabulary

from ..inspection.inspected import Inspected
from ..inspection.inspection import Inspection
from ..inspection.model_masses import PromptedModel
from ..inspection.node_verdicts import MOST, subject_of, verdicts_of
from ..verification.second_patterns import read_by_the_oracle


@final
class InspectionMaker:
    """Makes inspections of an output type, less what is banned."""

    def __init__(self, output_type: Any, banned: BannedPhrases | None) -> None:
        self._type, self._banned = output_type, banned
        self._tokenizer: Any = None

    def without_model(self, name: str, tokenizer: str, budget: int | None) -> Inspection:
        """Return the inspection over the tokens of ``tokenizer``, of texts of at most ``budget`` tokens."""
        read = load_tokenizer(tokenizer)
        vocabulary = Vocabulary.from_tokenizer(read)
        types = CompiledTypes(vocabulary)
        guide = types.without(self._type, self._banned).guide
        self._tokenizer = read
        return Inspection(Inspected.of(name, guide, types.of(self._type).guide, budget), encoder(read, vocabulary))

    def with_model(
        self, name: str, source: ModelOptions, sampling: SettingOptions, prompt: str, effort: int
    ) -> Inspection:
        """Return the inspection of texts after ``prompt``, about which a model is asked."""
        loaded = load(source.model, source.device, source.dtype, source.host)
        options = CallOptions.read(sampling.keywords(), loaded.defaults)
        vocabulary = loaded.lm.vocabulary
        types = CompiledTypes(vocabulary)
        table = types.without(self._type, self._banned)
        with loaded.asking([prompt], table, options) as request:
            ids, budget, start = request.prompts[0], request.budgets[0], request.starts[0]
        before = vocabulary.decode(token for token in ids if token < len(vocabulary))
        inspected = Inspected.of(name, table.guide, types.of(self._type).guide, budget, before)
        prompted = PromptedModel(loaded.lm, options.settings, ids, table, budget, start, effort)
        self._tokenizer = loaded.hf_tokenizer
        return Inspection(inspected, encoder(loaded.hf_tokenizer, vocabulary), prompted, prompt)

    def verified(self, inspection: Inspection, depth: int) -> Inspection:
        """Return it with the verdicts on its masks."""
        language = to_language(self._type)
        pattern = language if isinstance(language, str) else None
        if isinstance(language, Grammar):
            terminal = language.reduced().alone
            pattern, shortest = (None, False) if terminal is None else read_by_the_oracle(terminal)
            pattern = None if shortest else pattern
        subject = subject_of(inspection.inspected.plain, pattern, depth=depth, most=MOST, tokenizer=self._tokenizer)
        if subject is None:
            raise UnsupportedError(
                "Leave --depth out, or give a grammar in Lark's dialect or GBNF, a JSON schema or a regular expression. What the "
                f"masks of a {type(inspection.inspected.plain).__name__} promise is not verified."
            )
        return replace(inspection, verdicts=verdicts_of(inspection.inspected.machine, subject))


def encoder(tokenizer: Any, vocabulary: Vocabulary) -> Callable[[str], Sequence[int]]:
    """Return the encoder of texts in tokens, without those that only a whole prompt has; the longest without a tokenizer."""

    def encode(text: str) -> Sequence[int]:
        if tokenizer is None:
            return fewest_tokens(vocabulary, text.encode())
        return list(tokenizer.encode(text, add_special_tokens=False))

    return encode
