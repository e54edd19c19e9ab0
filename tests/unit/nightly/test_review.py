import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.nightly.builders import environment, night, nights, wobble
from tools.errors import DataError
from tools.nightly.night import parse_night
from tools.nightly.review import review

SLOWER_S = wobble(20) + wobble(4, 11.5)


def test_a_regression_is_priced_in_device_hours_per_day() -> None:
    result = review(nights(wobble(20) + wobble(3, 12.5), num_devices=64), hours_per_day=20)
    assert result.headline is not None
    assert result.lost_device_hours_per_day == pytest.approx(64 * 20 * 0.2, rel=0.02)


def test_only_the_night_on_which_it_is_new_is_an_alarm() -> None:
    alarms = [review(nights(SLOWER_S[:count])).is_regression for count in range(20, 25)]
    assert alarms == [False, False, True, False, False]


def test_nights_of_another_contract_are_left_out() -> None:
    short = nights(wobble(20), contract="seq 4096")
    long = [night(20 + n, 2 * s, contract="seq 8192") for n, s in enumerate(wobble(3))]
    result = review(short + long)
    assert (len(result.nights), result.num_others, result.findings, result.is_learning) == (3, 20, [], True)


def test_the_cause_is_looked_for_on_the_night_of_the_step() -> None:
    old, new = environment({"torch": "2.12"}), environment({"torch": "2.13"})
    history = [night(n, s, environment=old if n < 20 else new) for n, s in enumerate(SLOWER_S)]
    attribution = review(history).attribution
    assert attribution is not None
    assert [(change.name, change.offset) for change in attribution.changes] == [("torch", 0)]


@settings(max_examples=40)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40))
def test_any_history_can_be_reviewed(times_s: list[float]) -> None:
    result = review(nights(times_s))
    assert review(nights(times_s)[::-1]) == result, "in any order"
    assert len(result.levels["step_time_s"]) == len(times_s)
    assert result.lost_device_hours_per_day >= 0


def test_a_stored_night_is_read_back_and_a_broken_one_says_what_to_do() -> None:
    whole = night(
        3, 10.5, terms_s={"compute": 10.5}, environment=environment({"torch": "2.13"}, nodes=["n1"])
    )
    assert parse_night(whole.model_dump(mode="json")) == whole
    with pytest.raises(DataError, match="remove it"):
        parse_night({"key": "x"})


def test_what_grows_from_night_to_night_is_told_as_a_drift_and_is_new_once() -> None:
    level = wobble(20)
    drift = [time_s * (1 + 0.005 * night) for night, time_s in enumerate(wobble(15), 1)]
    every = nights([*level, *drift])
    seen = [review(every[:count]).headline for count in range(len(level) + 1, len(every) + 1)]
    last = seen[-1]
    assert last is not None
    assert last.drift_ratio == pytest.approx(0.005, rel=0.15)
    assert last.change_ratio == pytest.approx(0.075, rel=0.15)
    assert sum(found is not None and found.state == "new" for found in seen) == 1
    at_once = review(nights([*level, *wobble(10, 10.5)])).headline
    assert at_once is not None
    assert at_once.drift_ratio is None


def test_a_step_on_the_night_of_a_recorded_change_is_no_drift() -> None:
    """As in examples/nightly_history.py: 4% from the 31st night on, seen on the fourth."""
    draw = random.Random(8)
    before, after = environment({"nccl": "2.28.3"}), environment({"nccl": "2.28.9"})
    drifts = 0
    for _ in range(80):
        times = [draw.gauss(10.0, 0.1) + 0.4 * (number >= 30) for number in range(34)]
        every = [
            night(number, time_s, environment=after if number >= 30 else before)
            for number, time_s in enumerate(times)
        ]
        found = review(every).headline
        drifts += found is not None and found.drift_ratio is not None
    assert drifts <= 1, "three of them without the recorded change"
