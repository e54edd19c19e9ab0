"""What a prediction stands on, and what it says when it does not know."""

import pytest

from tests.unit.model.test_update import PLANS, seconds, timed
from tests.unit.physics.scenes import raw_scenario
from tools.model.basis import MEASUREMENTS, WIDE, Basis, basis_of, explained
from tools.model.calibration import shipped_calibration
from tools.model.observations import with_seen
from tools.model.published import published_runs
from tools.model.residual import shipped_residual
from tools.model.runs import Run
from tools.model.update import calibrate
from tools.physics.encode import crossed_fabric
from tools.scenario import parse_scenario


def of(**words: object) -> Basis:
    return basis_of(parse_scenario(raw_scenario(**words)))


def test_a_published_run_stands_on_itself() -> None:
    """A run that most of its kind agree with, so that its own error is much of the correction."""
    run = next(run for run in published_runs() if run.id == "llmfoundry-001" or run.source == "llmfoundry")
    basis = basis_of(run.scenario)
    assert basis.differences == ()
    assert "the same settings" in basis.nearest_summary
    assert basis.never_measured == ""


def test_a_stack_that_nobody_measured_is_named_with_what_would_make_it_surer() -> None:
    basis = of(model="mixtral-8x7b", ep=8, framework="deepspeed", zero_stage=2, device="b200")
    assert basis.never_measured == "deepspeed on blackwell"
    assert basis.half_width >= WIDE
    text = basis.uncertainty_summary
    assert f"no run of deepspeed on blackwell is known: ±{basis.half_width:.0%}" in text
    assert MEASUREMENTS[basis.measurement] in text
    assert basis.half_width_after < basis.half_width


def test_a_fabric_that_a_framework_was_never_measured_on_is_named() -> None:
    def on(fabric: str, **words: object) -> Basis:
        return of(framework="torchtitan", zero_stage=3, devices=64, cluster={"fabric": fabric}, **words)

    assert on("efa").never_measured == "torchtitan on EFA"
    assert on("ib").never_measured == ""
    assert of(framework="torchtitan", zero_stage=3, devices=8).never_measured == ""  # no node is left


def test_the_file_of_residuals_knows_the_fabric_of_each_run() -> None:
    runs = {run.id: run.scenario.cluster for run in published_runs()}
    residual = shipped_residual()
    assert [crossed_fabric(runs[id]) for id in residual.ids] == list(residual.fabrics)


def test_a_cluster_s_runs_are_told_apart_from_published_ones_and_the_run_of_the_plan_is_cited() -> None:
    learned = calibrate(timed(PLANS[:3], 3.0 * seconds(PLANS[:3])), name="prod").calibration
    basis, before = basis_of(PLANS[0], learned), basis_of(PLANS[0])
    assert basis.correction == before.correction
    assert basis.own_correction == pytest.approx(2.0)
    assert [run.ref for run in basis.runs] == ["run:run 0"]
    assert basis.calibrated_by.startswith("3 runs")
    assert [finding.kind for finding in basis.findings] == ["far off"]
    crashed = with_seen(shipped_calibration(), [Run(scenario=PLANS[0], crashed=True, id="boom")])
    assert basis_of(PLANS[0], crashed).own_summary == "crashed here (crash:boom)"


def test_what_a_recipe_sets_is_assumed_with_its_source_and_what_is_stated_is_not() -> None:
    found = {each.name: each for each in explained(PLANS[0]).assumed}
    assert all(each.source for each in found.values())
    stated = PLANS[0].training.model_copy(update={"cuda_graph": found["cuda_graph"].value})
    again = explained(PLANS[0].model_copy(update={"training": stated})).assumed
    assert found.keys() - {each.name for each in again} == {"cuda_graph"}
