"""The checks of rows against what was published: a clean row is no error, and seldom a doubt."""

from tools.model.published import published_runs
from tools.model.row_checks import check_rows

SWEEP = "usp"
"""Its source calls its times uncertain."""


def test_no_published_run_is_an_error_and_few_are_doubted() -> None:
    published = published_runs()
    rows = [run.to_data() for run in published[::3]]
    checked = check_rows(rows, published)
    assert [str(finding) for row in checked for finding in row.findings if finding.severity == "error"] == []
    measured = [row for row in checked if row.run and row.run.source != SWEEP and not row.run.crashed]
    assert len(measured) > 200
    assert sum(bool(row.findings) for row in measured) < 0.02 * len(measured)


def test_a_corrected_row_is_the_known_run_and_an_id_of_another_source_is_taken() -> None:
    published = published_runs()
    known = next(run for run in published if run.source == "mbridge" and run.measured.step_time_s)
    measured = known.measured.model_copy(update={"step_time_s": 1.05 * (known.measured.step_time_s or 1.0)})
    corrected = known.model_copy(update={"measured": measured})
    (row,) = check_rows([corrected.to_data()], published)
    assert [(finding.field, finding.severity) for finding in row.findings] == [("id", "warning")]
    (row,) = check_rows([corrected.model_copy(update={"source": "acme"}).to_data()], published)
    assert [(finding.field, finding.severity) for finding in row.findings] == [("id", "error")]
