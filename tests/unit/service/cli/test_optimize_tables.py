"""The report at a terminal: every part that has something to say, in order, and read in a minute."""

import pytest

from service.cli.optimize_tables import print_tables
from tests.unit.graph.cases import Raw
from tests.unit.service.render.scenes import full, view_of


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: pytest.CaptureFixture[str], scenario: Raw, report: Raw) -> str:
    print_tables(view_of(scenario, report))
    return capsys.readouterr().out


def names(page: str) -> list[str]:
    return [line[:10].strip() for line in page.splitlines()[2:] if line[:1].strip()]


def test_a_full_report_has_its_parts_in_the_order_an_engineer_asks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario, report = full()
    plans = ["trials", "today", *(f"proposal {proposal['rank']}" for proposal in report["proposals"])]
    assert names(printed(capsys, scenario, report)) == [
        "verdict", "diagnosis", *plans, "try first", "two runs", "what if", "advice", "warning", "past cases",
        "why not", "notes", "incident",
    ]  # fmt: skip


def test_what_was_read_from_notes_stands_beside_the_words_it_rests_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario, report = full()
    scenario["notes"] = "keep tp 2"
    read = {"quote": "keep tp 2", "kind": "constraint", "field": "tp", "value": 2}
    report["notes"] = {"accepted": [read], "refused": [], "says": None}
    assert 'tp must be 2, from "keep tp 2"' in printed(capsys, scenario, report)


def test_markup_and_terminal_codes_in_any_text_are_only_text(capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, *full("[bold red]\x1b[2Jx[/]"))
    assert "\x1b" not in page
    assert r"[bold red]\x1b[2Jx[/]" in page


def test_what_a_language_model_spent_and_left_to_the_rules_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario, report = full()
    report["usage"] = {"tokens": 12345, "cost": 0.5, "answered": 3, "fell_back": 2}
    page = " ".join(printed(capsys, scenario, report).split())
    assert "12,345 tokens, 0.50 spent, 2 answers by the expert rules instead" in page
