from pathlib import Path

import pytest

from service.db.engine import BusyFolderError, lock_for_work, upgrade_lock
from service.settings import Settings
from tools.errors import InputError


def test_a_second_worker_of_one_folder_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    with lock_for_work(settings), pytest.raises(BusyFolderError, match="another process runs the sessions"):
        lock_for_work(settings)
    lock_for_work(settings).close()


def test_a_data_folder_that_cannot_be_written_is_named_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(data_dir=tmp_path / "file" / "data")
    with (
        pytest.raises(InputError, match=r"ASAP_DATA_DIR.*may write .Not a directory"),
        upgrade_lock(settings),
    ):
        pass
