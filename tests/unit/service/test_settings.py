"""A wrong setting is told in one line that names its variable, and shows no password."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.db.engine import open_database
from service.runtime import open_knowledge, reasoner_of
from service.settings import Settings, load_settings
from tools.errors import InputError


@pytest.fixture(autouse=True)
def _unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings are read anew, and in a folder without a file of them."""
    monkeypatch.chdir(tmp_path)
    load_settings.cache_clear()
    yield
    load_settings.cache_clear()


@pytest.mark.parametrize(
    "url", ["nonsense", "mysql://u:hunter2@h/d", "postgres://u:hunter2@h/d", "postgresql+psycopg://h/d"]
)
def test_another_database_than_postgres_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASAP_DATABASE_URL", url)
    with pytest.raises(InputError, match=r"ASAP_DATABASE_URL.*postgresql://") as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


OPENERS: dict[str, Callable[[Settings], object]] = {
    "database_url": lambda settings: open_database(settings.database),
    "chroma_url": open_knowledge,
    "llm_base_url": reasoner_of,
}


@pytest.mark.parametrize(
    ("name", "url"),
    [
        *(("database_url", f"postgresql://u:hunter2@{place}/d") for place in ("[::1", "h:port")),
        *(("chroma_url", url) for url in ("chroma:8000", "http://", "http://[::1", "http://chroma:99999")),
        ("llm_base_url", "localhost:8000"),
    ],
)
def test_a_server_without_an_address_is_refused_without_its_password(name: str, url: str) -> None:
    given: dict[str, Any] = {name: url, "embedding": "none", "llm_model": "m"}
    with pytest.raises(InputError, match=f"ASAP_{name.upper()}") as caught:
        OPENERS[name](Settings(**given, _env_file=None))
    assert "hunter2" not in str(caught.value)


def test_a_settings_file_that_is_not_text_is_refused() -> None:
    Path(".env").write_bytes(b"ASAP_DATA_DIR=\xff\xfe\n")
    with pytest.raises(InputError, match=r"\.env"):
        load_settings()
