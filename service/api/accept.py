"""Which of the forms that we have a caller likes best (RFC 9110, Accept)."""

import re
from collections.abc import Sequence

from service.api.problems import ApiError

_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")


def preferred(accept: str, offered: Sequence[str]) -> str:
    """The first of ours among those the caller likes most; an empty header likes everything."""
    ranges = [_parsed(part) for part in accept.split(",") if part.strip()] or [("*/*", 1.0)]
    quality = {form: _quality(form, ranges) for form in offered}
    best = max(offered, key=lambda form: quality[form])
    if quality[best] <= 0:
        forms = ", ".join(offered)
        raise ApiError("not-acceptable", f"this is to be had as {forms}", field="Accept", allowed=forms)
    return best


def _parsed(part: str) -> tuple[str, float]:
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    weight = next((value[2:] for value in parameters if value.startswith("q=")), "1")
    return kind, float(weight) if _WEIGHT.fullmatch(weight) else 0.0


def _quality(form: str, ranges: list[tuple[str, float]]) -> float:
    """Of the ranges that cover a form the most precise one counts."""
    general = f"{form.split('/')[0]}/*"
    for wanted in (form, general, "*/*"):
        found = [quality for kind, quality in ranges if kind == wanted]
        if found:
            return max(found)
    return 0.0
