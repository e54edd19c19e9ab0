"""A pod's log by byte offset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("kubernetes", reason="needs the extra 'kubernetes'")

from tools.launch.kubernetes import chunks_from


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(0, 60))
def test_a_pods_log_resumes_at_any_offset_however_it_is_cut(pieces: list[bytes], offset: int) -> None:
    rest = b"".join(pieces)[offset:]
    chunks = list(chunks_from(pieces, offset))
    # Line by line, as the chunks are: a broken character does not reach over a line's end.
    lines = [line.decode("utf-8", "replace") for line in rest.splitlines(keepends=True)]
    assert "".join(chunk.text for chunk in chunks) == "".join(lines)
    if rest:
        assert chunks[-1].next_offset == offset + len(rest)


def test_a_pods_line_without_an_end_is_not_buffered_for_ever() -> None:
    chunks = list(chunks_from([b"x" * 10_000] * 30, 0))
    assert "".join(chunk.text for chunk in chunks) == "x" * 300_000
    assert max(len(chunk.text) for chunk in chunks) < 100_000
