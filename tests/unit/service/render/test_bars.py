"""Bars show the numbers of the report: they add up, stay inside their figure, and say themselves aloud."""

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
