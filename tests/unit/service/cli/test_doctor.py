"""`asap doctor`: one line per part, what to do, and an exit status for scripts."""

from pathlib import Path

import pytest

from service.settings import load_settings
from tests.unit.service.cli.commands import Asap, Result


def states(result: Result) -> dict[str, str]:
    return {line["what"]: line["state"] for line in result.lines}


def test_a_fresh_installation_is_in_order_and_stays_untouched(asap: Asap, data_dir: Path) -> None:
    before = sorted(data_dir.iterdir()) if data_dir.exists() else []
    result = asap("doctor", "--json")
    assert result.status == 0
    assert set(states(result).values()) <= {"ok", "note"}
    assert (sorted(data_dir.iterdir()) if data_dir.exists() else []) == before


def test_what_is_configured_and_does_not_work_fails_with_a_remedy(
    asap: Asap, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = data_dir / "templates.toml"
    templates.parent.mkdir(exist_ok=True)
    templates.write_text(
        '[[template]]\nname = "t"\nlauncher = "local"\ncommand = ["no-such-trainer", "{scenario}"]\n'
        "limits = { wall_s = 60, devices = 1 }\n"
    )
    for name, value in {
        "LLM_BASE_URL": "http://127.0.0.1:9/v1",
        "LLM_MODEL": "m",
        "LLM_API_KEY": "sk-secret",
        "DATABASE_URL": "postgresql://asap:hidden@127.0.0.1:9/asap",
        "LAUNCH_TEMPLATES": str(templates),
    }.items():
        monkeypatch.setenv(f"ASAP_{name}", value)
    load_settings.cache_clear()
    result = asap("doctor", "--json")
    assert result.status == 1
    failed = {line["what"]: line for line in result.lines if line["state"] == "failed"}
    assert set(failed) == {"database", "language model", "launchers"}
    assert all(line["todo"] for line in failed.values())
    assert "no-such-trainer is not on PATH" in failed["launchers"]["found"]
    assert "hidden" not in result.out
    assert "sk-secret" not in result.out


def test_a_wrong_setting_is_named(asap: Asap, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASAP_LEASE_S", "soon")
    load_settings.cache_clear()
    result = asap("doctor")
    assert result.status == 1
    assert "ASAP_LEASE_S" in result.out


def test_an_error_of_our_own_in_the_question_is_called_a_bug(
    asap: Asap, monkeypatch: pytest.MonkeyPatch, unexpected_errors: list[str]
) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("our own mistake")

    monkeypatch.setattr("graph.middleware.Requests._settings", fail)
    monkeypatch.setenv("ASAP_LLM_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("ASAP_LLM_MODEL", "m")
    load_settings.cache_clear()
    result = asap("doctor", "--json")
    (found,) = [line for line in result.lines if line["what"] == "language model"]
    assert (result.status, found["state"]) == (1, "failed")
    assert "AttributeError at graph.middleware:" in found["found"]
    assert found["todo"].startswith("a bug of ASAP")
    assert len(unexpected_errors) == 1
    unexpected_errors.clear()
