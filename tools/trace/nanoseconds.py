"""Decimal microsecond texts to integer nanoseconds, exactly.

A float64 steps by 0.25 microseconds near today's epoch, so the digits are read as digits. Only the text of
JSON numbers is accepted; more than three decimals are rounded to the nearest nanosecond.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tools.trace.errors import UnreadableTraceError

Nanoseconds: TypeAlias = NDArray[np.int64]

_SPACE, _DOT = ord(" "), ord(".")
_DECIMALS = 3
_MAX_WHOLE_DIGITS = 16
_MAX_MICROSECONDS = 9_200_000_000_000_000
"""int64 nanoseconds reach the year 2262."""


def parse_nanoseconds(texts: Sequence[bytes]) -> Nanoseconds:
    """One integer per JSON number text in microseconds."""
    if not texts:
        return np.empty(0, dtype=np.int64)
    joined = b" ".join(texts)
    fast = _parse_plain(joined, len(texts))
    return _parse_any(texts) if fast is None else fast


def _parse_plain(joined: bytes, count: int) -> Nanoseconds | None:
    """All texts at once when each is digits with at most one dot and three decimals; else None."""
    if joined.translate(None, b"0123456789. "):
        return None
    characters = np.frombuffer(joined, dtype=np.uint8)
    ends = np.append(np.flatnonzero(characters == _SPACE), len(joined))
    if len(ends) != count:
        return None
    lengths = np.diff(ends, prepend=-1) - 1
    decimals = _count_decimals(np.flatnonzero(characters == _DOT), ends)
    whole_digits = lengths - decimals
    if lengths.min() < 1 or decimals.max() > _DECIMALS or whole_digits.max() > _MAX_WHOLE_DIGITS + 1:
        return None
    values = np.fromstring(joined.replace(b".", b""), dtype=np.int64, sep=" ")
    if (values > _MAX_MICROSECONDS * 10**decimals).any():
        return None
    return np.asarray(values * 10 ** (_DECIMALS - decimals), dtype=np.int64)


def _count_decimals(dots: Nanoseconds, ends: Nanoseconds) -> Nanoseconds:
    decimals = np.zeros(len(ends), dtype=np.int64)
    owners = np.searchsorted(ends, dots)
    decimals[owners] = ends[owners] - dots - 1
    return decimals


def _parse_any(texts: Sequence[bytes]) -> Nanoseconds:
    return np.array([_parse_one(bytes(text)) for text in texts], dtype=np.int64)


def _parse_one(text: bytes) -> int:
    shown = text[:40].decode("utf-8", "replace")
    try:
        value = Decimal(text.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError, ValueError) as error:
        raise UnreadableTraceError(f"a time is not a number: {shown!r}") from error
    # The exponent is checked before any arithmetic: 1e999999999 must cost nothing.
    if not value.is_finite() or value.adjusted() >= _MAX_WHOLE_DIGITS or abs(value) > _MAX_MICROSECONDS:
        raise UnreadableTraceError(f"a time is out of range: {shown!r}")
    if value.adjusted() < -_MAX_WHOLE_DIGITS:
        return 0
    return int((value * 10**_DECIMALS).to_integral_value(ROUND_HALF_EVEN))
