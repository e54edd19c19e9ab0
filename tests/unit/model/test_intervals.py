"""80% intervals: as wide as what is uncertain in a prediction."""

from dataclasses import replace

import numpy as np
import pytest

from research.errors import DEGREES_OF_FREEDOM, LeftOut, learn_quantiles, learn_spread
from tests.unit.model.test_update import seconds, timed
from tests.unit.physics.scenes import raw_scenario, scene
from tools.model.calibration import shipped_calibration
from tools.model.intervals import UNCERTAINTIES, Exposures, interval
from tools.model.predict import predict
from tools.model.residual import Correction, shipped_residual
from tools.model.update import calibrate
from tools.physics.encode import encode
from tools.physics.inputs import Array, RowKeys
from tools.scenario import parse_scenario

ROWS = 4000


def half_width(**words: object) -> float:
    p = predict([parse_scenario(raw_scenario(**words))])[0]
    return float(np.sqrt(p.step_time_high_s / p.step_time_low_s)) - 1.0


def left_out(values: Array, sources: list[str] | None = None, **exposed: Array) -> LeftOut:
    rows = len(values)
    parts = {name: exposed.get(name, np.zeros(rows)) for name in UNCERTAINTIES}
    parts["base"] = np.ones(rows)
    return LeftOut(values, Exposures(**parts), parts["experts"] > 0, sources or ["one"] * rows)


def test_a_spread_that_grows_with_the_host_s_share_is_recovered() -> None:
    rng = np.random.default_rng(1)
    host = rng.uniform(0.0, 0.8, ROWS)
    spread = np.sqrt(0.05**2 + (0.4 * host) ** 2)
    learned = learn_spread(left_out(spread * rng.standard_t(DEGREES_OF_FREEDOM, ROWS), host=host))
    assert learned["host"] == pytest.approx(0.4, rel=0.15)
    assert learned["base"] == pytest.approx(0.05, rel=0.25)


def test_every_source_weighs_the_same_however_many_rows_it_has() -> None:
    """Ninety rows of one exact source and ten sources of one rough row each."""
    rng = np.random.default_rng(5)
    values = np.concatenate([rng.normal(0.0, 0.01, 90), np.linspace(-0.3, 0.3, 10)])
    many = left_out(values, ["large"] * 90 + [f"small-{n}" for n in range(10)])
    one = left_out(values)
    assert learn_spread(many)["base"] > 3 * learn_spread(one)["base"]
    low, high = learn_quantiles(many, dict.fromkeys(UNCERTAINTIES, 1.0))["dense"]
    assert high - low > 0.4


def test_the_farther_from_anything_measured_the_wider() -> None:
    model, s = shipped_calibration().intervals, scene()
    terms = s.costs().breakdown
    widths = []
    for distance in (0.0, 1.0, 4.0, 16.0):
        correction = Correction(np.zeros(1), np.array([distance]))
        low, high = interval(model, s.x, s.keys, terms, correction)
        widths.append(float(np.log(high / low)[0]))
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_an_eager_mixture_on_a_new_stack_is_far_less_certain_than_a_known_dense_plan() -> None:
    known = half_width(tp=4, pp=4, recompute="selective")
    eager = half_width(
        model="mixtral-8x7b",
        tp=1,
        ep=8,
        seq_len=4096,
        framework="deepspeed",
        zero_stage=2,
        micro_batch_size=1,
    )
    assert known <= 0.18
    assert eager >= max(0.25, 1.7 * known)


def test_a_framework_that_no_run_has_is_far_less_certain_until_its_own_runs_are_known() -> None:
    """Of torchtitan there are runs, of nanotron a sweep, of DeepSpeed none on Hopper, of Accelerate none."""
    fsdp = {"model": "llama-3.1-8b", "zero_stage": 3, "recompute": "full"}
    known, unknown = (half_width(**fsdp, framework=name) for name in ("torchtitan", "accelerate"))
    assert known < 0.2 < 0.3 < unknown < 0.45
    x, keys = encode(
        [
            parse_scenario(raw_scenario(framework=name, zero_stage=1 if name == "nanotron" else 3))
            for name in ("torchtitan", "nanotron", "deepspeed", "accelerate")
        ]
    )
    assert shipped_residual().correct(x, keys).novelty.tolist() == [0.0, 0.5, 0.5, 1.0]
    s = parse_scenario(raw_scenario(**fsdp, framework="accelerate"))
    own = calibrate(timed([s], 1.1 * seconds([s])), name="prod")
    p = predict([s], own.calibration)[0]
    assert np.sqrt(p.step_time_high_s / p.step_time_low_s) - 1.0 < 0.2


def test_a_stack_whose_step_was_measured_is_compared_with_it() -> None:
    model, s = shipped_calibration().intervals, scene()
    measured = replace(model, measured={f"{s.keys.key('stack', 0)}|dense": 0.0})
    terms, far = s.costs().breakdown, Correction(np.zeros(1), np.array([90.0]))
    low, high = interval(measured, s.x, s.keys, terms, far)
    assert np.log(high / low)[0] <= 2 * model.pair_error["dense"] + 1e-9
    other = RowKeys(s.keys.generation, s.keys.device, ["other"])
    low, high = interval(measured, s.x, other, terms, far)
    assert np.log(high / low)[0] > 2 * model.pair_error["dense"]
