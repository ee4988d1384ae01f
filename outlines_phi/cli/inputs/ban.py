"""The banned phrases of a command."""

from __future__ import annotations

from pathlib import Path

from ...errors import UnsupportedError
from ...guides.phrases.banned import BannedPhrases


def read_ban(
    phrases: list[str] | None,
    file: Path | None,
    ignore_case: bool,
    whole_word: bool,
    across_prompt: bool,
    level: str | None,
) -> BannedPhrases | None:
    """Return what the options ``--ban``, ``--ban-file`` and those beside them mean; ``None`` where nothing is banned.

    Raises
    ------
    UnsupportedError
        A phrase that cannot be banned, a file that cannot be read, or an option of phrases without any.
    """
    if not phrases and file is None:
        given = {
            "--ban-ignore-case": ignore_case,
            "--ban-whole-word": whole_word,
            "--no-ban-across-prompt": not across_prompt,
            "--ban-level": level is not None,
        }
        if useless := [name for name, is_given in given.items() if is_given]:
            raise UnsupportedError(
                f"{', '.join(useless)} was given without banned phrases. Give --ban PHRASE or --ban-file FILE, or leave it out."
            )
        return None
    listed = () if file is None else _listed(file)
    return BannedPhrases([*(phrases or ()), *listed], ignore_case, whole_word, across_prompt, level)


def _listed(file: Path) -> tuple[str, ...]:
    """Return the phrases of a file, one on each line."""
    try:
        return tuple(map(str, BannedPhrases.from_file(file).phrases))
    except OSError as error:
        raise UnsupportedError(
            f"--ban-file {file} cannot be read: {error.strerror}. Give a file with one phrase on each line."
        ) from error
