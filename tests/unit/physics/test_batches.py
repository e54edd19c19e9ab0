"""A single scenario is the array of length one: batches and arrays of plans give the same figures."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tests.unit.physics.scenes import number, raw_scenario, scene
from tools.model.checks import compare
from tools.model.constants import memory_settings, resolve
from tools.model.predict import BLOCK_ROWS, Prediction, evaluate, predict, predict_rows
from tools.physics.encode import encode_plans
from tools.physics.inputs import MIN_ROWS
from tools.scenario import Plan, PlanColumns, Scenario, parse_scenario

DIFFERENT: list[dict[str, Any]] = [
    {"tp": 4, "pp": 2, "vpp": 5, "batch": 128},
    {"model": "deepseek-v3", "ep": 64, "precision": "fp8", "recompute": None},
    {"model": "mixtral-8x7b", "tp": 2, "ep": 8, "zero_stage": 1},
    {"model": "llama-3.1-8b", "device": "tpu-v5p", "framework": "maxtext", "zero_stage": 3},
    {"model": "gpt-3-175b", "device": "a100-sxm-80gb", "tp": 8, "pp": 8, "flash": False},
    {"model": "llama-3.1-8b", "device": "cpu", "devices": 2, "batch": 8, "precision": "fp32"},
    {"model": "gpt-oss-120b", "device": "gb200", "ep": 16, "precision": "mxfp8"},
    {"framework": "torchtitan", "zero_stage": 3, "tp": 8, "recompute": "selective"},
]


def assert_same(one: Prediction, other: Prediction) -> None:
    compared = list(compare("prediction", one.model_dump(), other.model_dump()))
    assert [figure for figure in compared if not figure.holds] == []
    assert len(compared) > 25


def test_a_batch_of_different_scenarios_gives_what_each_gives_alone() -> None:
    scenarios = [parse_scenario(raw_scenario(**words) | {"id": n}) for n, words in enumerate(DIFFERENT)]
    together = predict(scenarios)
    assert [p.id for p in together] == list(range(len(scenarios)))
    for scenario, prediction in zip(scenarios, together, strict=True):
        assert_same(prediction, predict([scenario])[0])


def random_plans(scenario: Scenario, count: int) -> list[Plan]:
    """Degrees at random: arithmetic does not care whether they are legal."""
    rng = np.random.default_rng(7)
    assert scenario.plan is not None
    degrees = {name: 2 ** rng.integers(0, 4, count) for name in ("tp", "pp", "vpp", "cp", "ep", "dp")}
    choices = {
        "dp_shard": 2 ** rng.integers(0, 4, count),
        "zero_stage": rng.integers(0, 4, count),
        "micro_batch_size": rng.integers(1, 5, count),
    }
    named = {name: [int(v) for v in values] for name, values in (degrees | choices).items()}
    recompute = rng.choice(["none", "selective", "full", ""], count)
    schedule = rng.choice(["1f1b", "gpipe", "zero_bubble"], count)
    return [
        scenario.plan.model_copy(
            update={name: values[row] for name, values in named.items()}
            | {"recompute": str(recompute[row]) or None, "schedule": str(schedule[row])}
        )
        for row in range(count)
    ]


@pytest.mark.parametrize("words", DIFFERENT[:4], ids=str)
def test_what_is_computed_once_per_layer_or_sharding_is_what_each_plan_gives(words: dict[str, Any]) -> None:
    """Plans that share a value of the fields concerned are evaluated together if they are many."""
    scenario = parse_scenario(raw_scenario(**words))
    x, keys = encode_plans(scenario, PlanColumns.of(random_plans(scenario, 4 * MIN_ROWS)))
    x = replace(
        x, recompute=np.abs(x.recompute), zero_stage=np.asarray(np.arange(x.size) % 4, dtype=np.float64)
    )
    constants = resolve(keys, {})
    settings = memory_settings(keys.framework, [scenario.training.precision])
    together, few = evaluate(x, constants, settings), MIN_ROWS // 2
    for start in range(0, x.size, few):
        alone = evaluate(x.take(slice(start, start + few)), constants, settings)
        for part in ("breakdown", "memory"):
            for field in fields(getattr(alone, part)):
                whole = getattr(getattr(together, part), field.name)[start : start + few]
                np.testing.assert_allclose(whole, getattr(getattr(alone, part), field.name), rtol=1e-12)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3"])
def test_an_array_of_plans_gives_what_each_plan_gives_alone(model: str) -> None:
    scenario = scene(model).scenario
    plans = random_plans(scenario, 200)
    x, keys = encode_plans(scenario, PlanColumns.of(plans))
    batch = predict_rows(x, keys, [scenario.training.precision])
    alone = predict([scenario.model_copy(update={"plan": plan}) for plan in plans])
    terms = list(zip(*batch.costs.breakdown.parts, strict=True))
    for row, prediction in enumerate(alone):
        assert batch.costs.step_time_s[row] == pytest.approx(prediction.step_time_s, rel=1e-12)
        assert batch.low_s[row] == pytest.approx(prediction.step_time_low_s, rel=1e-12)
        assert batch.costs.fits[row] == prediction.fits
        assert terms[row] == pytest.approx(tuple(prediction.breakdown_s.values()), rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_block_borders_leave_no_trace(extra: int) -> None:
    s = scene()
    rows = 2 * BLOCK_ROWS + extra
    tp = np.array([1.0, 2.0, 4.0, 8.0])[np.arange(rows) % 4]
    costs = evaluate(replace(s.x, tp=tp), s.c, s.settings)
    expected = [float(evaluate(replace(s.x, tp=number(t)), s.c, s.settings).step_time_s[0]) for t in tp[:4]]
    np.testing.assert_allclose(costs.step_time_s, np.array(expected)[np.arange(rows) % 4], rtol=1e-12)
