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
