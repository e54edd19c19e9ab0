import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.nightly.builders import night
from tools.nightly.attribution import Bisection, EnvironmentChange, plan_bisection
from tools.nightly.findings import NEW, NightFinding


def change(name: str, kind: str = "software", offset: int = 0) -> EnvironmentChange:
    described = {"kind": kind, "name": name, "before": "1", "now": "2", "night": 0.0, "offset": offset}
    return EnvironmentChange.model_validate(described)


def finding(change_ratio: float = 0.04, scatter_ratio: float = 0.01) -> NightFinding:
    return NightFinding(
        figure="step_time_s", label="step time", state=NEW, since=0.0, nights=2, before=10.0, now=10.4,
        change_ratio=change_ratio, anchor=10.0, scatter_ratio=scatter_ratio,
    )  # fmt: skip


def follow(plan: Bisection, cause: str | None) -> tuple[str, int]:
    """Where the runs lead to if `cause` made the step slower, and how many they are."""
    runs = {run.name: run for run in plan.runs}
    name, count = "1", 0
    while True:
        run, count = runs[name], count + 1
        is_fast = any(f" {cause} " in text for text in run.revert)
        answer = run.if_fast if is_fast else run.if_slow
        if not answer.startswith("continue with run "):
            return answer, count
        name = answer.removeprefix("continue with run ")


@given(st.integers(1, 8), st.data())
def test_the_runs_lead_to_the_cause_in_as_many_runs_as_stated(count: int, data: st.DataObject) -> None:
    names = [f"package{number}" for number in range(count)]
    plan = plan_bisection([change(name) for name in names], finding(), night(9))
    assert plan is not None
    cause = data.draw(st.sampled_from(names))
    answer, num_runs = follow(plan, cause)
    assert f"the cause is software {cause} 1 to 2" == answer
    assert num_runs <= plan.num_runs
    assert "no recorded change" in follow(plan, None)[0]


def test_a_change_of_the_plan_can_be_requested_in_tune_mode_and_nodes_are_exchanged_together() -> None:
    changes = [change("tp", "plan"), change("n1", "nodes"), change("n2", "nodes")]
    plan = plan_bisection(changes, finding(), night(9))
    assert plan is not None
    assert plan.runs[0].plan == {"tp": 1}
    assert len(plan.runs[0].revert) == 2


def test_a_small_change_among_much_scatter_needs_repeats_which_cost_device_hours() -> None:
    night_of_it = night(9, num_devices=64, num_steps=40)
    sure, unsure = (
        plan_bisection([change("tp")], finding(scatter_ratio=scatter), night_of_it)
        for scatter in (0.01, 0.03)
    )
    assert sure is not None
    assert unsure is not None
    assert (sure.repeats, unsure.repeats) == (2, 10)
    assert unsure.device_hours == pytest.approx(5 * sure.device_hours)
