"""The rules of a guidance grammar, with the lexemes and JSON values in them read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar, NamedTuple, final

from ...automata.automaton import ByteAutomaton
from ...errors import EmptyLanguageError, GrammarError, UnsupportedError
from ...regex.patterns import compile_lexeme
from ...regex.syntax_tree import EMPTY, Choice, Leaf, Node, Repeat, RuleName, Sequence, rules_of
from ...vocabulary.special_tokens import references
from ..grammar.grammar import Grammar, Terminal
from ..grammar.notation.lowering import GrammarRule, Lowering, SpecialToken, written
from ..json_schema.machine.machine import Machine
from ..json_schema.reading.schema import Schema, Template
from .notation import Attribute, Definition, Nested, Spelled, Values, parse


@final
@dataclass(frozen=True, eq=False)
class Lexeme(Leaf):
    """A kind of lexeme; two that are written alike are one."""

    name: str  # its name in the grammar, or its text
    pattern: str  # its texts, in the dialect of Outlines, with what ends them
    automaton: ByteAutomaton  # the same, an object of its own
    lazy: bool  # it ends where it first matches; else it is as long as it can be
    endings: tuple[bytes, ...]  # the texts that end it, if told: one of these is its end, and no part of its capture
    hidden: bool  # true if its ending is read again as the prefix of the next symbol, where that must begin so
    at: int  # where it is first written, an offset
    special: str = ""  # the special tokens that it is, in place of a pattern

    @property
    def is_nullable(self) -> bool:
        """True if it derives the empty text."""
        return bool(self.automaton.accepting[self.automaton.start])

    def ending(self, text: bytes) -> bytes:
        """Return the end of a text of this kind."""
        return next((ending for ending in self.endings if text.endswith(ending)), b"")


@final
@dataclass(frozen=True, eq=False)
class JSONValue(Leaf):
    """A JSON value that a schema is true of."""

    template: Template
    blanks: str | None  # the blanks between its tokens, as a ``Machine`` of JSON takes them
    at: int  # where it is first written, an offset
    is_nullable: ClassVar[bool] = False

    @cached_property
    def machine(self) -> Machine:
        """The machine of its texts."""
        return Machine(self.template, blanks=self.blanks)


START = "start"

LIST = "__LIST_APPEND:"
"""The prefix that guidance puts before the name of a capture that becomes a list."""

_MOST_ENDINGS, _LONGEST_ENDING = 1000, 1000

_ENDED_BY_EOS = (
    "the end of sequence alone would end it, which also ends the text. Leave this attribute out where nothing follows; else name "
    "the text that ends it"
)

_OF_CALLS = {
    "temperature": "give temperature= to the call, and leave it out here. One temperature holds of a whole text",
    "max_tokens": 'bound the regular expression, as in regex="[a-z]{0,20}", or give max_new_tokens= to the call, and leave '
    "`max_tokens` out here. It bounds tokens of a part, and a grammar is of texts, whatever tokens write them",
}
"""Attributes that only a whole text has, and the remedy of each."""


class Capture(NamedTuple):
    """The name of a capture, and whether its values become a list."""

    name: str
    listed: bool


class Rule(NamedTuple):
    """The tree of a rule, the capture of its text, and that of the text that ends it."""

    body: Node
    capture: Capture | None
    ending: Capture | None


@final
class GuidanceRules:
    """The rules that a text defines, ``rules`` by name; :data:`START` is the rule of a whole text.

    Raises
    ------
    GrammarError, UnsupportedError
        The text cannot be read, or has what cannot be honoured; with line, column and caret where that is in one place.
    EmptyLanguageError
        A terminal, or a JSON schema, that nothing matches.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.rules: dict[str, Rule] = {}
        self._lexemes: dict[tuple[Any, ...], Lexeme] = {}
        self._values: dict[str, JSONValue] = {}
        self._scope(parse(text), "", 0)

    @property
    def lexemes(self) -> tuple[Lexeme, ...]:
        """The kinds of lexemes, in the order in which the rules come to them."""
        return tuple(self._lexemes.values())

    @property
    def special(self) -> list[str]:
        """The special tokens in texts, each by its name or its id."""
        return [token for one in self.lexemes if one.special for token in references(one.special)]

    @property
    def values(self) -> tuple[JSONValue, ...]:
        """The schemas, in that order."""
        return tuple(self._values.values())

    @cached_property
    def cycle(self) -> tuple[str, ...] | None:
        """Rules of which each holds the next one, the last and the first of them being one; ``None`` without recursion."""
        try:
            TopologicalSorter(
                {name: {used.rule for used in rules_of(rule.body)} for name, rule in self.rules.items()}
            ).prepare()
        except CycleError as error:
            return tuple(reversed(error.args[1]))
        return None

    def error(self, message: str, at: int) -> GrammarError:
        """Return an error that points at an offset of the text."""
        return GrammarError(message, self.text, at)

    def _scope(self, definitions: tuple[Definition, ...], prefix: str, at: int) -> None:
        """Read the rules of one scope of names that its rule :data:`START` needs; ``prefix`` tells them from others."""
        named: dict[str, Definition] = {}
        for one in definitions:
            if one.name in named:
                raise self.error(f"{one.name!r} is defined twice; remove one of them", one.at)
            named[one.name] = one
        if START not in named:
            raise self.error(
                f"there is no rule `{START}` to begin with; define it", definitions[0].at if definitions else at
            )
        waiting = [START]
        for name in waiting:  # grows as it is walked
            if prefix + name in self.rules:
                continue
            rule = _ScopeReader(self, named, prefix).rule(named[name])
            self.rules[prefix + name] = rule
            local = [used.rule.removeprefix(prefix) for used in rules_of(rule.body)]
            waiting += [other for other in local if other in named]

    def lexeme(self, name: str, pattern: str, at: int, **said: Any) -> Lexeme:
        """Return the lexeme of a pattern, and of what is said of it; the same for all that are written alike."""
        key = (pattern, *said.values())
        if key not in self._lexemes:
            special = said.get("special")
            automaton = ByteAutomaton.of_special(special) if special else self.compiled(pattern, at)
            if automaton.is_empty:
                raise EmptyLanguageError(f"Write {name} so that it matches something. It matches nothing now.")
            # Equal patterns may be lexemes of several kinds, which their automata are told apart by.
            self._lexemes[key] = Lexeme(name, pattern, replace(automaton), at=at, **said)
        return self._lexemes[key]

    def compiled(self, pattern: str, at: int) -> Any:
        """Return the automaton of a pattern that stands at an offset; errors point there."""
        try:
            return compile_lexeme(pattern)
        except GrammarError as error:
            raise self.error(f"this regular expression cannot be read: {str(error).splitlines()[0]}", at) from None
        except UnsupportedError as error:
            raise self.error(f"this regular expression cannot be used: {str(error).splitlines()[0]}", at) from None

    def value(self, schema: Any, at: int) -> JSONValue:
        """Return the JSON value of a schema with guidance's options in it."""
        key = repr(schema)
        if key not in self._values:
            if not isinstance(schema, (dict, bool)):
                raise self.error("a JSON schema is an object, `true` or `false`", at)
            document = dict(schema) if isinstance(schema, dict) else schema
            blanks = self._blanks(document.pop("x-guidance", {}) if isinstance(document, dict) else {}, at)
            # Integers of llguidance have no fraction.
            read = Schema.read(document, label=str(len(self._values) or ""), plain=True)
            found = JSONValue(Template.of_value(read), blanks, at)
            if any(other.blanks != blanks for other in self._values.values()):
                raise self.error("two JSON values of one grammar have the same separators and white space here", at)
            self._values[key] = found
        return self._values[key]

    def _blanks(self, said: Mapping[str, Any], at: int) -> str | None:
        """Return the pattern of blanks between the tokens of JSON, as ``whitespace_pattern`` of Outlines says it."""
        flexible, pattern = said.get("whitespace_flexible", True), said.get("whitespace_pattern")
        match flexible, said.get("item_separator", ","), said.get("key_separator", ":"):
            case True, ",", ":":
                return f"(?:{pattern})*" if pattern else r"[ \n\r\t]*"
            case False, ",", ":":
                return ""
            case False, ", ", ": ":
                return None
        raise self.error(
            'these separators of JSON are not read. Use separators=(", ", ": ") or (",", ":"); with flexible white space the '
            "second",
            at,
        )


_PLAIN: Mapping[str, Any] = {"lazy": False, "endings": (), "hidden": False}


@final
class _ScopeReader:
    """Reads the rules of one scope of names."""

    def __init__(self, rules: GuidanceRules, named: Mapping[str, Definition], prefix: str) -> None:
        self._rules, self._named, self._prefix = rules, named, prefix

    def rule(self, definition: Definition) -> Rule:
        said = definition.attributes
        for name in (key for key in said if key in _OF_CALLS):
            raise self._rules.error(_OF_CALLS[name], said[name].at)
        ended = [said[key] for key in ("stop", "suffix") if key in said]
        if len(ended) > 1:
            raise self._rules.error("`stop` and `suffix` cannot be used together; leave one out", ended[1].at)
        if "stop_capture" in said and not ended:
            raise self._rules.error("`stop_capture` needs `stop` or `suffix`", said["stop_capture"].at)
        body = self._lexeme(definition, ended) if said.keys() - {"capture"} else self._tree(definition.body)
        capture = _capture(definition.name, said["capture"].value) if "capture" in said else None
        ending = _capture("", said["stop_capture"].value) if "stop_capture" in said else None
        return Rule(body, capture, ending)

    def _lexeme(self, definition: Definition, ended: list[Attribute]) -> Lexeme:
        """Return the lexeme that a rule with attributes is."""
        said, at = definition.attributes, definition.at
        pattern, endings = self._pattern(definition.body), list[bytes]()
        if ended:
            ending = self._pattern(ended[0].value)
            endings = self._endings(ending, ended[0].at)
            pattern = f"(?:{pattern})(?:{ending})"
        return self._rules.lexeme(
            definition.name,
            pattern,
            at,
            lazy=bool(ended) or "lazy" in said,
            endings=tuple(endings),
            hidden="stop" in said,
        )

    def _endings(self, pattern: str, at: int) -> list[bytes]:
        found = self._rules.compiled(pattern, at).members_up_to(_MOST_ENDINGS, _LONGEST_ENDING)
        if found is None:
            raise self._rules.error(
                f"what ends this may be more than {_MOST_ENDINGS} texts. Name fewer of them, or give none, and write what is to "
                "end it as a part of its regular expression, `lazy`",
                at,
            )
        if b"" in found:
            raise self._rules.error(_ENDED_BY_EOS, at)
        behind = [(one, other) for one in found for other in found if one != other and other.endswith(one)]
        if behind:
            one, other = (text.decode(errors="replace") for text in behind[0])
            raise self._rules.error(
                f"{one!r} and {other!r} both end this, and the second ends with the first. Leave one of them out", at
            )
        return found

    def _tree(self, part: Any) -> Node:
        match part:
            case Sequence(parts):
                return Sequence(tuple(map(self._tree, parts)))
            case Choice(parts):
                return Choice(tuple(map(self._tree, parts)))
            case Repeat(once, least, most):
                return Repeat(self._tree(once), least, most)
            case RuleName(name) if not name.isupper():
                self._find(part)
                return RuleName(self._prefix + name, part.at)
            case Values():
                return self._rules.value(part.schema, part.at)
            case Nested():
                prefix = f"{self._prefix}{part.at}."
                self._rules._scope(part.definitions, prefix, part.at)
                return RuleName(prefix + START, part.at)
            case Spelled("", _):
                return EMPTY
            case SpecialToken(token, at):
                return self._rules.lexeme(token, "", at, **_PLAIN, special=token)
        name = part.rule if isinstance(part, RuleName) else self._written(part.at)
        return self._rules.lexeme(name, self._pattern(part), part.at, **_PLAIN)

    def _pattern(self, part: Node, within: tuple[str, ...] = ()) -> str:
        """Return the pattern of a part of a terminal; ``within`` are the terminals that it is inside."""

        def leaf(inner: Node) -> str:
            match inner:
                case Spelled():
                    return f"(?:{inner.pattern})"
                case RuleName(name):
                    definition = self._find(inner)
                    if name in within:
                        raise self._rules.error(f"terminal {name!r} uses itself; only rules may", inner.at)
                    if not definition.is_terminal:
                        raise self._rules.error(
                            f"rule {name!r} cannot be a part of one lexeme; terminals can", inner.at
                        )
                    return self._pattern(definition.body, (*within, name))
            assert isinstance(inner, (Values, Nested, SpecialToken))
            if isinstance(inner, SpecialToken):
                raise self._rules.error(
                    "a special token is no part of a lexeme. Leave it out of this terminal, and write it in a rule without "
                    "`stop`, `suffix` and `lazy`",
                    inner.at,
                )
            raise self._rules.error(
                "this cannot be a part of one lexeme. Leave out the attributes of the rule (`stop`, `suffix`, `lazy`), "
                "or write a regular expression in its place",
                inner.at,
            )

        return part.pattern if isinstance(part, Spelled) else written(part, leaf)

    def _find(self, name: RuleName) -> Definition:
        if name.rule not in self._named:
            raise self._rules.error(f"{name.rule!r} is not defined; define it", name.at)
        return self._named[name.rule]

    def _written(self, at: int) -> str:
        """Return the text at an offset, up to the end of its line."""
        line = self._rules.text[at:].split("\n", 1)[0].strip()
        return line if len(line) <= 40 else f"{line[:37]}..."


def _capture(own: str, written: Any) -> Capture:
    name = own if written is True else str(written)
    return Capture(name.removeprefix(LIST), name.startswith(LIST))


@final
@dataclass(frozen=True, eq=False)
class Productions:
    """The rules as a ``grammar`` whose terminals are the ``kinds`` of pieces of text.

    ``rules`` has the rules among its nonterminals; bodies are in the order in which they are written.
    """

    grammar: Grammar
    kinds: tuple[Lexeme | JSONValue, ...]
    rules: Mapping[int, Rule]

    @classmethod
    def of(cls, rules: GuidanceRules) -> Productions:
        kinds: tuple[Lexeme | JSONValue, ...] = (*rules.lexemes, *rules.values)
        named = {START: rules.rules[START], **rules.rules}
        lowered = Lowering({name: GrammarRule(rule.body) for name, rule in named.items()}, kinds)
        terminals = [Terminal(one.name, one.pattern, shortest=one.lazy, special=one.special) for one in rules.lexemes]
        terminals += [Terminal("%json", "") for _ in rules.values]
        grammar = Grammar(tuple(terminals), tuple(lowered.names), lowered.productions, len(kinds))
        return cls(grammar, kinds, {lowered.number[name]: rule for name, rule in named.items()})
