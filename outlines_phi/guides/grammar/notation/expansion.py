"""The size of a grammar in Lark's dialect once terminals, templates and choices are written out, before Lark does it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple, TypeAlias

from lark.grammar import NonTerminal
from lark.lexer import Token
from lark.tree import Tree

from .source import Source

MOST_WRITTEN = 100_000
"""How many characters all terminals may have when those inside them are written out, and all templates for their arguments."""

MOST_ALTERNATIVES = 64
"""The most alternatives of one sequence that are written out."""

_LONG = 50  # Repeats of at least so many times get rules of their own from Lark

_SHOWN = 60  # How much of a template with its arguments a message shows


class _Use(NamedTuple):
    """A template with arguments, each a symbol or a use itself."""

    template: str
    arguments: tuple[str | _Use, ...]


class _Template(NamedTuple):
    """The parameters of a template (none for a rule), what it uses, and how many parts it has."""

    parameters: tuple[str, ...]
    uses: tuple[_Use, ...]
    size: int


_Parents: TypeAlias = dict[str, tuple[str, str]]
"""Per template written out: which template it is, and inside what it is used."""


def check_terminals(source: Source) -> None:
    """Raise :class:`GrammarError` for terminals that take more than :data:`MOST_WRITTEN` characters when written out."""
    inside = source.terminals_inside()
    sizes: dict[str, int] = {}
    total = 0
    for name in inside:
        waiting = [name]
        while waiting:
            here = waiting[-1]
            own, used = inside[here]
            lacking = [] if here in sizes else [other for other in used if other in inside and other not in sizes]
            sizes.setdefault(here, own)  # counts for a terminal that uses itself, which Lark refuses
            if lacking:
                waiting += lacking
                continue
            sizes[waiting.pop()] = own + sum(sizes.get(other, 1) for other in used)
        total += sizes[name]
        if total > MOST_WRITTEN:
            raise source.error(
                f"the terminals up to {name!r} have more than {MOST_WRITTEN:,} characters when those inside them are written out. "
                "Use fewer of them inside others, repeat one with `~`, or make rules of them",
                name,
            )


def check_templates(definitions: Mapping[str, Any], source: Source) -> None:
    """Raise :class:`GrammarError` for templates that are written out without end, or for so many arguments that it takes too much.

    A template may contain itself with the arguments that it has; with ever larger ones it is another rule each time.
    """
    templates = {
        str(name): _Template(tuple(map(str, found.params)), tuple(_uses(found.tree)), _size(found.tree))
        for name, found in definitions.items()
        if not found.is_term and found.tree is not None
    }
    parents: _Parents = {}
    waiting = deque((name, name, dict[str, str]()) for name, found in templates.items() if not found.parameters)
    written = 0
    while waiting:
        owner, name, values = waiting.popleft()
        for use in templates[name].uses:
            for template, arguments in _with_values(use, values):
                key = _written(template, arguments)
                known = templates.get(template)
                if known is None or key in parents or len(known.parameters) != len(arguments):
                    continue  # Lark says what is wrong with it
                parents[key] = template, owner
                written += len(key) + known.size
                if written > MOST_WRITTEN:
                    raise _too_large(key, parents, source)
                waiting.append((key, template, dict(zip(known.parameters, arguments, strict=True))))


def give_parts_rules(definitions: dict[str, Any]) -> None:
    """Give choices and optional parts rules of their own where Lark would write out more than :data:`MOST_ALTERNATIVES`.

    Lark writes all choices of a sequence out, so that the alternatives of its parts multiply.
    """
    for name, definition in list(definitions.items()):
        if not definition.is_term:
            parameters = [Tree("value", [NonTerminal(parameter)]) for parameter in definition.params]

            def apart(tree: Any, definition: Any = definition, name: str = name, uses: list[Any] = parameters) -> Any:
                part = NonTerminal(f"{name}…{len(definitions)}")
                body = Tree("expansions", [Tree("expansion", [tree])])
                definitions[part.name] = type(definition)(False, body, definition.params, definition.options)
                return Tree("value", [Tree("template_usage", [part, *uses]) if uses else part])

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


def _too_large(key: str, parents: _Parents, source: Source) -> Exception:
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


def _with_values(use: _Use, values: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield ``use`` and the uses inside it, the inner ones first, with ``values`` for parameters."""
    arguments = []
    for argument in use.arguments:
        if isinstance(argument, str):
            arguments.append(values.get(argument, argument))
            continue
        for template, inner in _with_values(argument, values):
            yield template, inner
        arguments.append(_written(template, inner))  # that of the argument itself is the last one
    yield values.get(use.template, use.template), arguments


def _written(template: str, arguments: list[str]) -> str:
    return f"{template}{{{','.join(arguments)}}}"


def _uses(tree: Tree[Any]) -> Iterator[_Use]:
    """Yield the uses of templates in ``tree``, without those inside another."""
    if tree.data == "template_usage":
        yield _use(tree)
        return
    for child in tree.children:
        if isinstance(child, Tree):
            yield from _uses(child)


def _use(tree: Tree[Any]) -> _Use:
    name, *arguments = list[Any](tree.children)
    return _Use(str(name.name), tuple(_argument(argument.children[0]) for argument in arguments))


def _argument(value: Any) -> str | _Use:
    if not isinstance(value, Tree):
        return str(value.name)
    return _use(value) if value.data == "template_usage" else "..".join(map(str, value.children))


def _size(tree: Tree[Any]) -> int:
    return 1 + sum(_size(child) if isinstance(child, Tree) else 1 for child in tree.children)
