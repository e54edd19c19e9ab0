"""Error figures by hand, the tables that show them, and the plot."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from research.validate import MemoryScore, Outcome, memory_score, report, scatter_svg, score, score_table

MEASURED = np.array([1.0, 2.0, 4.0, 8.0])
PREDICTED = np.array([1.05, 1.8, 4.0, 12.0])
OUTCOME = Outcome(MEASURED, PREDICTED, PREDICTED * 0.9, PREDICTED * 1.1)
ALL = np.ones(4, dtype=np.bool_)


def test_errors_are_relative_to_what_was_measured() -> None:
    found = score(OUTCOME, ALL)
    assert found.rows == 4
    assert found.mape == pytest.approx((0.05 + 0.1 + 0.0 + 0.5) / 4)
    assert found.median == pytest.approx((0.05 + 0.1) / 2)
    assert found.bias == pytest.approx((0.0 + 0.05) / 2)


def test_the_share_within_a_tenth_and_inside_the_interval() -> None:
    """8 s lies below 12 s less a tenth; 2 s below 1.8 s and a tenth more."""
    found = score(OUTCOME, ALL)
    assert found.coverage == 0.5
    assert score(OUTCOME, np.array([True, False, True, False])).within_10 == 1.0
    assert score(OUTCOME, np.array([False, False, False, True])).within_10 == 0.0


def test_only_the_chosen_rows_count() -> None:
    found = score(OUTCOME, np.array([True, False, False, False]))
    assert (found.rows, found.coverage) == (1, 1.0)
    assert found.mape == pytest.approx(0.05)


def test_memory_is_judged_where_a_peak_was_published_and_fitting_everywhere() -> None:
    fits = np.array([True, True, True, False])
    found = memory_score(np.array([11.0, 50.0, 9.0, 99.0]), np.array([10.0, np.nan, 10.0, np.nan]), fits)
    assert (found.rows, found.fits_share) == (2, 0.75)
    assert found.mape == pytest.approx(0.1)


def test_a_table_has_a_line_for_each_score_under_one_header() -> None:
    table = score_table("device", {"h100": score(OUTCOME, ALL), "a100": score(OUTCOME, ALL)})
    lines = table.splitlines()
    assert lines[0].startswith("| device | rows | MAPE")
    assert lines[2] == "| h100 | 4 | 16.2% | 7.5% | +2.5% | 75% | 50% |"
    assert len({line.count("|") for line in lines}) == 1


def test_the_report_names_its_plot_and_says_that_it_is_made() -> None:
    text = report([("By device", "table\n")], {"all": MemoryScore(3, 0.05, 1.0)}, "plot.svg")
    assert "](plot.svg)" in text
    assert "do not edit" in text
    assert "## By device\n\ntable\n" in text
    assert "| all | 3 | 5.0% | 100.0% |" in text


def test_the_plot_is_an_image_with_a_dot_a_run_and_perfect_predictions_on_the_diagonal() -> None:
    root = ET.fromstring(scatter_svg(MEASURED, MEASURED, ["dense", "moe", "small", "dense"]))
    dots = [node for node in root.iter() if node.tag.endswith("circle") and node.get("opacity")]
    assert len(dots) == 4
    for dot in dots:
        x, y = float(dot.get("cx", "0")), float(dot.get("cy", "0"))
        assert x + y == pytest.approx(640.0, abs=0.2)


def test_a_prediction_that_is_too_slow_lies_above_the_diagonal() -> None:
    root = ET.fromstring(scatter_svg(MEASURED, MEASURED * 2.0, ["dense"] * 4))
    dots = [node for node in root.iter() if node.tag.endswith("circle") and node.get("opacity")]
    for dot in dots:
        assert float(dot.get("cx", "0")) + float(dot.get("cy", "0")) < 640.0
