"""Trials in a report: predicted before against measured, and what came of each."""

from graph.report import Trial
from service.render.trials import NOTHING, TrialRow, trial_rows
from tests.unit.service.render.scenes import Raw, full, html_report, markdown_report, trial


def rows(made: Raw) -> list[TrialRow]:
    return trial_rows([Trial.model_validate(made)])


def test_a_measured_trial_tells_how_far_the_prediction_was_off() -> None:
    row = rows({**trial("plan"), "role": "candidate"})[0]
    assert row.predicted == "2.00 s (1.80 to 2.30)"
    assert row.measured == "2.50 s (2.40 to 2.60)"
    assert row.off == "-20%"
    assert row.gain == "1.25x (1.20 to 1.30)"
    assert row.outcome == "measured, 40 steps in 2 runs"


def test_a_baseline_has_no_gain_over_itself() -> None:
    assert rows(trial("plan"))[0].gain == NOTHING


def test_a_failure_tells_its_kind_and_its_evidence_and_no_time() -> None:
    row = rows(trial("words of a log", failed=True))[0]
    assert (row.outcome, row.measured, row.off) == ("out of memory", NOTHING, NOTHING)
    assert row.evidence == ["words of a log"]


def test_what_the_gate_refused_says_why() -> None:
    row = rows(trial("nodes were others", refused=True))[0]
    assert row.outcome == "not comparable"
    assert row.evidence == ["nodes were others"]


def test_both_documents_show_every_trial_and_why_they_ended() -> None:
    scenario, report = full("no gain beyond noise")
    for document in (markdown_report(scenario, report), html_report(scenario, report)):
        assert "3 of at most 4 plans were tried" in document
        assert "They stopped because no gain beyond noise" in document
        assert "prediction off by" in document
        assert "out of memory" in document
        assert "-20%" in document


def test_words_of_a_job_are_shown_and_never_markup() -> None:
    scenario, report = full("<script>alert(1)</script> | **bold** [x](javascript:1)")
    assert "<script>alert" not in html_report(scenario, report)
    assert "<script>" not in markdown_report(scenario, report)
