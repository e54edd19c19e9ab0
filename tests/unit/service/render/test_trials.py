"""Trials in a report: predicted before against measured, and what came of each."""

from graph.report import Trial
from service.render.trials import NOTHING, TrialRow, trial_rows
from tests.unit.graph.cases import Raw
from tests.unit.service.render.scenes import full, html_report, markdown_report, trial


def rows(made: Raw) -> list[TrialRow]:
    return trial_rows([Trial.model_validate(made)])


def test_a_measured_trial_shows_how_far_the_prediction_was_off() -> None:
    (row,) = rows({**trial("plan"), "role": "candidate"})
    assert row.cells == (
        "trial 0", "plan", "2.00 s (1.80 to 2.30)", "2.50 s (2.40 to 2.60)", "-20%", "1.25x (1.20 to 1.30)",
        "measured, 40 steps in 2 runs",
    )  # fmt: skip


def test_a_trial_that_failed_or_was_refused_says_why_and_has_no_gain() -> None:
    (failed,), (refused,) = rows(trial("a log", failed=True)), rows(trial("other nodes", refused=True))
    assert (failed.outcome, failed.evidence) == ("ran out of memory", ["a log"])
    assert (failed.measured, failed.off, failed.gain) == (NOTHING, NOTHING, NOTHING)
    assert (refused.outcome, refused.evidence, refused.gain) == ("not comparable", ["other nodes"], NOTHING)


def test_both_documents_show_every_trial_and_why_they_ended() -> None:
    scenario, report = full("no gain beyond noise")
    for document in (markdown_report(scenario, report), html_report(scenario, report)):
        for words in ("3 of at most 4 plans were tried", "They stopped because no gain beyond noise"):
            assert words in document
        for words in ("prediction off by", "out of memory", "-20%"):
            assert words in document
