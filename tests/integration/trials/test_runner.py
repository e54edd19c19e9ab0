"""One trial as a real job: measured, repeated, failed, cancelled, let go and found again."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.launch.waiting import until
from tests.integration.trials.conftest import QUICK, TORCHRUN, Patient, order, scenario, trials_in
from tools.errors import InputError
from tools.launch.folder import JobFolder
from tools.scenario import parse_scenario
from tools.trials.gate import compare
from tools.trials.order import TrialReference, TrialResult
from tools.trials.run import LaunchedTrials

MakeTrials = Callable[..., LaunchedTrials]
WRITE = (
    "import json, pathlib, sys; out = pathlib.Path(sys.argv[1]); "
    "write = lambda times: (out / 'result.json').write_text(json.dumps("
    "{'step_times_s': times, 'losses': [5.0, 4.0], 'fingerprint': {'precision': 'fp32'}})); "
)


def failure_of(outcome: TrialResult) -> str | None:
    assert outcome.status == "failed"
    return outcome.failure.kind if outcome.failure else None


def beside(step_time_s: float) -> TrialReference:
    """The best plan so far, measured under as much noise."""
    plan = order(described=scenario(dp_shard=1, zero_stage=0)).plan
    return TrialReference("t0", plan, step_time_s, spread=0.4)


@pytest.mark.slow
def test_the_reference_trainer_is_measured_once_and_compares_with_another_plan(tmp_path: Path) -> None:
    trials = trials_in(tmp_path, TORCHRUN)
    first = trials.run(order("fsdp"), Patient())
    result = tmp_path / "jobs" / "fsdp" / "out" / "result.json"
    written = result.stat().st_mtime_ns
    assert trials.run(order("fsdp"), Patient()) == first
    assert result.stat().st_mtime_ns == written
    assert (first.status, first.steps) == ("measured", 6)
    assert first.device_hours > 0
    assert first.interval_s is not None
    assert first.step_time_s is not None
    assert first.interval_s[0] <= first.step_time_s <= first.interval_s[1]
    ddp = trials.run(order("ddp", described=scenario(dp_shard=1, zero_stage=0)), Patient())
    assert compare(first, ddp).refusals == []


def test_a_hung_trial_is_ended_at_its_limit_or_where_its_device_hours_end(python: MakeTrials) -> None:
    trials = python("import time; time.sleep(600)", wall_s=2)
    assert failure_of(trials.run(order(), Patient())) == "hang"
    outcome = python("import time; time.sleep(600)").run(order("t2", device_hours=4 / 3600), Patient())
    assert failure_of(outcome) == "hang"
    assert 4 / 3600 <= outcome.device_hours < 20 / 3600


def test_noisy_steps_are_run_again_under_keys_of_their_own(python: MakeTrials, tmp_path: Path) -> None:
    trials = python(WRITE + "write([1.0, 2.0, 1.0, 2.0, 1.5, 1.2])", max_runs=3)
    outcome = trials.run(order(), Patient())
    assert outcome.runs == ["t1", "t1-r2", "t1-r3"]
    assert outcome.steps == 18
    slower = trials.run(order("t2", against=beside(0.1)), Patient())
    assert (slower.runs, slower.paired) == (["t2"], None), "the difference is wider than the noise"


def test_under_noise_the_best_plan_runs_in_turn_and_load_cancels(python: MakeTrials, tmp_path: Path) -> None:
    """Each job is half as slow again as the one before it; the plan beside takes 1.5 times as long."""
    load = "n = len(list(out.parent.parent.glob('*/out'))); own = 1.5 if '-b' in out.parent.name else 1.0; "
    code = WRITE + load + "write([1.5**n * own * s for s in (0.9, 1.0, 1.0, 1.0, 1.0, 1.4)])"
    outcome = python(code, max_runs=2).run(order("t1", against=beside(2.0)), Patient())
    jobs = sorted((tmp_path / "jobs").glob("t1*"), key=lambda job: job.stat().st_ctime)
    assert sorted(outcome.runs) == sorted(job.name for job in jobs)
    assert outcome.runs[:2] == ["t1", "t1-r2"]
    assert "t1-b1" in outcome.runs
    assert outcome.paired is not None
    assert outcome.paired.ratio == pytest.approx(1 / 1.5, rel=0.01)
    assert outcome.step_time_s == pytest.approx(2.0 / 1.5, rel=0.01), "on the clock of the plan beside it"
    assert outcome.device_hours > 0


def test_a_node_that_went_down_is_not_the_plans_fault(python: MakeTrials) -> None:
    code = (
        WRITE + "sys.exit('srun: error: Node failure on n1') if '-r2' not in str(out) else write([1.0] * 6)"
    )
    outcome = python(code, max_runs=2).run(order(), Patient())
    assert outcome.status == "measured"
    assert outcome.runs == ["t1", "t1-r2"]


def test_a_trial_that_was_let_go_runs_on_and_is_found_by_its_key(tmp_path: Path) -> None:
    class LetGoError(Exception):
        """A worker has lost its lease."""

    class Leaving(Patient):
        def must_cancel(self) -> bool:
            raise LetGoError

    trials = trials_in(tmp_path, [*QUICK, "1.5"])
    with pytest.raises(LetGoError):
        trials.run(order(), Leaving())
    starts = tmp_path / "jobs" / "t1" / "out" / "starts.txt"
    until(starts.exists)
    outcome = trials_in(tmp_path, [*QUICK, "1.5"]).run(order(), Patient())
    assert outcome.status == "measured"
    assert len(starts.read_text().splitlines()) == 1


def test_two_sessions_do_not_measure_each_other(tmp_path: Path) -> None:
    trials = trials_in(tmp_path, [*QUICK, "0.4"])
    with ThreadPoolExecutor() as pool:
        outcomes = list(pool.map(lambda key: trials.run(order(key), Patient()), ("a", "b", "c")))
    assert [outcome.status for outcome in outcomes] == ["measured"] * 3
    ends = [JobFolder.of(tmp_path / "jobs", key).find_final() for key in ("a", "b", "c")]
    times = sorted((end.started_unix_s or 0.0, end.ended_unix_s or 0.0) for end in ends if end)
    assert len(times) == 3
    assert all(first[1] <= second[0] for first, second in pairwise(times))


def test_only_registered_templates_run_with_as_many_ranks_as_they_allow(tmp_path: Path) -> None:
    trials = trials_in(tmp_path, [*QUICK, "0"])
    with pytest.raises(InputError, match="template"):
        trials.run(order(template="rm -rf"), Patient())
    with pytest.raises(InputError, match="template"):
        trials.check(parse_scenario(scenario()), "sh")
    cluster = {"device": "cpu", "num_devices": 64}
    with pytest.raises(InputError, match="num_devices"):
        trials.check(parse_scenario({**scenario(), "cluster": cluster, "plan": None}, need_plan=False))
    assert not (tmp_path / "jobs").exists()
