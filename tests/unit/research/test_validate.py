"""Error figures by hand, the files they are written to, and the plot."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from research.fit import REPO
from research.validate import (
    DATA,
    PLOT,
    Outcome,
    mean_over_sources,
    memory_score,
    report,
    scatter_svg,
    score,
    to_json,
)
from tools.cost.validation import Point, Score, Validation, find_validation

MEASURED = np.array([1.0, 2.0, 4.0, 8.0])
PREDICTED = np.array([1.05, 1.8, 4.0, 12.0])
OUTCOME = Outcome(MEASURED, PREDICTED, PREDICTED * 0.9, PREDICTED * 1.1)


def score_of(*rows: bool) -> Score:
    return score(OUTCOME, np.array(rows), "By device", "device", "h100")


def test_errors_are_relative_to_what_was_measured() -> None:
    everything = score_of(True, True, True, True)
    assert everything.rows == 4
    assert everything.mape == pytest.approx((0.05 + 0.1 + 0.0 + 0.5) / 4)
    assert everything.median == pytest.approx((0.05 + 0.1) / 2)
    assert everything.bias == pytest.approx((0.0 + 0.05) / 2)
    # 8 s is below 12 s less a tenth, and 2 s above 1.8 s and a tenth
    assert everything.coverage == 0.5


def test_only_the_chosen_rows_count() -> None:
    assert score_of(True, False, True, False).within_10 == 1.0
    assert score_of(False, False, False, True).within_10 == 0.0
    first = score_of(True, False, False, False)
    assert (first.rows, first.coverage) == (1, 1.0)
    assert first.mape == pytest.approx(0.05)


def test_every_source_counts_the_same_in_the_mean_over_sources() -> None:
    sources = np.array(["one", "one", "one", "other"])
    mean = mean_over_sources(OUTCOME, np.ones(4, dtype=np.bool_), sources, "section", "all")
    assert mean.mape == pytest.approx(((0.05 + 0.1 + 0.0) / 3 + 0.5) / 2)
    assert mean.rows == 4


def test_memory_is_scored_over_published_peaks_and_fitting_over_all_rows() -> None:
    fits = np.array([True, True, True, False])
    memory = memory_score(
        "runs", np.array([11.0, 50.0, 9.0, 99.0]), np.array([10.0, np.nan, 10.0, np.nan]), fits
    )
    assert (memory.rows, memory.fits_share) == (2, 0.75)
    assert memory.mape == pytest.approx(0.1)


def test_the_page_is_rendered_from_the_data_that_the_package_ships() -> None:
    validation = find_validation()
    assert validation is not None
    assert report(validation, PLOT) == (REPO / "docs" / "validation.md").read_text()
    assert to_json(validation) == DATA.read_text()
    assert len(validation.points) == sum(
        row.rows for row in validation.rows if row.section == "By source, each left out whole"
    )


def test_json_is_read_back_as_it_was_written() -> None:
    point = Point(measured_s=1.5, predicted_s=1.4, kind="moe")
    validation = Validation(rows=(score_of(True, True, True, True),), memory=(), points=(point, point))
    assert Validation.model_validate_json(to_json(validation)) == validation


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_plot_has_a_dot_per_run_on_the_diagonal_or_above_it_if_predicted_too_slow(factor: float) -> None:
    points = [Point(measured_s=m, predicted_s=m * factor, kind="moe") for m in MEASURED.tolist()]
    root = ET.fromstring(scatter_svg(points))
    dots = [node for node in root.iter() if node.tag.endswith("circle") and node.get("opacity")]
    sums = [float(dot.get("cx", "0")) + float(dot.get("cy", "0")) for dot in dots]
    assert len(sums) == 4
    assert all(s == pytest.approx(640.0, abs=0.2) if factor == 1.0 else s < 640.0 for s in sums)
