"""A pod's log by byte offsets, although the API streams it from its beginning each time."""

from collections.abc import Iterable, Iterator

from tools.launch.log import LogChunk, whole_lines


def chunks_from(content: Iterable[bytes], offset: int) -> Iterator[LogChunk]:
    """Whole lines after the first `offset` bytes; the rest of a line that the stream ends in comes last."""
    position, waiting = 0, b""
    for piece in content:
        fresh = piece[max(0, offset - position) :]
        position += len(piece)
        waiting += fresh
        told = whole_lines(waiting, is_last=False)
        if told:
            waiting = waiting[len(told) :]
            yield _chunk(told, position - len(waiting))
    if waiting:
        yield _chunk(waiting, position)


def _chunk(content: bytes, next_offset: int) -> LogChunk:
    return LogChunk(content.decode("utf-8", "replace"), next_offset)
