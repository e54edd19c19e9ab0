"""Uploaded traces on disk: nothing stays of one that is discarded."""

from pathlib import Path

from service.settings import Settings
from service.traces import Uploads


def test_a_discard_that_a_process_died_over_is_completed_by_the_next(tmp_path: Path) -> None:
    uploads = Uploads(Settings(traces_dir=tmp_path, _env_file=None))
    for half in ("u1", ".u1.deleted"):
        (tmp_path / half).mkdir()
        (tmp_path / half / "rank0.json").write_text("{}")
    uploads.discard("u1")
    assert list(tmp_path.iterdir()) == []
    uploads.discard("u1")
