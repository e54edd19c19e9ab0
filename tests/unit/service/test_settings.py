"""A wrong setting is told in one line that names its variable, and shows no password."""

from collections.abc import Iterator
from pathlib import Path

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
    with pytest.raises(InputError, match="ASAP_DATABASE_URL") as caught:
        load_settings()
    assert "postgresql://" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://u:hunter2@[::1/d", "postgresql://u:hunter2@h:port/d"])
def test_a_database_without_an_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="ASAP_DATABASE_URL") as caught:
        open_database(Settings(database_url=url, _env_file=None).database)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["chroma:8000", "http://", "http://[::1", "http://chroma:99999"])
def test_a_knowledge_server_without_an_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="ASAP_CHROMA_URL"):
        open_knowledge(Settings(chroma_url=url, embedding="none", _env_file=None))


def test_a_language_model_without_an_address_is_refused() -> None:
    with pytest.raises(InputError, match="ASAP_LLM_BASE_URL"):
        reasoner_of(Settings(llm_base_url="localhost:8000", llm_model="m", _env_file=None))


def test_a_settings_file_that_is_no_text_is_refused() -> None:
    Path(".env").write_bytes(b"ASAP_DATA_DIR=\xff\xfe\n")
    with pytest.raises(InputError, match=r"\.env"):
        load_settings()
