"""`asap keys` and `asap serve`: keys in the database, settings in the help."""

import time

import pytest

from service.access.credentials import is_same
from service.access.store import find_key, list_audit
from service.cli.serve import settings_table
from service.db.engine import Database, open_database
from service.settings import Settings, load_settings
from tests.unit.service.cli.commands import Asap

pytestmark = pytest.mark.usefixtures("data_dir")


def database() -> Database:
    return open_database(load_settings().database)


def test_a_key_is_shown_once_and_only_its_digest_is_kept(asap: Asap) -> None:
    words = ("--scope", "submit", "--tenant", "research", "--days", "30")
    status, out, err = asap("keys", "add", "ci", *words)
    assert status == 0
    text = out.strip()
    with database().read() as conn:
        row = find_key(conn, text.split("_")[1])
    assert row
    assert is_same(text, row.digest)
    assert (row.name, row.tenant, row.scopes) == ("ci", "research", ["read", "submit"])
    assert row.expires_at
    assert row.expires_at - row.created_at == pytest.approx(30 * 86_400, abs=60)
    secret = text.split("_", 2)[2]
    assert secret not in asap("keys", "list").out + asap("keys", "list", "--json").out + err
    kept = b"".join(file.read_bytes() for file in load_settings().data_dir.glob("*.db*"))
    assert secret.encode() not in kept


def test_keys_are_listed_and_revoked_and_each_change_is_audited(asap: Asap) -> None:
    made = asap("keys", "add", "[/ci]", "--scope", "admin", "--json").answer
    assert asap("keys", "list", "--json").answer["state"] == "valid"
    listed = asap("keys", "list").out
    assert made["id"] in listed
    assert "[/ci]" in listed, "a name is text, never markup"
    for given in (made["id"], made["key"]):
        assert asap("keys", "revoke", given).status == 0
    assert asap("keys", "list", "--json").answer["state"] == "revoked"
    with database().read() as conn:
        rows, _ = list_audit(conn, "")
    assert [row.action for row in rows] == ["key.revoke", "key.revoke", "key.add"]
    assert rows[-1].details["scopes"] == ["read", "admin"]


def test_the_help_of_serve_has_every_setting(asap: Asap) -> None:
    result = asap("serve", "--help")
    assert result.status == 0
    for words in ("--role", "asap keys add", settings_table(), "ASAP_DATA_DIR=.asap"):
        assert words in result.out
    assert [name for name in Settings.model_fields if f"ASAP_{name.upper()}" not in result.out] == []


def test_retention_shows_what_has_expired_and_deletes_only_when_told(
    asap: Asap, monkeypatch: pytest.MonkeyPatch
) -> None:
    asap("keys", "add", "ci")
    assert asap("retention").out == "nothing has expired\n"
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 86_400 * 40)
    monkeypatch.setenv("ASAP_AUDIT_DAYS", "30")
    load_settings.cache_clear()
    for words in ((), ("--delete",)):
        assert asap("retention", "--json", *words).answer["count"] == 1
    assert asap("retention").out == "nothing has expired\n"
