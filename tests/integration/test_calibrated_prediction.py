"""How much better a cluster is predicted when a trace of it calibrates the cost model: real gloo jobs."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import mean

import pytest

from tools.model.predict import predict
from tools.scenario import Scenario, parse_scenario
from tools.trace.compare import PredictionCheck, check_prediction
from tools.trace.folder import profile_folder

REPO = Path(__file__).resolve().parents[2]
EXAMPLE = REPO / "examples" / "traces" / "gpt-ddp-gloo"
TRACES = EXAMPLE / "round1" / "base"
JOBS = ("base", "batch", "wide")
SLOW_ROUNDS, QUIET_ROUND = (1, 2, 3), 4
"""Other work slowed the cluster down in the first three rounds (see the README beside the traces)."""


def scenario_of(job: str) -> Scenario:
    return parse_scenario(json.loads((EXAMPLE / f"{job}.json").read_text()))


@cache
def check_of(number: int, job: str) -> PredictionCheck:
    return check_prediction(profile_folder(EXAMPLE / f"round{number}" / job).ranks, scenario_of(job))


def errors(number: int, calibrated_on: str, job: str) -> tuple[float, float]:
    """Of the step time as shipped and as calibrated, both against the measured one."""
    step = check_of(number, job).comparison.step_time
    (prediction,) = predict([scenario_of(job)], check_of(number, calibrated_on).calibration.apply())
    calibrated_s = prediction.step_time_s
    return abs(step.predicted_error_ratio or 0.0), abs(calibrated_s / step.measured_s - 1)


def mean_errors_of_another_job(number: int) -> tuple[float, float]:
    pairs = [errors(number, job, other) for job in JOBS for other in JOBS if job != other]
    shipped, calibrated = (mean(column) for column in zip(*pairs, strict=True))
    print(f"round {number}, another job: {shipped:.1%} as shipped, {calibrated:.1%} calibrated")
    return shipped, calibrated


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("number", SLOW_ROUNDS)
def test_on_a_slow_cluster_a_jobs_own_trace_brings_its_error_down(number: int, job: str) -> None:
    shipped, calibrated = errors(number, job, job)
    print(f"round {number}, {job}: {shipped:.1%} as shipped, {calibrated:.1%} calibrated")
    assert calibrated < min(shipped, 0.15)


def test_another_jobs_trace_more_than_halves_the_error_and_does_little_harm_on_a_quiet_cluster() -> None:
    rounds = {number: mean_errors_of_another_job(number) for number in (*SLOW_ROUNDS, QUIET_ROUND)}
    assert all(rounds[number][1] < 0.75 * rounds[number][0] for number in SLOW_ROUNDS)
    assert rounds[QUIET_ROUND][1] < rounds[QUIET_ROUND][0] + 0.05
    shipped, calibrated = (mean(column) for column in zip(*rounds.values(), strict=True))
    assert calibrated < 0.5 * shipped


def _asap(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli.main", *words]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120, check=False)


def test_a_diagnosis_calibrates_later_predictions(tmp_path: Path) -> None:
    file, page = tmp_path / "cluster.json", tmp_path / "page.html"
    words = ["--scenario", str(EXAMPLE / "base.json"), "--calibration-out", str(file), "--html", str(page)]
    result = _asap("diagnose", str(TRACES), *words, "--json")
    assert result.returncode == 0, result.stderr
    comparison = json.loads(result.stdout)["comparison"]
    assert "Measured and predicted" in page.read_text()
    plain = json.loads(_asap("predict", "--json", str(EXAMPLE / "base.json")).stdout)
    better = json.loads(
        _asap("predict", "--json", "--calibration", str(file), str(EXAMPLE / "base.json")).stdout
    )
    assert plain["step_time_s"] == pytest.approx(comparison["step_time"]["predicted_s"])
    assert better["step_time_s"] == pytest.approx(comparison["step_time"]["calibrated_s"])
