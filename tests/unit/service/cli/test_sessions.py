"""The commands around the server: keys, settings, sessions."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from asap_client.errors import ProblemError
from asap_client.models import Event, Session
from service.auth import is_same
from service.cli import sessions
from service.cli.main import main
from service.cli.serve import settings_table
from service.db.access import find_key, list_audit
from service.db.engine import Database, open_database
from service.settings import Settings, load_settings
from tests.unit.asap_client.answers import session_json
from tests.unit.service.served import SCENARIO

Run = Callable[..., Any]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ASAP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    load_settings.cache_clear()
    yield tmp_path / "data"
    load_settings.cache_clear()


@pytest.fixture
def run(data: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """The status, and what was printed."""

    def call(*words: str) -> tuple[int, str, str]:
        status = main(list(words))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def database(data: Path) -> Database:
    return open_database(Settings(data_dir=data).database)


def test_a_key_is_shown_once_and_only_its_digest_is_kept(run: Run, data: Path) -> None:
    status, out, err = run("keys", "add", "ci", "--scope", "submit", "--tenant", "research", "--days", "30")
    assert status == 0
    text = out.strip()
    with database(data).read() as conn:
        row = find_key(conn, text.split("_")[1])
    assert row
    assert is_same(text, row.digest)
    assert (row.name, row.tenant, row.scopes) == ("ci", "research", ["read", "submit"])
    assert row.expires_at
    assert row.expires_at - row.created_at == pytest.approx(30 * 86_400, abs=60)
    secret = text.split("_", 2)[2]
    assert secret not in run("keys", "list")[1] + run("keys", "list", "--json")[1] + err
    assert secret.encode() not in b"".join(file.read_bytes() for file in data.glob("*.db*"))


def test_keys_are_listed_and_revoked_and_each_change_is_audited(run: Run, data: Path) -> None:
    made = json.loads(run("keys", "add", "ci", "--scope", "admin", "--json")[1])
    assert json.loads(run("keys", "list", "--json")[1])["state"] == "valid"
    assert made["id"] in run("keys", "list")[1]
    for given in (made["id"], made["key"]):
        assert run("keys", "revoke", given)[0] == 0
    assert json.loads(run("keys", "list", "--json")[1])["state"] == "revoked"
    with database(data).read() as conn:
        rows, _ = list_audit(conn, "")
    assert [row.action for row in rows] == ["key.revoke", "key.revoke", "key.add"]
    assert rows[-1].details["scopes"] == ["read", "admin"]


def test_a_key_may_be_called_anything_that_can_be_printed(run: Run) -> None:
    assert run("keys", "add", "[/ci]")[0] == 0
    status, out, _ = run("keys", "list")
    assert status == 0
    assert "[/ci]" in out


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("add", "x", "--scope", "root"), "--scope"),
        (("add", "x", "--tenant", "No Spaces"), "--tenant"),
        (("add", "x", "--days", "-1"), "--days"),
        (("add", "x", "--days", "nan"), "--days"),
        (("add", ""), "NAME"),
        (("revoke", "0123456789ab"), "ID"),
    ],
)
def test_what_is_wrong_with_a_key_is_named(run: Run, words: tuple[str, ...], field: str) -> None:
    status, out, err = run("keys", *words)
    assert (status, out) == (2, "")
    assert f"error: {field}: got" in err


def test_the_table_has_every_setting_and_no_secret() -> None:
    table = settings_table()
    for name in Settings.model_fields:
        assert f"ASAP_{name.upper()}" in table
    assert "ASAP_DATA_DIR=.asap" in table


def test_serve_teaches_and_prints_the_settings(run: Run) -> None:
    status, out, _ = run("serve", "--help")
    assert status == 0
    assert "--role" in out
    assert "asap keys add" in out
    assert settings_table() in out


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_wrong_port_is_told_in_one_line(run: Run, port: str) -> None:
    status, _, err = run("serve", f"--port={port}")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "--port" in err


class FakeClient:
    """A server that says yes, and keeps what it was asked."""

    def __init__(self, state: str = "completed", error: dict[str, Any] | None = None) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.state, self.error = state, error

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: object) -> None: ...

    def _session(self) -> Session:
        return Session.from_json(session_json(state=self.state, error=self.error))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*arguments: object) -> Any:  # noqa: ANN401
            self.asked.append((name, *arguments))
            return self._session()

        return ask

    def report(self, id: str) -> dict[str, Any]:
        return {"id": id}

    def events(self, id: str, after: int) -> list[Event]:
        return [Event.from_json(EVENT)]


EVENT = {
    "seq": 1,
    "at": "2026-11-16T00:00:00Z",
    "node": "n",
    "kind": "k",
    "content": {"text": "a\nb\x1b[31m"},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = FakeClient()
    monkeypatch.setattr(sessions, "connect", lambda server: made)
    return made


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(SCENARIO))
    return str(path)


def test_a_scenario_is_submitted_with_labels(run: Run, server: FakeClient, file: str) -> None:
    status, out, _ = run("sessions", "submit", file, "--label", "team=a", "--label", "x=1=2")
    assert (status, out) == (0, "s1\n")
    assert server.asked == [("submit", SCENARIO | {"labels": {"team": "a", "x": "1=2"}}, None)]


def test_waiting_prints_the_report(run: Run, server: FakeClient, file: str) -> None:
    assert run("sessions", "submit", file, "--wait", "--json")[:2] == (0, '{"id": "s1"}\n')


@pytest.mark.parametrize(
    ("state", "kind", "status"),
    [("failed", "infeasible", 3), ("failed", "unexpected", 1), ("cancelled", None, 1)],
)
def test_the_exit_status_tells_how_the_session_ended(
    run: Run, server: FakeClient, file: str, state: str, kind: str | None, status: int
) -> None:
    server.state = state
    server.error = {"kind": kind, "message": "because"} if kind else None
    code, out, err = run("sessions", "submit", file, "--wait")
    assert (code, out) == (status, "")
    assert ("because" if kind else "cancelled") in err


@pytest.mark.parametrize("plan", ['{"tp": 4, "recompute": "none"}', "tp=4,recompute=none"])
def test_a_decision_brings_its_plan(run: Run, server: FakeClient, plan: str) -> None:
    run("sessions", "decide", "s1", "edit", "--proposal", "2", "--plan", plan, "--comment", "why")
    changed = {"tp": 4, "recompute": "none"}
    decision = {"action": "edit", "proposal": 2, "plan": changed, "comment": "why"}
    assert server.asked == [("decide", "s1", decision)]


@pytest.mark.parametrize("action", ["cancel", "retry", "show"])
def test_simple_actions_show_the_session(run: Run, server: FakeClient, action: str) -> None:
    status, out, _ = run("sessions", action, "s1", "--json")
    assert (status, json.loads(out)["id"]) == (0, "s1")
    assert "s1" in run("sessions", action, "s1")[1]


def test_an_event_is_one_printable_line(run: Run, server: FakeClient) -> None:
    out = run("sessions", "events", "s1")[1]
    assert len(out.splitlines()) == 1
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("submit", "FILE", "--label", "noequals"), "--label"),
        (("submit", "FILE", "--upload"), "traces"),
        (("decide", "s1", "edit", "--plan", "{"), "--plan"),
    ],
)
def test_what_is_wrong_with_a_command_is_named(
    run: Run, server: FakeClient, file: str, words: tuple[str, ...], field: str
) -> None:
    status, _, err = run("sessions", *(file if word == "FILE" else word for word in words))
    assert status == 2
    assert f"error: {field}" in err


def test_labels_that_are_no_object_are_named(run: Run, server: FakeClient, tmp_path: Path) -> None:
    path = tmp_path / "labelled.json"
    path.write_text(json.dumps(SCENARIO | {"labels": "team"}))
    status, _, err = run("sessions", "submit", str(path), "--label", "a=b")
    assert (status, "error: labels: got 'team'" in err) == (2, True)


def test_a_wrong_server_is_named(run: Run) -> None:
    status, _, err = run("sessions", "list", "--server", "nonsense")
    assert (status, "--server" in err) == (2, True)


@pytest.mark.parametrize(
    ("kind", "status"), [("not-found", 1), ("conflict", 1), ("wrong-input", 2), ("nothing-feasible", 3)]
)
def test_a_refusal_of_the_server_is_one_line_and_its_kind_the_exit_status(
    run: Run, server: FakeClient, monkeypatch: pytest.MonkeyPatch, kind: str, status: int
) -> None:
    problem = {"type": f"urn:asap:problem:{kind}", "detail": "the server says no"}

    def refuse(id: str) -> None:
        raise ProblemError.from_response(httpx.Response(400, json=problem))

    monkeypatch.setattr(server, "session", refuse, raising=False)
    assert run("sessions", "show", "s1") == (status, "", "asap: error: the server says no\n")
