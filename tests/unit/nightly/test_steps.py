import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.nightly.histories import wobble
from tools.nightly.steps import Rules, detect_steps

FLOOR, LEAST = 0.005, 0.01


def logs(times_s: list[float]) -> list[float]:
    return [float(value) for value in np.log(times_s)]


def test_a_quiet_figure_has_no_steps() -> None:
    assert detect_steps(logs(wobble(60)), FLOOR, LEAST).steps == []


def test_a_large_step_is_noticed_on_its_first_night_and_confirmed_on_the_second() -> None:
    (step,) = detect_steps(logs(wobble(20) + wobble(10, 11.5)), FLOOR, LEAST).steps
    assert (step.night, step.noticed, step.confirmed, step.cleared) == (20, 20, 21, None)
    assert step.after - step.before == pytest.approx(np.log(1.15), abs=0.01)


def test_a_small_step_is_noticed_after_some_nights_and_dated_back() -> None:
    (step,) = detect_steps(logs(wobble(28) + wobble(14, 10.15)), FLOOR, LEAST).steps
    assert step.noticed > 29
    assert abs(step.night - 28) <= 2
    assert step.confirmed == step.noticed


def test_one_odd_night_is_cleared_by_the_next_and_forgotten() -> None:
    times_s = wobble(30)
    times_s[20] *= 1.3
    (step,) = detect_steps(logs(times_s), FLOOR, LEAST).steps
    assert (step.night, step.cleared, step.confirmed) == (20, 21, None)
    assert 20 not in detect_steps(logs(times_s), FLOOR, LEAST).present


def test_an_improvement_is_a_step_down() -> None:
    (step,) = detect_steps(logs(wobble(20) + wobble(10, 9.0)), FLOOR, LEAST).steps
    assert step.after < step.before


def test_a_second_step_shortly_after_the_first_is_noticed() -> None:
    times_s = wobble(20) + wobble(3, 11.0) + wobble(10, 12.5)
    assert [step.night for step in detect_steps(logs(times_s), FLOOR, LEAST).steps] == [20, 23]


def test_nothing_is_told_while_the_level_is_learnt() -> None:
    assert detect_steps(logs([10.0, 10.0, 10.0, 10.0, 20.0]), FLOOR, LEAST).steps == []


def test_a_change_too_small_to_matter_is_not_told_however_sure() -> None:
    values = logs([10.0] * 20 + [10.05] * 20)
    assert detect_steps(values, 1e-6, LEAST).steps == []
    assert detect_steps(values, 1e-6, 0.001).steps != []


def test_the_floor_keeps_a_still_figure_from_alarming() -> None:
    values = logs([10.0] * 20 + [10.15])
    assert detect_steps(values, FLOOR, LEAST).steps == []
    assert detect_steps(values, 0.0005, LEAST).steps != []


@settings(max_examples=50)
@given(st.lists(st.floats(0.1, 1000.0), max_size=50))
def test_every_step_is_in_order_whatever_the_figures(times_s: list[float]) -> None:
    course = detect_steps(logs(times_s) if times_s else [], FLOOR, LEAST)
    for step in course.steps:
        assert step.night <= step.noticed < len(times_s)
        assert abs(step.after - step.before) >= LEAST
    lasting = [step.night for step in course.steps if step.cleared is None]
    assert lasting == sorted(set(lasting))
    assert all(
        later.noticed >= step.noticed for step, later in zip(course.steps, course.steps[1:], strict=False)
    )


@settings(max_examples=40)
@given(st.lists(st.floats(0.5, 2.0), min_size=8, max_size=40), st.integers(1, 8))
def test_what_was_told_does_not_depend_on_later_nights(times_s: list[float], fewer: int) -> None:
    whole, part = (
        detect_steps(logs(times_s), FLOOR, LEAST),
        detect_steps(logs(times_s[:-fewer]), FLOOR, LEAST),
    )
    told = [(step.night, step.noticed) for step in whole.steps if step.noticed < len(times_s) - fewer]
    assert told == [(step.night, step.noticed) for step in part.steps]


def test_rules_can_be_made_stricter() -> None:
    values = logs(wobble(28) + wobble(14, 10.15))
    assert detect_steps(values, FLOOR, LEAST, Rules(false_alarm_chance=1e-12)).steps == []


def test_a_step_where_something_else_changed_needs_less_proof_unless_that_is_every_night() -> None:
    values = logs(wobble(28) + wobble(14, 10.15))
    (plain,) = detect_steps(values, FLOOR, LEAST).steps
    (explained,) = detect_steps(values, FLOOR, LEAST, changed=[28]).steps
    assert (explained.night, explained.noticed < plain.noticed) == (28, True)
    (restless,) = detect_steps(values, FLOOR, LEAST, changed=range(len(values))).steps
    assert restless == plain
