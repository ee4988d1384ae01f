"""Grammars in Lark's dialect or in GBNF, and those that come with the package.

Lark reads the text and writes EBNF, templates, imports, aliases, inlined rules and ``%extend`` out as plain productions and
terminals. Two things differ from a parser that Lark would build:

- Where two terminals match the same lexeme, the higher priority wins, as in Lark; on a tie a string wins against a regular
  expression. Lark would then look at the length of the pattern and at the name; here it is any that the rules can use. Priorities
  of rules choose between trees, not between texts, so they have no effect.
- A lexeme is always the longest possible, in every context and whatever the order of alternatives: where Python gives the first
  alternative that matches, ``a|ab`` gives ``ab`` here. Lazy quantifiers are as in Python, or refused
  (see :mod:`~outlines_phi.regex.patterns`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any

from lark.exceptions import LarkError, UnexpectedInput, VisitError
from lark.grammar import NonTerminal, Rule
from lark.lexer import PatternStr, TerminalDef, Token
from lark.load_grammar import GrammarBuilder
from lark.tree import Tree

from ....errors import GrammarError, OutlinesPhiError, UnsupportedError
from ....format_limits import current_limits
from ..grammar import Grammar, Production, Terminal
from ..lexeme_automaton import automaton_of
from .gbnf import over_lexemes, read_gbnf
from .source import PRIVATE, Imports, Source, meant, special_token, with_literals

MOST_WRITTEN = 100_000
"""The most characters of all terminals with those inside them written out, and of all templates with their arguments."""

MOST_ALTERNATIVES = 64
"""The most alternatives of one sequence that are written out."""

_LONG = 50  # Repeats of at least so many times get rules of their own from Lark

_SHOWN = 60  # The length of a template with its arguments in messages


def check_terminals(source: Source) -> None:
    """Raise :class:`GrammarError` for terminals that take more than :data:`MOST_WRITTEN` characters when written out."""
    inside = source.terminals_inside()
    try:
        order = list(TopologicalSorter({name: used for name, (_, used) in inside.items()}).static_order())
    except CycleError:
        return  # Lark refuses a terminal that uses itself
    sizes: dict[str, int] = {}
    total = 0
    for name in order:
        own, used = inside.get(name, (1, []))
        sizes[name] = own + sum(map(sizes.__getitem__, used))
        total += sizes[name] if name in inside else 0
        if total > MOST_WRITTEN:
            raise source.error(
                f"the terminals up to {name!r} have more than {MOST_WRITTEN:,} characters when those inside them are written out. "
                "Use fewer of them inside others, repeat one with `~`, or make rules of them",
                name,
            )


def write_templates_out(definitions: dict[str, Any], source: Source) -> None:
    """Replace templates by a rule for each list of arguments that one is used with.

    Raises :class:`GrammarError` where that never ends, or takes too much. A template may contain itself with the arguments that it
    has; with ever larger ones it is another rule each time.
    """
    templates = {name: definitions.pop(name) for name, known in list(definitions.items()) if known.params}
    parents: dict[str, tuple[str, str]] = {}  # by rule of a template: the template, and inside what it is used
    written = 0

    def rule_of(template: str, arguments: list[Any], owner: str) -> NonTerminal:
        nonlocal written
        known = templates.get(template)
        if known is None or len(known.params) != len(arguments):
            raise source.error(f"rule {template!r} has another number of parameters than it is given here", template)
        shown = ("..".join(map(str, each.children)) if isinstance(each, Tree) else str(each.name) for each in arguments)
        key = f"{template}{{{','.join(shown)}}}"
        if key not in parents:
            parents[key] = template, owner
            written += len(key) + _size(known.tree)
            if written > MOST_WRITTEN:
                raise _too_large(key, parents, source)
            waiting.append((key, known, dict(zip(known.params, arguments, strict=True))))
        return NonTerminal(key)

    def copied(tree: Any, values: Mapping[str, Any], owner: str) -> Any:
        if not isinstance(tree, Tree):
            return values.get(tree.name, tree) if isinstance(tree, NonTerminal) else tree
        parts = [copied(part, values, owner) for part in tree.children]
        if tree.data == "template_usage":
            return rule_of(parts[0].name, [argument.children[0] for argument in parts[1:]], owner)
        return Tree(tree.data, parts)

    waiting = [(name, known, dict[str, Any]()) for name, known in definitions.items() if not known.is_term]
    for name, known, values in waiting:  # it grows
        definitions[name] = type(known)(False, copied(known.tree, values, name), (), known.options)


def give_parts_rules(definitions: dict[str, Any]) -> None:
    """Give choices and optional parts rules of their own where Lark would write out more than :data:`MOST_ALTERNATIVES`.

    Lark writes all choices of a sequence out, so that the alternatives of its parts multiply.
    """
    for name, definition in list(definitions.items()):
        if not definition.is_term:

            def apart(tree: Any, definition: Any = definition, name: str = name) -> Any:
                part = NonTerminal(f"{name}…{len(definitions)}")
                body = Tree("expansions", [Tree("expansion", [tree])])
                definitions[part.name] = type(definition)(False, body, (), definition.options)
                return Tree("value", [part])

            _alternatives(definition.tree, apart)


def _alternatives(tree: Any, apart: Callable[[Any], Any]) -> int:
    """Count the alternatives that Lark makes of a part of a rule, with a rule for each choice where they would multiply."""
    if not isinstance(tree, Tree) or tree.data == "value":
        return 1
    counts = [_alternatives(child, apart) for child in tree.children]
    if tree.data == "expansions":
        return sum(counts)
    if tree.data == "maybe":  # `[a]` differs from `a?` in trees alone
        tree.data, tree.children[1:] = "expr", [Token("OP", "?")]
    operator, *bounds = map(str, tree.children[1:]) if tree.data == "expr" else ("",)
    times = [int(bound) for bound in bounds] or [1]
    if prod(counts) ** min(times[-1], _LONG) > MOST_ALTERNATIVES:
        for place, count in enumerate(counts):
            if count > 1:
                tree.children[place] = apart(tree.children[place])
        counts = [1]
    if operator == "~":
        return 1 if times[-1] >= _LONG else (max(times[-1] - times[0], 0) + 1) * prod(counts) ** times[-1]
    return {"*": 2, "+": 1}.get(operator, prod(counts) + (operator == "?"))


def _too_large(key: str, parents: Mapping[str, tuple[str, str]], source: Source) -> Exception:
    chain: dict[str, list[str]] = {}  # by template, the innermost first
    inside = key
    while inside in parents:
        template, owner = parents[inside]
        chain.setdefault(template, []).append(inside)
        inside = owner
    template, written = max(chain.items(), key=lambda item: len(item[1]))
    if len(written) < 3:
        template = parents[key][0]
        return source.error(
            f"template {template!r} and others take more than {MOST_WRITTEN:,} characters when they are written out for all of "
            "their arguments. Use fewer templates inside others, or make rules of them",
            template,
        )
    first = ", ".join(one if len(one) <= _SHOWN else f"{one[:_SHOWN]}..." for one in written[:-4:-1])
    return source.error(
        f"template {template!r} contains itself with ever larger arguments ({first}, ...), so writing it out never ends. Give it "
        "the arguments that it has, or make a rule of it",
        template,
    )


def _size(tree: Tree[Any]) -> int:
    return 1 + sum(_size(child) if isinstance(child, Tree) else 1 for child in tree.children)


_STARTS = {"lark": "start", "gbnf": "root"}
"""The dialects, and the rule of a whole text in each."""


def read_grammar(text: str | Path, start: str | tuple[str, ...] = (), *, dialect: str | None = None) -> Grammar:
    """Return the grammar that ``text`` describes, reduced to what the rule ``start`` needs.

    Rules of no use are left out with a :class:`~outlines_phi.errors.GrammarWarning` that names them.

    Parameters
    ----------
    text
        The text of a grammar, or the path of a file with it. What a file imports is looked for in its folder.
    start
        The rule of a whole text, or several, where a text may be of any of them. Without any, ``start`` in Lark's dialect, and
        ``root`` in GBNF.
    dialect
        ``"lark"``, or ``"gbnf"``, that of llama.cpp. ``None`` is GBNF for a file ``.gbnf``, and Lark's for all others.

    Raises
    ------
    GrammarError
        The text cannot be read, a name is not defined, or a terminal is not regular or matches the empty text; with line, column
        and caret.
    EmptyLanguageError
        The start rule derives no text.
    """
    if not isinstance(text, (str, Path)):
        raise GrammarError(
            f"a grammar is a text in Lark's dialect or in GBNF, not {text!r:.60} of type {type(text).__name__!r}; "
            "give the text itself, or the `Path(...)` of its file"
        )
    path = text if isinstance(text, Path) else None
    if dialect is None:
        dialect = "gbnf" if path is not None and path.suffix == ".gbnf" else "lark"
    if dialect not in _STARTS:
        raise UnsupportedError(f"Give dialect='lark' or dialect='gbnf': there is no dialect {dialect!r:.60}.")
    starts = (start,) if isinstance(start, str) else (start or (_STARTS[dialect],))
    if not isinstance(start, (str, tuple)) or not all(isinstance(name, str) for name in starts):
        raise GrammarError(
            f"the start rule is given by its name, or several as a tuple, not as {start!r:.60} of type {type(start).__name__!r}"
        )
    written = text if isinstance(text, str) else _read_file(text)
    current_limits().check("source", len(written), "The number of characters of the grammar")
    return _read_gbnf(written, starts) if dialect == "gbnf" else _read_lark(written, starts, path)


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UnsupportedError(
            f"Give the path of a file with a grammar: {path} cannot be read, {error.strerror}."
        ) from error
    except UnicodeDecodeError as error:
        raise UnsupportedError(f"Save it as UTF-8: {path} is not UTF-8, {error.reason}.") from error


def _read_gbnf(text: str, starts: tuple[str, ...]) -> Grammar:
    try:
        return over_lexemes(read_gbnf(text, starts), starts).reduced()
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply; use fewer rules inside others", text, 0) from None


def _read_lark(text: str, starts: tuple[str, ...], path: Path | None) -> Grammar:
    source = Source.of(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Python announces that it may read `[[` in another way one day
        grammar = _read(source, starts, path)
    return grammar.reduced()


def _read(source: Source, starts: tuple[str, ...], path: Path | None) -> Grammar:
    terminals, rules, ignored = _expanded(source, starts, path)
    names = {terminal.name: number for number, terminal in enumerate(terminals)}
    _check_ignored(source, terminals, rules, ignored)
    heads = list(dict.fromkeys(rule.origin.name for rule in rules))
    start = " | ".join(starts)  # one that derives what any of several does
    rules += [Rule(NonTerminal(start), [NonTerminal(name)]) for name in starts if len(starts) > 1]
    heads += [start] * (len(starts) > 1)
    number = names | {head: len(terminals) + place for place, head in enumerate(heads)}
    return Grammar(
        tuple(_terminal(source, terminal, terminal.name in ignored) for terminal in terminals),
        tuple(map(str, heads)),
        tuple(
            Production(
                number[rule.origin.name],
                tuple(number[symbol.name] for symbol in rule.expansion),
                source.line_of_rule(rule.origin.name),
            )
            for rule in rules
        ),
        number[start],
    )


def _expanded(
    source: Source, starts: tuple[str, ...], path: Path | None
) -> tuple[list[TerminalDef], list[Rule], set[str]]:
    check_terminals(source)
    builder = GrammarBuilder(import_paths=[Imports(source, path)])
    try:
        builder.load_grammar(with_literals(source.text), "<string>" if path is None else str(path.absolute()))
        definitions = builder._definitions
        rules = [str(n) for n, definition in definitions.items() if not definition.is_term and not definition.params]
        for start in starts:
            if start not in rules:
                raise source.missing_start(start, rules, definitions.get(start))
        for name, definition in definitions.items():
            if definition.tree is None:
                raise source.error(
                    f"{name!r} is only declared, so it has no text. Define it, or remove `%declare`", name
                )
            if definition.is_term and any(definition.tree.find_data("alias")):
                raise source.error(f"terminal {name!r} has an alias; only alternatives of rules do. Remove it", name)
        builder.validate()
        write_templates_out(definitions, source)
        give_parts_rules(definitions)
        terminals, productions, ignored = builder.build().compile(rules, [])
    except UnexpectedInput as error:
        raise source.unexpected(error) from None
    except GrammarError:
        raise
    except RecursionError:
        raise source.error("the grammar is nested too deeply; give inner parts rules of their own", starts[0]) from None
    except (LarkError, OSError, ValueError, AssertionError, re.error) as error:
        cause = error.orig_exc if isinstance(error, VisitError) else error
        raise source.refused(cause) from None
    return terminals, productions, set(ignored)


def _check_ignored(source: Source, terminals: list[TerminalDef], rules: list[Rule], ignored: set[str]) -> None:
    names = {terminal.name: _name(terminal) for terminal in terminals}
    for rule in rules:
        for symbol in rule.expansion:
            if symbol.is_term and symbol.name in ignored:
                raise source.error(
                    f"terminal {names[symbol.name]} is ignored, so rule {str(rule.origin.name)!r} never sees it. "
                    f"Remove `%ignore {names[symbol.name]}`, or leave it out of the rule",
                    symbol.name,
                    written=names[symbol.name],
                )


def _terminal(source: Source, definition: TerminalDef, ignored: bool) -> Terminal:
    pattern, name = definition.pattern, _name(definition)
    is_literal = isinstance(pattern, PatternStr)
    special = special_token(pattern.raw or "")
    if not special and pattern.raw is None and PRIVATE.search(pattern.value) and "<" in source.text:
        raise source.error(
            "a special token is no part of a lexeme. Leave it out of this terminal, and write it in a rule",
            definition.name,
        )
    terminal = Terminal(
        name,
        "" if special else pattern.to_regexp(),
        definition.priority,
        is_literal,
        ignored,
        dialect="python",
        special=special,
    )
    try:
        automaton_of(replace(terminal, name=name if len(name) <= 80 else f"{name[:77]}..."))
    except (OutlinesPhiError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        if isinstance(error, RecursionError):
            reason = f"the terminal {name} is nested too deeply; write it as several"
        elif "global flags" in reason:
            reason += ". Write flags behind the closing slash, `/.../i`, or around a part, `(?i:...)`"
        raise source.error(reason, definition.name, written=pattern.raw) from None
    return terminal


def _name(definition: TerminalDef) -> str:
    """Return the name of a terminal, or what it is in the text if Lark only numbered it."""
    if not definition.name.startswith("__"):
        return str(definition.name)
    return (
        special_token(definition.pattern.raw or "") or definition.pattern.raw or f"/{definition.pattern.to_regexp()}/"
    )


_FOLDER = Path(__file__).parents[1] / "library"

NAMES = ("arithmetic", "c", "json", "lean", "sql")
"""The grammars that are files. There is also ``dyck-n``, for ``n`` kinds of brackets."""

BRACKETS = ("()", "[]", "{}", "<>", "⟨⟩", "⟦⟧", "⌈⌉", "⌊⌋", "«»", "‹›")
"""The kinds of brackets of :func:`dyck`, in the order in which they are used."""


def grammar_text(name: str) -> str:
    """Return the grammar called ``name``, one of :data:`NAMES` or ``dyck-n``; raise :class:`UnsupportedError` for another."""
    if found := re.fullmatch(r"dyck-([0-9]{1,3})", name):
        return dyck(int(found[1]))
    if name not in NAMES:
        raise UnsupportedError(
            f"there is no grammar {name!r}; {meant(name, NAMES)}There are {', '.join(NAMES)} and dyck-n"
        )
    return (_FOLDER / f"{name}.lark").read_text(encoding="utf-8")


def dyck(kinds: int) -> str:
    """Return the grammar of the balanced words of ``kinds`` kinds of brackets, the empty word included.

    Without blanks: of length ``2n`` there are ``kinds**n`` times the ``n``-th Catalan number.
    """
    if not 1 <= kinds <= len(BRACKETS):
        raise UnsupportedError(f"Dyck words have 1 to {len(BRACKETS)} kinds of brackets, not {kinds}")
    pairs = "\n    | ".join(f'"{brackets[0]}" pair* "{brackets[1]}"' for brackets in BRACKETS[:kinds])
    return f"// Balanced brackets.\nstart: pair*\n\npair: {pairs}\n"
