"""Decimal texts to integer nanoseconds."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.trace.columns import parse_nanoseconds
from tools.trace.record import UnreadableTraceError


@pytest.mark.parametrize("text", [b"null", b'"5"', b"missing", b"true", b"", b"5 6", b"NaN", b"Infinity"])
def test_what_is_not_a_number_is_refused(text: bytes) -> None:
    with pytest.raises(UnreadableTraceError, match="a time is"):
        parse_nanoseconds([b"1", text])


@pytest.mark.parametrize("text", [b"1e999999999", b"9" * 30, b"9300000000000000", b"-9300000000000000.5"])
def test_what_int64_cannot_hold_is_refused(text: bytes) -> None:
    with pytest.raises(UnreadableTraceError, match="out of range"):
        parse_nanoseconds([text])


_TIMES = st.decimals(-(10**15), 9 * 10**15, places=3)


@given(st.lists(_TIMES, min_size=1, max_size=20))
def test_every_decimal_is_exact(values: list[Decimal]) -> None:
    parsed = parse_nanoseconds([f"{value:f}".encode() for value in values])
    assert parsed.dtype == np.int64
    assert parsed.tolist() == [int(value * 1000) for value in values]
