"""Reading a log by offsets: nothing lost, nothing twice."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tools.launch.files import follow_file, tail
from tools.launch.kubernetes import chunks_from

contents = st.binary(max_size=400) | st.text("ab\nä", max_size=200).map(str.encode)


def read_all(path: Path, offset: int = 0) -> list[tuple[str, int]]:
    chunks = follow_file(path, offset, lambda: True)
    return [(chunk.text, chunk.next_offset) for chunk in chunks]


@given(contents)
def test_a_finished_log_is_read_whole(tmp_path_factory: object, content: bytes) -> None:
    path = _file(tmp_path_factory, content)
    chunks = read_all(path)
    assert "".join(text for text, _ in chunks) == content.decode("utf-8", "replace")
    assert (chunks[-1][1] if chunks else 0) == len(content)


@given(st.lists(st.text("abcä ", max_size=10), max_size=20))
def test_any_chunks_end_is_a_place_to_go_on_from(tmp_path_factory: object, lines: list[str]) -> None:
    content = "".join(f"{line}\n" for line in lines)
    path = _file(tmp_path_factory, content.encode())
    for text, offset in [("", 0), *read_all(path)]:
        rest = "".join(more for more, _ in read_all(path, offset))
        assert content.encode()[offset:].decode() == rest
        assert content.encode()[:offset].decode().endswith(text)


def test_a_half_line_waits_until_the_job_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("whole\nhal")
    answers = iter([False, True])

    def has_ended() -> bool:
        ended = next(answers)
        if ended:
            path.write_text("whole\nhalf")
        return ended

    assert [chunk.text for chunk in follow_file(path, 0, has_ended, poll_s=0)] == ["whole\n", "half"]


def test_what_is_written_just_before_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"

    def has_ended() -> bool:
        path.write_text("last words\n")
        return True

    assert [chunk.text for chunk in follow_file(path, 0, has_ended)] == ["last words\n"]


def test_a_line_longer_than_a_chunk_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("x" * 200_000 + "\n")
    assert "".join(text for text, _ in read_all(path)) == "x" * 200_000 + "\n"


def test_without_following_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(follow_file(tmp_path / "none", 0, lambda: False, follow=False)) == []
    assert tail(tmp_path / "none") == []


def test_the_tail_has_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{number}\n" for number in range(1000)))
    assert tail(path, 3) == ["997", "998", "999"]


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(0, 60))
def test_a_pods_log_goes_on_from_any_offset_however_it_is_cut(pieces: list[bytes], offset: int) -> None:
    whole = b"".join(pieces)
    chunks = list(chunks_from(pieces, offset))
    assert "".join(chunk.text for chunk in chunks) == _decoded(whole[offset:])
    if whole[offset:]:
        assert chunks[-1].next_offset == len(whole)


def test_a_pods_line_without_an_end_is_not_gathered_for_ever() -> None:
    chunks = list(chunks_from([b"x" * 10_000] * 30, 0))
    assert "".join(chunk.text for chunk in chunks) == "x" * 300_000
    assert max(len(chunk.text) for chunk in chunks) < 100_000


def _decoded(content: bytes) -> str:
    """Line by line, as the chunks are: a broken character does not reach over a line's end."""
    return "".join(line.decode("utf-8", "replace") for line in content.splitlines(keepends=True))


def _file(factory: object, content: bytes) -> Path:
    path: Path = factory.mktemp("log") / "log.txt"  # type: ignore[attr-defined]
    path.write_bytes(content)
    return path
