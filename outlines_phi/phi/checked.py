"""Values of an estimator's options, checked where they are given."""

from __future__ import annotations

from ..errors import UnsupportedError


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
