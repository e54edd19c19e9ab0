"""A job's folder: the first record counts, files are whole, results have no links, a log has an end."""

import os
from pathlib import Path

from tests.unit.launch.builders import make_intent
from tools.launch.folder import JobFolder, copy_results, open_plain
from tools.launch.status import FailureCause, JobState, JobStatus


def test_the_first_intent_and_the_first_end_count(tmp_path: Path) -> None:
    folder = JobFolder.of(tmp_path, "k1")
    folder.make()
    assert folder.record_intent(make_intent("run")) == make_intent("run")
    assert folder.record_intent(make_intent("other")) == make_intent("run")
    running = JobStatus(JobState.RUNNING)
    assert folder.keep_final(running) == running
    assert folder.find_final() is None
    end = JobStatus(JobState.FAILED, FailureCause.EXIT, 3, nodes=("n1", "n2"), started_unix_s=1.5)
    assert folder.keep_final(end) == end
    assert folder.keep_final(JobStatus(JobState.LOST, FailureCause.LOST)) == end


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
