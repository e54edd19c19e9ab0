"""One buffer that a file passes through: filled at the end, consumed at the front.

Decoded texts may point into the buffer, so consuming only marks; the bytes move when it is filled again.
"""

from tools.trace.decompress import JsonSource

_FIRST = 1
"""Position of the first data byte: the one before it is free for a bracket."""


class Window:
    """Bytes of the file from the first one not yet consumed."""

    def __init__(self, source: JsonSource, size_bytes: int) -> None:
        self.buffer = bytearray(_FIRST + size_bytes)
        self.end = _FIRST
        self.at_end_of_file = False
        self._source = source
        self._consumed = _FIRST

    def fill(self) -> None:
        """Drops what was consumed and reads until the buffer is full or the file ends."""
        rest = self.rest()
        if self._consumed > _FIRST:
            self.buffer[_FIRST : _FIRST + len(rest)] = rest
            self._consumed = _FIRST
        elif len(rest) == len(self.buffer) - _FIRST:
            # Nothing could be consumed: a new, larger buffer, because texts may still point into this one.
            self.buffer = self.buffer + bytes(len(self.buffer))
        self.end = _FIRST + len(rest)
        count = self._source.fill(memoryview(self.buffer)[self.end :])
        self.end += count
        self.at_end_of_file = self.end < len(self.buffer)

    def rest(self) -> bytes:
        """A copy of what is not consumed."""
        return bytes(memoryview(self.buffer)[self._consumed : self.end])

    def consume(self, count: int) -> None:
        """Marks bytes of `rest` as done."""
        self._consumed += count

    @property
    def start(self) -> int:
        """Position in `buffer` of the first byte not consumed."""
        return self._consumed

    def __len__(self) -> int:
        return self.end - self._consumed
