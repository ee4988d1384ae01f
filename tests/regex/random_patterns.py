"""Random regular expressions, in the dialect of Outlines."""

from hypothesis import strategies as st

LITERALS = ("a", "b", "c", "0", "é", "日", r"\.", r"\n", " ", "-")
CLASSES = (
    "[ab]",
    "[^a]",
    "[a-c0]",
    ".",
    r"\d",
    r"\w",
    r"\s",
    r"\p{Lu}",
    r"[^\W\d]",
    "[[:alpha:]]",
    "[a-z&&[^b]]",
    r"[\]\-]",
    "[é-ü]",
    r"\x41",
    r"\u00e9",
)
REPEATS = ("*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "{1,2}?", "??")
FLAGS = ("(?i:", "(?s:", "(?s-i:", "(?P<name>", "(?U:")


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map("(?:{})".format)
    return st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda branches: f"(?:{'|'.join(branches)})"),
        st.tuples(group, st.sampled_from(REPEATS)).map("".join),
        st.tuples(st.sampled_from(FLAGS), inner).map(lambda parts: f"{''.join(parts)})"),
    )


def patterns(atoms: tuple[str, ...] = LITERALS + CLASSES) -> st.SearchStrategy[str]:
    """Return random patterns over ``atoms``, with groups, alternatives, repeats and flags."""
    # One group name is enough, and a name cannot occur twice.
    return st.recursive(st.sampled_from(atoms), _extend, max_leaves=6).filter(lambda text: text.count("<name>") < 2)


def jumbles() -> st.SearchStrategy[str]:
    """Return random strings of the pieces that patterns are made of; most of them cannot be read."""
    pieces = [
        *r"ab()[]{}?*+|^$.,-&~:x12<>=!#\ " + "\n",
        "(?:",
        "(?i)",
        "(?s:",
        "(?x)",
        "(?P<n>",
        "[^",
        "[[:alpha:]",
        r"\p{L}",
        r"\b",
        r"\z",
        r"\]",
        r"\d",
        "{1,2}",
        "(?=",
        r"\1",
        "&&",
        "--",
    ]
    return st.lists(st.sampled_from(pieces), max_size=9).map("".join)
