"""The compiled output types of a vocabulary: each is lifted to it once."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar, TypeAlias, final
from weakref import WeakKeyDictionary, WeakValueDictionary

from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor
from outlines.processors import OutlinesLogitsProcessor
from outlines.types.dsl import Regex
from outlines_core import Index

from ...automata.automaton import ByteAutomaton
from ...automata.prefix_match import PrefixMatch, boundary
from ...automata.stops import StoppedTexts
from ...errors import EmptyLanguageError, GrammarError, UnsupportedError, VocabularyError
from ...format_limits import current_limits
from ...guides.fsm import FSMGuide, from_index, is_byte_level
from ...guides.grammar.cfg_guide import CFGGuide
from ...guides.grammar.grammar import Grammar
from ...guides.grammar.notation.reader import read_grammar
from ...guides.grammar.shared_lexemes import warn_of_neighbours
from ...guides.guide import Guide
from ...guides.json_schema.json_guide import JSONGuide
from ...guides.json_schema.reading.schema import Template
from ...guides.phrases.ban_language import ProductGuide, banned, free_text
from ...guides.phrases.banned import BannedPhrases
from ...guides.phrases.phrase_guide import BanningGuide, PhraseGuide
from ...guides.table import Table
from ...guides.thinking import Stops, ThinkingGuide, stopped
from ...numerics.cache import Cache, forget_parts, memory_of
from ...regex.patterns import compile_in_parts, compile_lexeme, compile_regex
from ...regex.spelling import Composed
from ...regex.syntax_tree import DIALECTS
from ...vocabulary.vocabulary import Vocabulary
from ..mistakes import too_deep
from ..processor import TableLogitsProcessor
from .output_types import (
    GrammarText,
    GuidanceText,
    JSONText,
    Language,
    Thinking,
    ThinkingText,
    patterns,
    to_core_language,
    to_language,
)

OWN = "outlines_core"  # The backend that is read as an automaton; the default of Outlines for regex and JSON

MASKING = ("llguidance", "xgrammar")
"""The backends that say which token may follow, and no more: left to Outlines, for calls without ``phi=`` and banned phrases."""

BACKENDS = (OWN, *MASKING)  # The backends that Outlines has

REGISTERED: dict[str, dict[str, Any]] = {}
"""The options of the backends of this package that were given to Outlines, by name: see :func:`outlines_phi.register_backend`."""


def masks_only(backend: str | None) -> bool:
    """Return True if ``backend`` is one of :data:`MASKING`."""
    if backend not in (None, *BACKENDS):
        registered = () if backend in REGISTERED else REGISTERED  # one is registered for calls, and not read here
        raise UnsupportedError(
            f"backend={backend!r} was given; expected one of {', '.join((*BACKENDS, *registered))}, or None."
        )
    return backend in MASKING


KEPT = 32  # Types whose languages are kept, for all models

KEPT_BYTES, LEAST_BYTES = 2**30, 2**24
"""The memory of the tables kept per vocabulary, and what one is counted as at least: it grows as texts are drawn."""


Written: TypeAlias = tuple[Language | None, BannedPhrases | None, Stops | None]
"""A language, ``None`` for free text, the phrases banned from it, and the strings that end its texts."""


@final
class CompiledTypes:
    """The languages of output types, compiled for a vocabulary and kept for later calls.

    Equal automata share a table, and with it the token trees, whether they came from an output type or from the logits processor
    of ``outlines.Generator(model, T)``; that of a stock model over the same tokenizer is read token by token. Threads that ask for
    the same language at once get the same table: one compiles it, the others wait.
    """

    # Languages know no vocabulary: those of types are read once for all models.
    _languages: ClassVar[Cache[tuple[type, int, str | None], tuple[Any, Language]]] = Cache(KEPT)
    _of_all: ClassVar[WeakValueDictionary[str, CompiledTypes]] = WeakValueDictionary()
    _reading: ClassVar = threading.RLock()

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiling = threading.RLock()
        self._tables: Cache[tuple[Any, ...], Table] = Cache(KEPT_BYTES)  # by language, by content, by ban or by ending
        # A processor cannot be a key that outlives it: ids are used again, and an index is not hashable.
        self._by_processor: WeakKeyDictionary[Any, Table] = WeakKeyDictionary()
        self._written: WeakKeyDictionary[Table, Written] = WeakKeyDictionary()

    @classmethod
    def of_vocabulary(cls, vocabulary: Vocabulary) -> CompiledTypes:
        """Return the languages compiled for a vocabulary: one for all models and logits processors that have it."""
        with cls._reading:
            return cls._of_all.setdefault(vocabulary.fingerprint, cls(vocabulary))

    def of(self, language: Any, backend: str | None = None) -> Table:
        """Return the table of an output type, of what a logits processor allows, of a guide, or a table itself.

        A logits processor whose language cannot be read is refused. ``backend`` says who reads a JSON schema; one that is compiled
        gives one :class:`outlines_phi.SchemaWarning` if the language does not honour it in full.
        """
        if backend is not None and masks_only(backend):
            raise UnsupportedError(
                f"Leave backend={backend!r} out: outlines_phi reads JSON schemas, regular expressions and grammars by "
                f"itself. {backend} says which token may follow and no more, so only plain masking can use it: "
                "outlines.Generator(model, T, backend=...), or a call of the model without phi= and banned_phrases=."
            )
        match language:
            case Table():
                return self._checked(language)
            case Guide():
                return self._checked(Table(language))
            case TableLogitsProcessor():
                return self._checked(language.table)
            case OutlinesCoreLogitsProcessor():
                with self._compiling:
                    if language not in self._by_processor:
                        self._by_processor[language] = self._of_index(language.index)
                    return self._by_processor[language]
            case OutlinesLogitsProcessor():
                raise UnsupportedError(
                    "Give the output type to outlines_phi.Generator(model, T), use backend='outlines_core' (the default for regex "
                    "and JSON), or leave phi= and banned_phrases= out (phi=None, banned_phrases=None). The language of a "
                    f"{type(language).__name__} cannot be read."
                )
            case None:
                raise UnsupportedError(
                    "Give a type, or phi=None: phi= was given without an output type, and free text has nothing to correct."
                )
        # Writing a pydantic model as a schema, and that as a pattern, takes longer than a draw. A model that is rebuilt
        # has another core schema, kept beside its language, so that no other one can have its identity.
        schema = getattr(language, "__pydantic_core_schema__", None) if isinstance(language, type) else None
        read = to_core_language if backend == OWN else to_language
        with self._compiling:
            if schema is None:
                return self._of_language(read(language), language)
            with self._reading:
                _, found = self._languages.of((language, id(schema), backend), lambda: (schema, read(language)))
            return self._of_language(found, language)

    def without(self, language: Any, ban: BannedPhrases | None, *, watched: bool = False) -> Table:
        """Return the table of what ``language`` allows, as :meth:`of` takes it, without banned phrases; ``None`` is free text then.

        ``watched`` is whether its guide has to tell how much of a text may become a phrase, for a look-ahead.
        """
        if ban is None:
            return self.of(language)
        if not any(self._vocabulary.tokens):
            raise UnsupportedError(
                "Give vocabulary=tokenizer: banned_phrases= was given, and what the tokens write is not known."
            )
        with self._compiling:
            table = None if language is None else self.of(language)
            # The level is no part of the language. A table is held by its key, so no other one can have its identity.
            key = table, ban.phrases, ban.ignore_case, ban.whole_word, ban.across_prompt
            found = self._kept(
                key, lambda: free_text(self._vocabulary, ban) if table is None else banned(table.guide, ban)
            )
            language, before, _ = (None, None, None) if table is None else self._written.get(table, (None, ban, None))
            if before is None:
                self._written.setdefault(found, (language, ban, None))
            if not watched or table is None or isinstance(found.guide, BanningGuide):
                return found
            return self._kept((*key, watched), lambda: ProductGuide(table.guide, PhraseGuide(table.vocabulary, ban)))

    def stopped(self, language: Any, ban: BannedPhrases | None, stops: Stops, *, watched: bool = False) -> Table:
        """Return the table of what :meth:`without` returns, ``None`` and ``None`` being free text, and strings end; see
        :func:`outlines_phi.guides.thinking.stopped`.
        """
        table = None if language is None and ban is None else self.without(language, ban, watched=watched)
        vocabulary = self._vocabulary if table is None else table.vocabulary
        with self._compiling:
            found = self._kept((table, stops), lambda: stopped(table and table.guide, stops, vocabulary))
            language, ban, _ = (None, None, None) if table is None else self._written.get(table, (None, None, None))
            self._written.setdefault(found, (language, ban, stops))
            return found

    def open(self, table: Table, at: str | None) -> Table:
        """Return the table of what begins with a member of ``table``, for ``ends="open"``, and may go on with a match of ``at``."""
        guide = table.guide
        if not isinstance(guide, FSMGuide) or guide.automaton is None:
            banned_too = ", with BannedPhrases(..., across_prompt=False) and phi='exact'" if guide.phrases else ""
            raise UnsupportedError(
                f"Give a choice, such as Literal, or a regular expression{banned_too}; or leave ends='open' out. It was given for "
                "what is not held as one automaton: free text, JSON, a grammar, or something too large for one."
            )
        members, phrases = guide.automaton, guide.phrases

        def make() -> Guide:
            match = PrefixMatch(members, None if at is None else boundary(at))
            return replace(FSMGuide.from_match(match, guide.vocabulary), phrases=phrases)

        with self._compiling:
            return self._kept((table, "open", at), make)

    def of_written(self, language: Language | None, ban: BannedPhrases | None, stops: Stops | None = None) -> Table:
        """Return the table of what :meth:`written` returned elsewhere, for another vocabulary."""
        with self._compiling:
            table = None if language is None else self._of_language(language, Regex(str(language)))
            return self.without(table, ban) if stops is None else self.stopped(table, ban, stops)

    def written(self, table: Table) -> Written:
        """Return the source of a compiled ``table``."""
        if table not in self._written:
            raise UnsupportedError(
                "Give an output type, such as outlines.types.regex(pattern): of a guide, a table or the logits processor of "
                "another generator there is nothing that could be sent."
            )
        return self._written[table]

    def clear(self) -> None:
        """Forget everything."""
        with self._compiling:
            for kept in (self._languages, self._tables, self._by_processor):
                kept.clear()
        forget_parts()

    def _of_language(self, language: Language, output_type: Any) -> Table:
        if isinstance(language, (GrammarText, GuidanceText)):
            check_text(language.text)
        try:
            table = self._kept((language,), lambda: self._table(language, output_type))
        except RecursionError:
            raise too_deep("output type") from None
        self._written.setdefault(table, (language, None, None))
        return table

    def _table(self, language: Language, output_type: Any) -> Table:
        match language:
            case GrammarText(text):
                return self._table(read_grammar(text), output_type)
            case Grammar():
                language = language.reduced()
                if (terminal := language.alone) is None:
                    guide = CFGGuide.of(language, self._vocabulary)
                    warn_of_neighbours(guide.grammar, guide.lexer)
                    return Table(guide)
                return self._lifted(compile_lexeme(terminal.pattern, DIALECTS[terminal.dialect]))
            case GuidanceText(grammar=grammar):
                plain = grammar.automaton_alone
                return Table(grammar.guide(self._vocabulary)) if plain is None else self._lifted(plain)
            case JSONText():
                return Table(language.guide(self._vocabulary))
            case ThinkingText(answer, form):
                written = output_type.answer if isinstance(output_type, Thinking) else output_type
                return Table(ThinkingGuide(self._of_language(answer, written).guide, form))
        automaton = _automaton(language, output_type)
        if isinstance(automaton, Composed):
            with suppress(UnsupportedError):  # not each byte has a token of its own
                return Table(JSONGuide.of_template(Template.of_bytes(automaton), self._vocabulary))
            automaton = compile_regex(language)
        return self._lifted(automaton)

    def _checked(self, table: Table) -> Table:
        own = table.vocabulary.plain or table.vocabulary
        if own.fingerprint != self._vocabulary.fingerprint:
            raise UnsupportedError(
                "Make a generator with this model: the one given was made for a model with another vocabulary."
            )
        if isinstance(table.guide.match, PrefixMatch | StoppedTexts):
            raise UnsupportedError(
                "Give an output type, and ends='open' beside it: a guide of texts that begin with a member was given."
            )
        return table

    def _of_index(self, index: Index) -> Table:
        if is_byte_level(index):
            return self._lifted(from_index(index))
        try:
            guide = FSMGuide.from_index(index, self._vocabulary)
        except VocabularyError as error:
            raise UnsupportedError(
                f"Make the generator with this model, outlines.Generator(model, T), or use phi=None: {error}."
            ) from error
        return self._kept((guide.fingerprint(),), lambda: guide)

    def _lifted(self, automaton: ByteAutomaton) -> Table:
        digest = hashlib.blake2b(repr((automaton.start, automaton.targets.shape)).encode(), digest_size=16)
        for array in (automaton.targets, automaton.byte_class, automaton.accepting, automaton.positions):
            digest.update(b"" if array is None else array.tobytes())
        return self._kept((digest.digest(),), lambda: FSMGuide.from_automaton(automaton, self._vocabulary))

    def _kept(self, key: tuple[Any, ...], make: Callable[[], Guide | Table]) -> Table:
        """Return the table under a key, made if need be; the least recently used are forgotten where all take too much memory."""

        def table() -> Table:
            made = make()
            return made if isinstance(made, Table) else Table(made)

        return self._tables.of(key, table, lambda table: max(LEAST_BYTES, memory_of((key, table))))


def check_text(text: str) -> None:
    """Raise :class:`UnsupportedError` where the text of a grammar exceeds a limit."""
    bounds = current_limits()
    bounds.check("source", len(text), "The length of the grammar")
    steps = (1 if bracket in "([{" else -1 for bracket in re.findall(r"[][(){}]", _QUOTED.sub("", text)))
    bounds.check("nesting", max(accumulate(steps), default=0), "The number of groups inside each other")


_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?![/*])(?:\\.|[^/\\\n])+/|(?://|#)[^\n]*')
"""The parts of a grammar in which brackets group nothing: strings, regular expressions and comments."""


def _automaton(pattern: str, output_type: Any) -> ByteAutomaton | Composed:
    try:
        return compile_in_parts(pattern)
    except (EmptyLanguageError, GrammarError, UnsupportedError):
        # Outlines puts groups around what it is given. Who wrote a regular expression knows it without them.
        for own in patterns(output_type):
            compile_regex(own)
        raise
