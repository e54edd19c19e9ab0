import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.nightly.histories import around, night, nights, wobble
from tools.errors import DataError
from tools.nightly.night import parse_night
from tools.nightly.review import gained_device_hours, lost_device_hours, review


def test_a_regression_is_priced_in_device_hours_a_day() -> None:
    times_s = wobble(20) + wobble(3, 12.5)
    found = review([night(n, s, num_devices=64) for n, s in enumerate(times_s)], hours_per_day=20)
    assert found.headline is not None
    assert found.lost_device_hours_per_day == pytest.approx(64 * 20 * 0.2, rel=0.02)


def test_only_the_night_on_which_it_is_new_is_an_alarm() -> None:
    times_s = wobble(20) + wobble(4, 11.5)
    alarms = [review(nights(times_s[:count])).is_regression for count in range(20, 25)]
    assert alarms == [False, False, True, False, False]


def test_nights_of_another_contract_are_left_out() -> None:
    short = [night(n, s, contract="seq 4096") for n, s in enumerate(wobble(20))]
    long = [night(20 + n, 2 * s, contract="seq 8192") for n, s in enumerate(wobble(3))]
    found = review(short + long)
    assert (len(found.nights), found.num_others, found.findings, found.is_learning) == (3, 20, [], True)


def test_the_order_of_the_nights_does_not_matter() -> None:
    history = nights(wobble(20) + wobble(3, 11.5))
    assert review(history[::-1]) == review(history)


def test_mfu_and_parts_of_the_step_are_not_told_beside_the_step_time() -> None:
    slow = wobble(20) + wobble(3, 11.5)
    history = [night(n, s, mfu=4 / s, terms_s={"compute": s}) for n, s in enumerate(slow)]
    assert [one.figure for one in review(history).findings] == ["step_time_s"]


def test_memory_that_grows_is_told_although_no_time_is_lost() -> None:
    history = [night(n, s, peak_memory_bytes=6e10) for n, s in enumerate(wobble(20))]
    history += [night(20 + n, s, peak_memory_bytes=6.6e10) for n, s in enumerate(wobble(3))]
    found = review(history)
    assert [(one.figure, one.state) for one in found.findings] == [("peak_memory_bytes", "open")]
    assert (found.is_regression, found.lost_device_hours_per_day) == (False, 0.0)


def test_a_figure_that_the_last_night_lacks_is_not_told() -> None:
    history = [night(n, s, mfu=0.4 if n < 20 else 0.3) for n, s in enumerate(wobble(23))]
    assert [one.figure for one in review(history).findings] == ["mfu"]
    assert review([*history, night(23, 10.0)]).findings == []


def test_the_cause_is_looked_for_where_the_step_began() -> None:
    times_s = wobble(20) + wobble(2, 11.5)
    old, new = around({"torch": "2.12"}), around({"torch": "2.13"})
    history = [night(n, s, environment=old if n < 20 else new) for n, s in enumerate(times_s)]
    found = review(history)
    assert found.attribution is not None
    assert [(one.name, one.offset) for one in found.attribution.changes] == [("torch", 0)]


def test_levels_have_one_value_a_night_and_change_where_the_step_began() -> None:
    levels = review(nights(wobble(20) + wobble(5, 11.5))).levels["step_time_s"]
    assert len(levels) == 25
    assert levels[:20] == [levels[0]] * 20
    assert levels[20:] == [levels[20]] * 5
    assert levels[20] > 1.1 * levels[0]


@settings(max_examples=40)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40))
def test_any_history_can_be_reviewed(times_s: list[float]) -> None:
    found = review(nights(times_s))
    assert len(found.levels["step_time_s"]) == len(times_s)
    assert found.lost_device_hours_per_day >= 0


def test_no_nights_cannot_be_reviewed() -> None:
    with pytest.raises(ValueError, match="at least one"):
        review([])


@given(st.integers(1, 10**5), st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0, 24))
def test_device_hours_lost_are_between_none_and_all(
    devices: int, fast: float, slow: float, hours: float
) -> None:
    lost = lost_device_hours(devices, fast, slow, hours)
    assert 0 <= lost <= devices * hours
    assert (lost > 0) == (fast < slow and hours > 0 and 1 - fast / slow > 0)


def test_a_plan_twice_as_fast_frees_half_of_the_devices() -> None:
    assert gained_device_hours(64, 2.0) == 64 * 12
    assert gained_device_hours(64, 0.9) == 0


def test_a_night_survives_being_kept() -> None:
    whole = night(3, 10.5, terms_s={"compute": 10.5}, environment=around({"torch": "2.13"}, nodes=["n1"]))
    assert parse_night(whole.model_dump(mode="json")) == whole


def test_a_kept_night_that_is_broken_says_what_to_do() -> None:
    with pytest.raises(DataError, match="remove it"):
        parse_night({"key": "x"})
