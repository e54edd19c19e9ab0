"""Each check of a prediction finds what it is for, and nothing in a prediction as it comes."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.physics.scenes import scene
from tools.model import checks
from tools.model.calibration import shipped_calibration
from tools.model.checks import contradictions, reproduced
from tools.model.predict import Prediction, predict
from tools.physics.inputs import Inputs
from tools.physics.step import StepTerms, step_terms

PLAN = {"tp": 4, "pp": 2, "recompute": None}


def spoilt(**fields: object) -> Callable[[Prediction], Prediction]:
    return lambda prediction: prediction.model_copy(update=fields)


@pytest.mark.parametrize(
    ("spoil", "paths"),
    [
        (spoilt(), []),
        (spoilt(step_time_s=1.0), ["step_time_s", "step_time_s"]),
        (spoilt(peak_memory_gib=12.0), ["peak_memory_gib"]),
        (
            lambda p: p.model_copy(update={"breakdown_s": p.breakdown_s | {"compute": -1.0}}),
            ["step_time_s"] * 2,
        ),
        (spoilt(mfu=1.2), ["mfu"]),
        (spoilt(fits=False, bottleneck="memory"), ["fits"]),
        (spoilt(fit_probability=0.2), ["fits"]),
        (spoilt(fits=False, fit_probability=0.2), ["fits", "bottleneck"]),
    ],
)
def test_what_cannot_be_true_of_a_prediction_is_named(
    spoil: Callable[[Prediction], Prediction], paths: list[str]
) -> None:
    scenario = scene(**PLAN).scenario
    assert [one.path for one in contradictions(scenario, spoil(predict([scenario])[0]))] == paths


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda x, b: replace(b, compute=b.compute + x.scale_out_bandwidth / 1e9),
            "twice the scale_out_bandwidth",
        ),
        (lambda x, b: replace(b, compute=b.compute + 1e3 / x.devices), "on twice the devices"),
    ],
)
def test_a_formula_of_the_wrong_direction_is_found(
    wrong: Callable[[Inputs, StepTerms], StepTerms], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = scene(**PLAN).scenario
    prediction = predict([scenario])[0]
    monkeypatch.setattr(checks, "step_terms", lambda x, c: wrong(x, step_terms(x, c)))
    assert message in "".join(one.message for one in contradictions(scenario, prediction))


def test_a_stored_scenario_gives_its_numbers_again() -> None:
    scenario, calibration = (
        scene(recompute="selective", recompute_modules=["mlp"]).scenario,
        shipped_calibration(),
    )
    assert reproduced([scenario], calibration) == predict([scenario], calibration)
