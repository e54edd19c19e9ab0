"""A job's files: written whole or not at all, copied without links, and logs read by offset."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.launch.files import copy_results, follow_file, open_plain, tail, write_whole

contents = st.binary(max_size=400) | st.text("ab\nä", max_size=200).map(str.encode)


def test_a_file_is_written_whole_with_nothing_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(path, "one")
    write_whole(path, "two", only_first=True)
    assert path.read_text() == "one"
    write_whole(path, "three")
    assert path.read_text() == "three"
    assert list(tmp_path.iterdir()) == [path]


def test_only_plain_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    file = open_plain(tmp_path / "plain")
    assert file is not None
    with file:
        assert file.read() == b"x"
    assert [open_plain(tmp_path / name) for name in ("link", "none", ".")] == [None, None, None]


def test_results_are_copied_without_links_and_pipes(tmp_path: Path) -> None:
    source, secret, target = tmp_path / "out", tmp_path / "secret", tmp_path / "to"
    (source / "traces").mkdir(parents=True)
    longest = "x" * 255
    for name in ("traces/rank0.json", "result.json", longest):
        (source / name).write_text("{}")
    secret.mkdir()
    (secret / "key").write_text("k")
    (source / "link.json").symlink_to(secret / "key")
    (source / "folder").symlink_to(secret)
    os.mkfifo(source / "pipe")
    expected = [Path("result.json"), Path(longest), Path("traces/rank0.json")]
    assert copy_results(source, target) == copy_results(source, target) == expected
    copied = {path.relative_to(target) for path in target.rglob("*") if path.is_file()}
    assert copied == set(expected)


def read_all(path: Path, offset: int = 0) -> list[tuple[str, int]]:
    return [(chunk.text, chunk.next_offset) for chunk in follow_file(path, offset, lambda: True)]


@given(contents)
def test_a_finished_log_is_read_whole_and_can_be_resumed_at_the_end_of_any_chunk(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.txt"
    path.write_bytes(content)
    chunks = read_all(path)
    assert "".join(text for text, _ in chunks) == content.decode("utf-8", "replace")
    assert (chunks[-1][1] if chunks else 0) == len(content)
    for number, (_, offset) in enumerate(chunks, start=1):
        assert read_all(path, offset) == chunks[number:]


@pytest.mark.parametrize(
    ("versions", "chunks"),
    [
        (["whole\nhal", "whole\nhalf"], ["whole\n", "half"]),  # half a line waits for the job's end
        (["last words\n"], ["last words\n"]),  # written just before the end
        ([f"{'x' * 200_000}\n"], ["x" * 65_536] * 3 + ["x" * 3_392 + "\n"]),  # longer than a chunk
    ],
)
def test_a_log_is_followed_until_the_job_has_ended(
    tmp_path: Path, versions: list[str], chunks: list[str]
) -> None:
    path, left = tmp_path / "log.txt", list(versions)

    def has_ended() -> bool:
        path.write_text(left.pop(0))
        return not left

    assert [chunk.text for chunk in follow_file(path, 0, has_ended, poll_s=0)] == chunks


def test_the_tail_has_the_last_lines_and_a_log_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("".join(f"{number}\n" for number in range(1000)))
    assert tail(tmp_path / "log.txt", 3) == ["997", "998", "999"]
    assert tail(tmp_path / "none") == []
    assert list(follow_file(tmp_path / "none", 0, lambda: False, follow=False)) == []
