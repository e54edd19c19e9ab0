from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db.engine import Database, open_database
from service.settings import Settings


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """SQLite: what PostgreSQL does otherwise is tested where it matters."""
    opened = open_database(Settings(data_dir=tmp_path / "data", _env_file=None).database)
    opened.upgrade()
    yield opened
    opened.close()
