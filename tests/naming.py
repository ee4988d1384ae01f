"""Names of the cases of a test."""

import re


def named(value: object) -> str:
    """Return the text of a value without addresses, which differ between the processes that collect the same tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
