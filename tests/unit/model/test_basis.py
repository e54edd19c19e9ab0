"""What a prediction stands on, and what it says when it does not know."""

from tests.unit.physics.scenes import raw_scenario
from tools.model.basis import MEASUREMENTS, WIDE, Basis, basis_of
from tools.model.published import published_runs
from tools.model.residual import shipped_residual
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
