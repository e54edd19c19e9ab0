from pathlib import Path

import pytest

from service.db.engine import Database
from tests.unit.service.nightly.builders import Nights


@pytest.fixture
def nights(sqlite: Database, tmp_path: Path) -> Nights:
    """On SQLite; test_dispatch_tick.py also uses PostgreSQL, where locks differ."""
    return Nights(sqlite, tmp_path)
