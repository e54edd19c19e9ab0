"""Where JSON values end inside a byte buffer, without decoding it.

Used only where guessing fails: at the end of the event array and for files not written by the usual
writers. Vectorised: strings are masked by counting unescaped quotes, nesting is a running sum.
"""

import numpy as np
from numpy.typing import NDArray

_QUOTE, _BACKSLASH = ord('"'), ord("\\")


def _signed_depth_table() -> NDArray[np.int8]:
    table = np.zeros(256, dtype=np.int8)
    table[[ord("{"), ord("[")]] = 1
    table[[ord("}"), ord("]")]] = -1
    return table


def scan_depth(buffer: bytes) -> NDArray[np.int32]:
    """Nesting depth after each byte, counted from zero at the start, brackets in strings left out."""
    characters = np.frombuffer(buffer, dtype=np.uint8)
    quotes = _unescaped_quotes(characters)
    steps = _signed_depth_table()[characters]
    inside = np.zeros(len(characters), dtype=np.int8)
    inside[quotes] = 1
    inside = np.bitwise_and(np.cumsum(inside, dtype=np.int32), 1).astype(np.int8)
    return np.cumsum(steps * (1 - inside), dtype=np.int32)


def find_array_end(buffer: bytes) -> int | None:
    """Position of the bracket that closes the array the buffer starts inside of."""
    closed = np.flatnonzero(scan_depth(buffer) < 0)
    return int(closed[0]) if len(closed) else None


def find_last_element_end(buffer: bytes) -> int | None:
    """Position after the last complete object of the array the buffer starts inside of."""
    depth = scan_depth(buffer)
    closing = np.flatnonzero((depth == 0) & (np.frombuffer(buffer, dtype=np.uint8) == ord("}")))
    # A brace inside a string also has depth zero when no object is open; there is none between elements.
    return int(closing[-1]) + 1 if len(closing) else None


def _unescaped_quotes(characters: NDArray[np.uint8]) -> NDArray[np.int64]:
    quotes = np.flatnonzero(characters == _QUOTE)
    backslashes = np.flatnonzero(characters == _BACKSLASH)
    if not len(backslashes):
        return quotes
    return np.asarray(quotes[_backslashes_before(quotes, backslashes) % 2 == 0])


def _backslashes_before(quotes: NDArray[np.int64], backslashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Length of the run of backslashes that ends right before each quote."""
    breaks = np.diff(backslashes, prepend=-2) != 1
    run_starts = np.maximum.accumulate(np.where(breaks, np.arange(len(backslashes)), 0))
    run_lengths = np.arange(len(backslashes)) - run_starts + 1
    last = np.searchsorted(backslashes, quotes) - 1
    adjacent = (last >= 0) & (backslashes[last] == quotes - 1)
    return np.where(adjacent, run_lengths[last], 0)
