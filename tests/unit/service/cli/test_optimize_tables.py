"""The report at a terminal: every part that has something to say, in order, and read in a minute."""

import pytest

from graph.report import Report
from service.cli.optimize_tables import MAX_CASES, print_report
from tests.unit.graph.cases import Raw
from tests.unit.service.render.scenes import SMALL, full, session

MAX_LINES = 110
"""At 80 columns: about two screens."""


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: pytest.CaptureFixture[str], scenario: Raw, report: Raw) -> str:
    print_report(scenario, Report.model_validate(report))
    return capsys.readouterr().out


def names(page: str) -> list[str]:
    return [line[:10].strip() for line in page.splitlines()[2:] if line[:1].strip()]


def test_a_full_report_has_its_parts_in_the_order_an_engineer_asks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario, report = full()
    plans = ["trials", "today", *(f"proposal {proposal['rank']}" for proposal in report["proposals"])]
    assert names(printed(capsys, scenario, report)) == [
        "verdict", "diagnosis", *plans, "try first", "what if", "advice", "warning", "past cases", "why not",
        "notes", "incident",
    ]  # fmt: skip


def test_what_is_absent_takes_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown = names(printed(capsys, SMALL, session(SMALL)))
    assert not {"warning", "notes", "incident"} & set(shown)


def test_a_real_report_is_read_in_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(printed(capsys, SMALL, session(SMALL)).splitlines()) <= MAX_LINES


def test_refuted_cases_are_all_shown_as_warnings_and_of_the_others_a_few(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario, report = full()
    good, bad = report["cases"]
    report["cases"] = [good | {"title": "GOOD"}] * 9 + [bad | {"title": "BAD"}] * 5
    page = printed(capsys, scenario, report)
    assert (page.count("GOOD"), page.count("BAD")) == (MAX_CASES, 5)
    assert page.count("refuted by measurement") == 5


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


def test_a_plan_that_does_not_fit_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    report = session(SMALL)
    report["baseline"]["fits"] = False
    assert "DOES NOT FIT" in printed(capsys, SMALL, report)


def test_what_a_language_model_spent_and_left_to_the_rules_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario, report = full()
    report["usage"] = {"tokens": 12345, "cost": 0.5, "answered": 3, "fell_back": 2}
    page = " ".join(printed(capsys, scenario, report).split())
    assert "12,345 tokens, 0.50 spent, 2 answers by the expert rules instead" in page
