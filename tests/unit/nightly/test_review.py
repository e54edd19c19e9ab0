import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.nightly.builders import environment, night, nights, wobble
from tools.errors import DataError
from tools.nightly.night import parse_night
from tools.nightly.review import gained_device_hours, lost_device_hours, review

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


def test_mfu_and_terms_are_not_reported_beside_the_step_time() -> None:
    history = [night(n, s, mfu=4 / s, terms_s={"compute": s}) for n, s in enumerate(SLOWER_S)]
    assert [finding.figure for finding in review(history).findings] == ["step_time_s"]


def test_memory_that_grows_is_reported_although_no_time_is_lost() -> None:
    history = [night(n, s, peak_memory_bytes=6e10 if n < 20 else 6.6e10) for n, s in enumerate(wobble(23))]
    result = review(history)
    assert [(finding.figure, finding.state) for finding in result.findings] == [("peak_memory_bytes", "open")]
    assert (result.is_regression, result.lost_device_hours_per_day) == (False, 0.0)


def test_a_figure_that_the_last_night_lacks_is_not_reported() -> None:
    history = [night(n, s, mfu=0.4 if n < 20 else 0.3) for n, s in enumerate(wobble(23))]
    assert [finding.figure for finding in review(history).findings] == ["mfu"]
    assert review([*history, night(23, 10.0)]).findings == []


def test_the_cause_is_looked_for_on_the_night_of_the_step() -> None:
    old, new = environment({"torch": "2.12"}), environment({"torch": "2.13"})
    history = [night(n, s, environment=old if n < 20 else new) for n, s in enumerate(SLOWER_S)]
    attribution = review(history).attribution
    assert attribution is not None
    assert [(change.name, change.offset) for change in attribution.changes] == [("torch", 0)]


def test_levels_have_one_value_per_night_and_change_at_the_step() -> None:
    levels = review(nights(SLOWER_S)).levels["step_time_s"]
    assert levels == [levels[0]] * 20 + [levels[20]] * 4
    assert levels[20] > 1.1 * levels[0]


@settings(max_examples=40)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40))
def test_any_history_can_be_reviewed(times_s: list[float]) -> None:
    result = review(nights(times_s))
    assert review(nights(times_s)[::-1]) == result, "in any order"
    assert len(result.levels["step_time_s"]) == len(times_s)
    assert result.lost_device_hours_per_day >= 0


def test_a_history_without_nights_cannot_be_reviewed() -> None:
    with pytest.raises(ValueError, match="at least one"):
        review([])


@given(st.integers(1, 10**5), st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0, 24))
def test_lost_device_hours_are_between_none_and_all(
    devices: int, fast: float, slow: float, hours: float
) -> None:
    lost = lost_device_hours(devices, fast, slow, hours)
    assert 0 <= lost <= devices * hours
    assert (lost > 0) == (fast < slow and hours > 0 and 1 - fast / slow > 0)


def test_a_plan_twice_as_fast_frees_half_of_the_devices() -> None:
    assert (gained_device_hours(64, 2.0), gained_device_hours(64, 0.9)) == (64 * 12, 0)


def test_a_stored_night_is_read_back_and_a_broken_one_says_what_to_do() -> None:
    whole = night(
        3, 10.5, terms_s={"compute": 10.5}, environment=environment({"torch": "2.13"}, nodes=["n1"])
    )
    assert parse_night(whole.model_dump(mode="json")) == whole
    with pytest.raises(DataError, match="remove it"):
        parse_night({"key": "x"})
