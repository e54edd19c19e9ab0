import numpy as np
import pytest

from research.nights import Noise, quiet_history
from tests.unit.nightly.builders import night, nights, wobble
from tools.nightly.night import Night
from tools.nightly.steps import DetectionRules, recorded_hints, step_time_evidence, term_hints


def with_terms(times_s: list[float], dp_s: list[float]) -> list[Night]:
    """What is not data-parallel communication is compute, and both slow down with the night."""
    return [
        night(number, step_s + extra_s, terms_s={"compute": 0.9 * step_s, "dp": 0.1 * step_s + extra_s})
        for number, (step_s, extra_s) in enumerate(zip(times_s, dp_s, strict=True))
    ]


def test_a_term_that_grows_points_at_its_night_from_the_second_night_on_and_the_whole_step_does_not() -> None:
    grown = with_terms(wobble(12), [0.0] * 10 + [0.3] * 2)
    assert {(hint.night, hint.known) for hint in term_hints(grown, [], DetectionRules())} == {(10, 11)}
    assert term_hints(with_terms(wobble(10) + wobble(4, 10.3), [0.0] * 14), [], DetectionRules()) == []


def test_a_step_that_no_term_and_no_recorded_change_shows_needs_more_proof() -> None:
    strict, hints = step_time_evidence(with_terms(wobble(12), [0.0] * 12), {8}, DetectionRules())
    loose, plain = step_time_evidence(nights(wobble(12)), {8}, DetectionRules())
    assert strict.false_alarm_chance < loose.false_alarm_chance
    odds = [hint.odds * rules.false_alarm_chance for rules, (hint,) in ((strict, hints), (loose, plain))]
    assert odds[0] == pytest.approx(odds[1])


def test_terms_without_a_rest_or_missing_on_some_nights_are_no_error() -> None:
    single = [night(number, 10.0, terms_s={"compute": 10.0}) for number in range(8)]
    partly = quiet_history(np.random.default_rng(1), 8, Noise(0.01))
    partly[3] = partly[3].model_copy(update={"terms_s": {}})
    assert term_hints(single, [], DetectionRules()) == []
    assert term_hints(partly, recorded_hints({3, 5}), DetectionRules()) == []
