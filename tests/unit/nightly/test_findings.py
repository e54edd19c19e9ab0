from collections.abc import Collection

import pytest

from tests.unit.nightly.histories import DAY_S, nights, wobble
from tools.nightly.findings import Finding, judge, list_series


def said(times_s: list[float], changed: Collection[int] = ()) -> Finding | None:
    return judge(list_series(nights(times_s))[0], changed).finding


def state(times_s: list[float], changed: Collection[int] = ()) -> str | None:
    finding = said(times_s, changed)
    return finding.state if finding else None


def test_a_regression_is_suspected_then_new_then_open_then_accepted() -> None:
    times_s = wobble(20) + wobble(40, 11.5)
    states = [state(times_s[:count]) for count in range(20, 61)]
    assert states == [None, "suspected", "new", *["open"] * 26, *[None] * 12]


def test_a_change_of_surroundings_that_night_makes_a_suspicion_an_alarm() -> None:
    times_s = wobble(20) + wobble(3, 11.5)
    assert [state(times_s[:count], {20}) for count in (21, 22, 23)] == ["new", "open", "open"]


def test_a_single_slow_night_is_suspected_and_over_the_night_after() -> None:
    times_s = [*wobble(20), 12.0, *wobble(3)]
    assert [state(times_s[:count]) for count in (21, 22, 23)] == ["suspected", "recovered", None]


def test_a_regression_made_good_is_recovered_once() -> None:
    times_s = wobble(20) + wobble(6, 11.5) + wobble(4)
    assert [state(times_s[:count]) for count in range(27, 31)] == ["open", "recovered", None, None]


def test_a_regression_on_top_of_an_open_one_is_new_and_counts_from_the_first() -> None:
    finding = said(wobble(20) + wobble(6, 11.0) + wobble(2, 12.1))
    assert finding is not None
    assert finding.state == "new"
    assert finding.change_ratio == pytest.approx(0.10, abs=0.02)
    assert finding.anchor == pytest.approx(10.0, rel=0.01)


def test_an_improvement_is_told_when_it_is_sure() -> None:
    times_s = wobble(20) + wobble(3, 9.0)
    assert [state(times_s[:count]) for count in (21, 22, 23)] == [None, "improved", None]


def test_what_happened_on_nights_nobody_was_told_of_is_new() -> None:
    series = list_series(nights(wobble(20) + wobble(5, 11.5)))[0]
    found = [judge(series, unreported=unread).finding for unread in (0, 20, 21, 22, 24, 99)]
    assert [one.state for one in found if one] == ["new", "new", "new", "open", "open", "open"]


def test_a_finding_says_how_much_and_since_when() -> None:
    finding = said(wobble(20) + wobble(5, 11.0))
    assert finding is not None
    assert (finding.since, finding.nights) == (20 * DAY_S, 5)
    assert finding.before == pytest.approx(10.0, rel=0.01)
    assert finding.now == pytest.approx(11.0, rel=0.01)
    assert finding.change_ratio == pytest.approx(0.1, abs=0.02)
    assert 0.003 < finding.scatter_ratio < 0.02
