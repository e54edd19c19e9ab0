from collections.abc import Collection
from typing import Any

import pytest

from tests.unit.nightly.builders import nights, wobble
from tools.nightly.findings import judge, list_series

SLOW_THEN_BACK = ["suspected", "new", "open", "open", "open", "recovered", None]


def finding_of(times_s: list[float], changed: Collection[int] = (), unread: int | None = None) -> Any:  # noqa: ANN401
    """A NightFinding; a test knows if there is one."""
    return judge(list_series(nights(times_s))[0], changed, unreported=unread).finding


# In this order: accepted in the end, explained by a change, a single night, recovered, an improvement.
@pytest.mark.parametrize(
    ("times_s", "changed", "states"),
    [
        (wobble(20) + wobble(40, 11.5), (), ["suspected", "new", *["open"] * 26, *[None] * 12]),
        (wobble(20) + wobble(3, 11.5), {20}, ["new", "open", "open"]),
        ([*wobble(20), 12.0, *wobble(2)], (), ["suspected", "recovered", None]),
        (wobble(20) + wobble(4, 11.5) + wobble(3), (), SLOW_THEN_BACK),
        (wobble(20) + wobble(3, 9.0), (), [None, "improved", None]),
    ],
)
def test_each_night_after_a_step_has_its_state(
    times_s: list[float], changed: Collection[int], states: list[str | None]
) -> None:
    counts = range(20, len(times_s) + 1)
    findings = [finding_of(times_s[:count], changed) for count in counts]
    assert [finding.state if finding else None for finding in findings] == [None, *states]


def test_a_regression_on_top_of_an_open_one_is_new_and_counts_from_the_first() -> None:
    finding = finding_of(wobble(20) + wobble(6, 11.0) + wobble(2, 12.1))
    assert finding.state == "new"
    assert finding.change_ratio == pytest.approx(0.10, abs=0.02)
    assert finding.anchor == pytest.approx(10.0, rel=0.01)


def test_one_odd_night_is_told_as_one() -> None:
    finding = finding_of([*wobble(20), 12.0, *wobble(1)])
    assert (finding.state, finding.odd_nights) == ("recovered", 1)
    assert (finding.before, finding.now) == (12.0, pytest.approx(10.0, rel=0.01))


@pytest.mark.parametrize(
    ("slow", "changed", "odd"), [(2, (), 2), (2, {20}, None), (8, (), None)], ids=["noise", "change", "long"]
)
def test_an_alarm_that_nothing_explains_and_that_ends_at_once_is_taken_back(
    slow: int, changed: Collection[int], odd: int | None
) -> None:
    times_s = wobble(20) + wobble(slow, 11.5)
    assert finding_of(times_s, changed).state in ("new", "open")
    ends = [finding_of(times_s + wobble(count), changed) for count in (1, 2, 3)]
    told = next(found for found in ends if found and found.state == "recovered")
    assert told.odd_nights == odd


def test_an_alarm_is_taken_back_when_later_nights_scatter_as_much() -> None:
    """The first nights hardly scatter; those after the alarm lie on both sides of them."""
    times_s = [*wobble(12), 10.6, 10.6, 10.5, 9.4, 10.5, 9.5, 10.6, 9.4, 10.4, 9.5, 9.6]
    states = [
        (found.state, found.odd_nights) if found else None for found in map(finding_of, prefixes(times_s))
    ]
    assert ("new", None) in states
    assert states[-4:] == [("recovered", 8), None, None, None]


def prefixes(times_s: list[float]) -> list[list[float]]:
    return [times_s[: count + 1] for count in range(12, len(times_s))]
