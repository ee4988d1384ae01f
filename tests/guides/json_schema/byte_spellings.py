"""The spellings of strings in JSON as one automaton over bytes: the reference of the composed one."""

from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides.json_schema.string_set import QUOTE, StringSet, in_ascii, in_json
from outlines_phi.regex.spelling import spelled


def quoted(strings: StringSet, *, ascii: bool = False) -> ByteAutomaton:
    """Return the automaton of the spellings of the members, from after the opening quote on."""
    return spelled(strings.code_automaton, in_ascii if ascii else in_json, closing=QUOTE)
