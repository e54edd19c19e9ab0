"""Bars show the numbers of the report: they add up, stay inside their figure, and say themselves aloud."""

import math

import pytest

from service.render.bars import report_charts
from tests.unit.graph.cases import Raw
from tests.unit.service.render.scenes import COLD, SMALL, session, view_of


@pytest.mark.parametrize("raw", [SMALL, COLD], ids=["today", "cold"])
def test_every_segment_and_whisker_lies_inside_the_figure(raw: Raw) -> None:
    for figure in report_charts(view_of(raw, session(raw))):
        for bar in figure.bars:
            ends = [segment.x + segment.width for segment in bar.segments]
            whiskers = [bar.whisker.low, bar.whisker.middle, bar.whisker.high] if bar.whisker else []
            assert all(0 <= place <= 100 for place in [*ends, *whiskers])
            assert whiskers == sorted(whiskers)
            assert all(0 <= mark.x <= 100 for mark in bar.marks)


def test_segments_touch_and_the_last_one_ends_at_the_predicted_step() -> None:
    step = report_charts(view_of(SMALL, session(SMALL)))[0]
    for bar in step.bars:
        assert bar.whisker
        for left, right in zip(bar.segments, bar.segments[1:], strict=False):
            assert math.isclose(left.x + left.width, right.x, abs_tol=1e-6)
        assert math.isclose(bar.segments[-1].x + bar.segments[-1].width, bar.whisker.middle, rel_tol=1e-6)


def test_a_bar_twice_as_long_is_twice_as_much_memory() -> None:
    view = view_of(SMALL, session(SMALL))
    memory = report_charts(view)[1]
    for bar, plan in zip(memory.bars, view.plans, strict=True):
        width = sum(segment.width for segment in bar.segments)
        expected = bar.marks[1].x * plan.prediction.peak_memory_gib / view.capacity_gib
        assert math.isclose(width, expected, rel_tol=1e-6)


def test_a_plan_that_does_not_fit_raises_alarm_and_passes_the_mark_of_the_device() -> None:
    report = session(SMALL)
    peak = report["baseline"]["memory_gib"]
    peak["activations"] += 200
    report["baseline"] |= {"fits": False, "peak_memory_gib": sum(peak.values())}
    memory = report_charts(view_of(SMALL, report))[1]
    today = memory.bars[0]
    assert (today.alarm, today.aside) == (True, "does not fit")
    assert today.segments[-1].x > today.marks[1].x
    assert not memory.bars[1].alarm


def test_speeds_are_compared_only_where_there_is_a_plan_of_today() -> None:
    assert [chart.id for chart in report_charts(view_of(SMALL, session(SMALL)))] == ["step", "memory", "gain"]
    assert [chart.id for chart in report_charts(view_of(COLD, session(COLD)))] == ["step", "memory"]


def test_todays_speed_is_marked_left_of_a_clearly_faster_proposal() -> None:
    report = session(SMALL)
    report["proposals"][0] |= {"speedup": 2.0, "speedup_low": 1.5, "speedup_high": 2.5}
    gain = report_charts(view_of(SMALL, report))[2]
    assert gain.bars[0].whisker
    assert gain.bars[0].marks[0].x < gain.bars[0].whisker.low


def test_a_bar_in_words_names_the_plan_the_time_and_its_parts() -> None:
    today = report_charts(view_of(SMALL, session(SMALL)))[0].bars[0]
    assert today.says.startswith(f"today: {today.value}, 80% interval ")
    assert "compute " in today.says
