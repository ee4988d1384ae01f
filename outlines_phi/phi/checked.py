"""Values of an estimator's options, checked where they are given."""

from __future__ import annotations

from ..errors import UnsupportedError
from ..guides.guide import Guide


def check_counts(owner: str, otherwise: str = "", **values: object) -> None:
    """Raise :class:`UnsupportedError` for the first value that is not a whole number of at least 1.

    Parameters
    ----------
    owner
        The name of the estimator.
    otherwise
        What else could have been given, for the message.
    **values
        The values by the names of their options.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UnsupportedError(
                f"{name}={value!r} was given to {owner}; expected a whole number of at least 1{otherwise}."
            )


def check_shares(owner: str, **values: object) -> None:
    """Raise :class:`UnsupportedError` for the first value that is not a number in (0, 1]."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise UnsupportedError(f"{name}={value!r} was given to {owner}; expected a number in (0, 1].")


def check_merging(name: str, guide: Guide) -> None:
    """Raise :class:`UnsupportedError` for a guide in which each prefix has a state of its own, from an estimator of that name."""
    if not guide.merging:
        raise UnsupportedError(
            f"phi={name!r} was given with a {type(guide).__name__}, in which each prefix has a state of its own, and it looks at "
            "states that prefixes share. Use backend=None, or another phi: 'exact', 'auto', 'local', 'rollout' or 'lookahead1'."
        )
