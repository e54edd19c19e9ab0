"""What single runs and crashes say of plans."""

import pytest

from tests.unit.model.test_update import PLANS, scenario, seconds, timed
from tools.model.calibration import Calibration, shipped_calibration
from tools.model.observations import with_seen
from tools.model.predict import Prediction, predict
from tools.model.runs import Run
from tools.recommend.optimize import propose, workload_of
from tools.scenario import Plan, Scenario


def crash_of(crashed: Scenario) -> Run:
    return Run(scenario=crashed, crashed=True, id="crash")


def one(of: Scenario, *runs: Run) -> Prediction:
    return predict([of], with_seen(shipped_calibration(), runs))[0]


def by_memory() -> list[Scenario]:
    """Plans that fit, by the memory that they need."""
    fitting = [(p.peak_memory_gib, s) for s, p in zip(PLANS, predict(PLANS), strict=True) if p.fits]
    return [s for _, s in sorted(fitting, key=lambda pair: pair[0])]


def test_a_crash_says_no_to_its_own_plan_and_less_to_those_that_need_less() -> None:
    smallest, *_, middle, largest = by_memory()
    before = {id(s): one(s).fit_probability for s in (smallest, middle, largest)}
    assert one(middle, crash_of(middle)).fit_probability < 0.05
    assert not one(middle, crash_of(middle)).fits
    lost = [before[id(s)] - one(s, crash_of(middle)).fit_probability for s in (smallest, largest)]
    assert lost[0] < lost[1]


def test_a_plan_that_ran_fits_whatever_its_predicted_peak() -> None:
    tight = max(PLANS, key=lambda s: predict([s])[0].peak_memory_gib)
    ran = one(tight, *timed([tight], seconds([tight]) * 1.1))
    assert ran.fits
    assert ran.fit_probability > 0.95
    assert ran.step_time_s == pytest.approx(1.1 * seconds([tight])[0])
    assert ran.step_time_high_s / ran.step_time_low_s < 1.2


def test_another_job_and_another_device_are_not_the_plan_that_was_run() -> None:
    runs = timed(PLANS[:1], seconds(PLANS[:1]) * 1.5)
    longer = PLANS[0].model_copy(
        update={"training": PLANS[0].training.model_copy(update={"global_batch_size": 512})}
    )
    elsewhere = scenario("a100-sxm-80gb", tp=2)
    for other in (longer, elsewhere):
        assert one(other, *runs).step_time_s == seconds([other])[0]


def test_what_a_session_keeps_of_runs_says_the_same_when_read_again() -> None:
    runs = [*timed(PLANS[:2], seconds(PLANS[:2]) * 1.2), crash_of(PLANS[2])]
    known = with_seen(shipped_calibration(), runs)
    assert predict(PLANS, Calibration.from_data(known.to_data())) == predict(PLANS, known)


def test_the_first_proposal_never_crashed_and_each_crash_moves_it_on() -> None:
    job, runs, firsts = scenario().model_copy(update={"plan": None}), list[Run](), list[Plan | None]()
    for _ in range(4):
        workload = workload_of(job, with_seen(shipped_calibration(), runs))
        plan = propose(workload).proposals[0].plan
        assert plan not in firsts
        firsts.append(plan)
        runs.append(crash_of(job.model_copy(update={"plan": plan})))


def test_today_s_plan_stays_first_until_it_crashes() -> None:
    job = scenario().model_copy(update={"plan": None})
    today = propose(workload_of(job)).proposals[0].plan
    job = job.model_copy(update={"plan": today})
    assert propose(workload_of(job)).proposals[0].plan == today
    crashed = workload_of(job, with_seen(shipped_calibration(), [crash_of(job)]))
    proposals = propose(crashed).proposals
    assert today not in [each.plan for each in proposals]
    assert proposals[0].rationale.startswith("Today's plan crashed; this one fits.")
