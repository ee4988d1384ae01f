"""Programs of guidance, with texts to match: what ``tests/guides/guidance/recorded.json`` was recorded from.

``python -m tests.hosts.guidance_programs`` in the environment of guidance records it again.
"""

import json
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "guides" / "guidance" / "recorded.json"


def programs() -> dict[str, tuple[Any, list[str]]]:
    """The grammars, and texts of each that guidance itself is to match."""
    import guidance
    from guidance import capture, gen, json, one_or_more, optional, regex, select, substring, zero_or_more
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    @guidance(stateless=True, dedent=False)
    def expression(lm: Any) -> Any:
        number = gen("n", regex="[0-9]+", list_append=True)
        return lm + select([number, "(" + expression() + ")", expression() + "+" + expression()])

    @guidance(stateless=True, dedent=False)
    def nested(lm: Any) -> Any:
        return lm + select([select(["x", "y"], name="leaf"), "[" + nested() + "]"], name="inside")

    return {
        "select": (select(["sky", "skill"]), ["sky", "skill", "ski", "skilly"]),
        "named": (select(["sky", "skill"], name="word"), ["sky", "skill"]),
        "sentence": (
            "Is it open? " + select(["yes", "no"], name="a") + gen("b", regex="[.!]{1,5}"),
            ["Is it open? yes!", "Is it open? no...", "Is it open? no"],
        ),
        "free": (gen("x"), ["anything\nat all", ""]),
        "suffix": (gen("x", suffix=".") + " " + gen("y", regex="[a-z]+"), ["one two. three", ". a", "one two."]),
        "quoted": (
            '{"name": "' + gen("name", stop='"') + '", "age": ' + gen("age", regex="[0-9]+") + "}",
            ['{"name": "Ann", "age": 12}', '{"name": "", "age": 1}', '{"name": "A", "age": }'],
        ),
        "list": (one_or_more(select(["a", "b"], name="letters", list_append=True)), ["abba", "a", ""]),
        "last": (one_or_more(select(["a", "b"], name="letter")) + ";", ["ab;", ";"]),
        "optional": (zero_or_more("ab") + optional("c") + regex("[0-9]{2}"), ["ababc12", "34", "abc"]),
        "whole": (capture(one_or_more(select(["a", "b"], name="letter")), "all") + "!", ["abba!", "!"]),
        "choice": (select(["a" + gen("u", regex="[0-9]"), "b", select(["x", "y"])], name="top"), ["a1", "b", "y", "a"]),
        "escapes": (select(['a"b', "a\\b", "é\n", "/"]) + regex(r"[/\n]\/x"), ['a"b//x', "é\n\n/x", "a\\b//y"]),
        "substring": (substring("the quick brown fox", name="part"), ["quick brown", "", "the fox", "fox"]),
        "json": (
            "Person: " + json("p", schema=Person),
            ['Person: {"name": "Ann", "age": 3}', 'Person: {"name": "Ann"}'],
        ),
        "json then": (json("p", schema={"type": "integer"}) + "!", ["12!", "-3!", "1.5!"]),
        "recursion": (expression(), ["1+(2+30)", "((7))", "(1", ""]),
        "recursive captures": (nested(), ["[[x]]", "y", "[x"]),
    }


def recorded() -> dict[str, Any]:
    """Return guidance's reading of the programs: the text of each grammar, and the captures of each text, ``None`` for no match."""
    found = {}
    for name, (grammar, texts) in programs().items():
        matches = {text: grammar.match(text) for text in texts}
        captures = {text: None if match is None else dict(match.captures) for text, match in matches.items()}
        found[name] = {"grammar": grammar.ll_grammar(), "captures": captures}
    return found


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(recorded(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
