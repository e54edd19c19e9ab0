import numpy as np
import pytest

from research.nights import Noise, Task, histories, quiet_history, recall, review_alarms, without_terms
from tools.nightly.night import Night
from tools.nightly.review import review
from tools.nightly.sensitivity import NightSensitivity


def stated(history: list[Night]) -> NightSensitivity:
    found = review(history).sensitivity
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("noise", "num_nights", "limited_by", "words"),
    [
        (
            Noise(0.001, num_steps=2, step_scatter_ratio=0.02),
            28,
            "steps",
            "profile 20 steps per night instead",
        ),
        (Noise(0.01, num_steps=40), 7, "nights", "more quiet nights"),
        (Noise(0.03, num_steps=40), 40, "scatter", "dedicated nodes"),
    ],
)
def test_what_limits_it_and_what_to_do_are_named(
    noise: Noise, num_nights: int, limited_by: str, words: str
) -> None:
    found = stated(quiet_history(np.random.default_rng(2), num_nights, noise))
    assert (found.limited_by, words in found.advice) == (limited_by, True)


def test_a_change_of_the_stated_size_is_found_about_as_often_as_stated() -> None:
    """Of a step time whose scatter is known well; four of five are promised."""
    random = np.random.default_rng(5)
    sizes = [stated(without_terms(quiet_history(random, 28, Noise(0.01)))).change_ratio for _ in range(5)]
    task = Task(float(np.mean(sizes)), Noise(0.01), 28, 4, is_recorded=False, has_terms=False)
    assert 0.6 <= recall(list(histories(random, task, 40)), review_alarms) <= 0.98
