"""The simulated step agrees with the predicted one: makespan and peak memory, over all schedules."""

from itertools import pairwise
from typing import Any

import pytest

from tests.unit.physics.scenes import LLAMA_8B, scene
from tools.model.predict import predict
from tools.model.schedule import simulate
from tools.physics.memory import GIB
from tools.scenario import SCHEDULES, Scenario

AGREEMENT = 0.03
"""Of the makespan with the predicted step, as the page that shows it promises."""
SMALL_EXPERTS = LLAMA_8B | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7168}


def scenario(pp: int, vpp: int, schedule: str, **words: object) -> Scenario:
    usual = {"model": "llama-3.1-8b", "framework": "other", "devices": 32, "tp": 2}
    return scene(pp=pp, vpp=vpp, schedule=schedule, **(usual | words)).scenario


PIPELINES = [
    (schedule, pp, vpp)
    for schedule in SCHEDULES
    for pp in (2, 4, 8)
    for vpp in (1, 2, 4)
    if (vpp > 1 or schedule not in ("interleaved", "zero_bubble")) and (vpp == 1 or schedule != "1f1b")
]
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {"model": SMALL_EXPERTS, "ep": 2},
    "uneven": {"model": LLAMA_8B | {"num_hidden_layers": 34}},
    "few micro-batches": {"batch": 32},
    "recomputed": {"recompute": "full"},
    "sharded": {"zero_stage": 3},
}


@pytest.mark.parametrize("kind", KINDS)
def test_makespan_and_memory_agree_with_the_prediction_over_all_schedules(kind: str) -> None:
    for schedule, pp, vpp in PIPELINES:
        workload = scenario(pp, vpp, schedule, **KINDS[kind])
        simulated, predicted = simulate(workload), predict([workload])[0]
        place = f"{schedule} pp {pp} vpp {vpp}"
        assert simulated.makespan_s == pytest.approx(predicted.step_time_s, rel=AGREEMENT), place
        peak_gib = max(simulated.peak_bytes) / GIB
        assert peak_gib == pytest.approx(predicted.peak_memory_gib, rel=AGREEMENT), place


def test_a_stage_does_one_thing_at_a_time_and_nothing_before_its_input() -> None:
    step = simulate(scenario(4, 2, "zero_bubble"))
    ends: dict[tuple[int, str, int, int], float] = {}
    for stage in range(step.stages):
        own = sorted((event for event in step.events if event.stage == stage), key=lambda e: e.start_s)
        for before, after in pairwise(own):
            assert after.start_s >= before.end_s - 1e-9
        ends |= {(stage, event.kind, event.micro_batch, event.chunk): event.end_s for event in own}
    forwards = [event for event in step.events if event.kind == "forward"]
    assert len(forwards) == 4 * 2 * step.micro_batches
    for event in forwards:
        if event.stage:
            sent = ends[event.stage - 1, "forward", event.micro_batch, event.chunk]
            assert event.start_s >= sent


def test_a_plan_without_stages_is_one_row_without_bubble() -> None:
    step = simulate(scenario(1, 1, "1f1b"))
    assert step.stages == 1
    assert step.busy_ratio[0] == pytest.approx(1.0)
