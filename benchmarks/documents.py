"""Documents of the shipped grammars, written at random, and what tokens a tokenizer would probably cut them into."""

import json
import random
from collections.abc import Callable

from outlines_phi.vocabulary.vocabulary import Vocabulary

NAMES = ("name", "total", "index", "user", "items", "count", "price", "lower", "upper", "result", "buffer", "shift")
WORDS = ("green tea", "Lisbon", "a long walk by the sea", "Nora", "open on Sunday", "Zürich", "x = 1", "")


def json_text(rng: random.Random) -> str:
    """Return a nested JSON value."""

    def value(depth: int) -> object:
        kind = rng.randrange(7 if depth else 5)
        if kind == 5:
            return [value(depth - 1) for _ in range(rng.randrange(5))]
        if kind == 6:
            return {rng.choice(NAMES): value(depth - 1) for _ in range(rng.randrange(1, 6))}
        return (rng.choice(WORDS), rng.randrange(10**6), round(rng.uniform(-9, 9), 3), rng.random() < 0.5, None)[kind]

    record = {name: value(3) for name in rng.sample(NAMES, 6)}
    return json.dumps(record, indent=rng.choice((None, 2)), ensure_ascii=False)


def arithmetic_text(rng: random.Random) -> str:
    """Return an expression."""

    def expression(depth: int) -> str:
        if not depth or rng.random() < 0.2:
            return rng.choice((str(rng.randrange(1000)), f"{rng.uniform(0, 99):.2f}"))
        inner = f"{expression(depth - 1)} {rng.choice('+-*/')} {expression(depth - 1)}"
        return f"({inner})" if rng.random() < 0.5 else inner

    return expression(6)


def sql_text(rng: random.Random) -> str:
    """Return a query."""

    def condition(depth: int) -> str:
        if not depth:
            sides = f"{rng.choice(NAMES)}.{rng.choice(NAMES)}", rng.choice(("12", "'Lisbon'", rng.choice(NAMES)))
            return f" {rng.choice(('=', '<', '>=', '<>'))} ".join(sides)
        return f"({condition(depth - 1)} {rng.choice(('AND', 'OR'))} {condition(depth - 1)})"

    columns = ", ".join(rng.sample(NAMES, 4))
    tables = f"{rng.choice(NAMES)} AS a JOIN {rng.choice(NAMES)} AS b ON {condition(0)}"
    grouped = f"GROUP BY {columns} ORDER BY {rng.choice(NAMES)} DESC LIMIT 10"
    return f"SELECT DISTINCT {columns} FROM {tables} WHERE {condition(3)} {grouped};"


def c_text(rng: random.Random) -> str:
    """Return a function."""

    def expression(depth: int) -> str:
        if not depth:
            return rng.choice((rng.choice(NAMES), str(rng.randrange(100)), f"{rng.choice(NAMES)}[{rng.choice(NAMES)}]"))
        if rng.random() < 0.3:
            return f"{rng.choice(NAMES)}({expression(depth - 1)}, {expression(0)})"
        return f"({expression(depth - 1)} {rng.choice(('+', '*', '<', '==', '&&'))} {expression(0)})"

    def block(depth: int) -> str:
        lines = []
        for _ in range(rng.randrange(1, 5)):
            kind = rng.randrange(4 if depth else 2)
            if kind < 2:
                lines.append(f"{rng.choice(NAMES)} = {expression(2)};")
            elif kind == 2:
                lines.append(f"if ({expression(1)}) {block(depth - 1)} else {block(depth - 1)}")
            else:
                lines.append(f"while ({expression(1)}) {block(depth - 1)}")
        pad = "  " * (4 - depth)
        return "{\n" + "".join(f"{pad}{line}\n" for line in lines) + pad[2:] + "}"

    body = block(3)
    return (
        f"int {rng.choice(NAMES)}(int lower, float upper) {{\n  /* what it does */\n  return {expression(2)};\n}}\n"
        + (f"void main() {body}\n")
    )


DOCUMENTS: dict[str, Callable[[random.Random], str]] = {
    "json": json_text,
    "arithmetic": arithmetic_text,
    "sql": sql_text,
    "c": c_text,
}


def many_rules(count: int) -> str:
    """Return a grammar of ``count`` rules: commands of a configuration language, each with a keyword and fields of its own."""
    rng = random.Random(0)
    kinds = ("NUMBER", "NAME", "STRING", "list", "record")
    lines = ['start: (command ";")*', "command: " + " | ".join(f"command_{i}" for i in range(count - 5))]
    for i in range(count - 5):
        fields = " ".join(f'["{name}_{i % 7}" "=" {rng.choice(kinds)}]' for name in rng.sample(NAMES, 3))
        lines.append(f'command_{i}: "do_{NAMES[i % len(NAMES)]}_{i}" {fields}')
    lines += [
        'list: "[" [value ("," value)*] "]"',
        "?value: NUMBER | NAME | STRING | list | record",
        'record: "{" [NAME ":" value ("," NAME ":" value)*] "}"',
        "NAME: /[a-z_][a-z0-9_]*/",
        "NUMBER: /-?[0-9]+([.][0-9]+)?/",
        'STRING: /"[^"\\n]*"/',
        "%ignore /[ \\t\\n]+/",
    ]
    return "\n".join(lines) + "\n"


def spelled(text: str, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens of ``text``, the longest that fits first."""
    ids = {token: v for v, token in enumerate(vocabulary.tokens) if token}
    rest, longest, tokens = text.encode(), max(map(len, vocabulary.tokens)), []
    while rest:
        size = next(size for size in range(min(longest, len(rest)), 0, -1) if rest[:size] in ids)
        tokens.append(ids[rest[:size]])
        rest = rest[size:]
    return tokens
