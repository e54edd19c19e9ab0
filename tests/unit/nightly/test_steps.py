from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from tests.unit.nightly.builders import wobble
from tools.nightly.steps import DetectionRules, LevelHistory, detect_steps, recorded_hints

MIN_CHANGE = 0.01
TWICE = wobble(20) + wobble(3, 11.0) + wobble(10, 12.5)
SMALL = wobble(28) + wobble(14, 10.15)
ODD_NIGHT = [time_s * (1.3 if number == 20 else 1.0) for number, time_s in enumerate(wobble(30))]


def detect(
    times_s: list[float],
    floor: float = 0.005,
    min_change: float = MIN_CHANGE,
    rules: DetectionRules | None = None,
    changed: Collection[int] = (),
) -> LevelHistory:
    values = [float(value) for value in np.log(times_s)]
    return detect_steps(values, floor, min_change, rules, recorded_hints(changed))


# In this order: quiet, still learning, noticed at once, an improvement, one odd night, a second step.
@pytest.mark.parametrize(
    ("times_s", "steps"),
    [
        (wobble(60), []),
        ([10.0] * 4 + [20.0], []),
        (wobble(20) + wobble(10, 11.5), [(20, 20, 21, None, 0.14)]),
        (wobble(20) + wobble(10, 9.0), [(20, 20, 21, None, -0.1)]),
        (ODD_NIGHT, [(20, 20, None, 21, 0.26)]),
        (TWICE, [(20, 20, 21, None, 0.1), (23, 23, 24, None, 0.13)]),
    ],
)
def test_a_step_is_noticed_confirmed_or_cleared(times_s: list[float], steps: list[tuple[Any, ...]]) -> None:
    detected = detect(times_s).steps
    dates = [(step.night, step.noticed, step.confirmed, step.cleared) for step in detected]
    assert dates == [step[:4] for step in steps]
    changes = [step.after - step.before for step in detected]
    assert changes == pytest.approx([step[4] for step in steps], abs=0.01)


# Too small to matter however certain, a still figure above its floor, stricter rules.
@pytest.mark.parametrize(
    ("times_s", "strict", "loose"),
    [
        ([10.0] * 20 + [10.05] * 20, {"floor": 1e-6}, {"floor": 1e-6, "min_change": 0.001}),
        ([10.0] * 20 + [10.11], {"floor": 0.05}, {"floor": 0.0005}),
        (SMALL, {"rules": DetectionRules(false_alarm_chance=1e-12)}, {}),
    ],
)
def test_what_is_reported_depends_on_floor_smallest_change_and_rules(
    times_s: list[float], strict: dict[str, Any], loose: dict[str, Any]
) -> None:
    assert detect(times_s, **strict).steps == []
    assert detect(times_s, **loose).steps != []


def test_a_step_with_another_change_needs_less_proof_unless_there_is_a_change_every_night() -> None:
    (plain,), (explained,) = detect(SMALL).steps, detect(SMALL, changed=[28]).steps
    assert (explained.night, explained.noticed < plain.noticed) == (28, True)
    assert detect(SMALL, changed=range(len(SMALL))).steps == [plain]
