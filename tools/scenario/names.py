"""The nearest known name for a misspelt one. The only place where ASAP guesses what a user meant."""

import difflib
from collections.abc import Iterable

LOOSE = 0.6
NEAR_MISS = 0.88


def nearest(name: object, known: Iterable[str], *, cutoff: float = LOOSE, count: int = 3) -> list[str]:
    """Known names that look like `name`, best first; empty when nothing comes close."""
    spelt = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(str(name)[:100].lower(), spelt, n=count, cutoff=cutoff)
    return [spelt[match] for match in found]


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest names, or every allowed one where nothing is near."""
    names = sorted(known)
    close = nearest(name, names)
    return f"did you mean {' or '.join(close)}?" if close else f"allowed: {', '.join(names)}"
