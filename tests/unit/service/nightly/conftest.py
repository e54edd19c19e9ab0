from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.db.engine import Database, open_database
from service.settings import Settings
from tests.unit.service.nightly.builders import Nights


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """SQLite; test_dispatch_tick.py also uses PostgreSQL, where locks differ."""
    with closing(open_database(Settings(data_dir=tmp_path / "data", _env_file=None).database)) as opened:
        opened.upgrade()
        yield opened


@pytest.fixture
def nights(database: Database, tmp_path: Path) -> Nights:
    return Nights(database, tmp_path)
