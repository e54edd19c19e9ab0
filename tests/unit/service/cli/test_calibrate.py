"""`asap calibrate`: what it writes is what `asap predict` and `asap optimize` take."""

import json
from pathlib import Path

import pytest

from service.cli.calibrate import read_calibration
from service.cli.main import main
from tests.unit.service.cli.commands import Asap
from tools.model.predict import predict
from tools.model.runs import parse_run, to_file
from tools.scenario import parse_scenario

REPO = Path(__file__).resolve().parents[4]
SCENARIO = json.loads((REPO / "examples" / "llama-3.1-70b-64xh100.json").read_text())


def rows(*factors: float) -> str:
    predicted_s = predict([parse_scenario(SCENARIO)])[0].step_time_s
    lines = [{"scenario": SCENARIO, "measured": {"step_time_s": predicted_s * f}} for f in factors]
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_predict_takes_what_calibrate_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs.jsonl").write_text(rows(1.2, 1.21, 1.19))
    (tmp_path / "job.json").write_text(json.dumps(SCENARIO))
    out = str(tmp_path / "cluster.json")
    assert main(["calibrate", str(tmp_path / "runs.jsonl"), "--out", out, "--json"]) == 0
    learned = json.loads(capsys.readouterr().out)
    assert learned["runs"] == 3
    assert learned["error_after"] < 0.05 < learned["error_before"]
    assert main(["predict", "--json", str(tmp_path / "job.json"), "--calibration", out]) == 0
    prediction = json.loads(capsys.readouterr().out)
    before = predict([parse_scenario(SCENARIO)])[0]
    assert prediction["step_time_s"] == pytest.approx(before.step_time_s * 1.2, rel=0.03)
    width = prediction["step_time_high_s"] / prediction["step_time_low_s"]
    assert width < before.step_time_high_s / before.step_time_low_s


def test_a_run_of_which_only_the_peak_is_unused_joins_the_trials_of_a_session(tmp_path: Path) -> None:
    row = json.loads(rows(1.2))
    row["measured"]["peak_memory_gib"] = 3.0
    file = tmp_path / "cluster.json"
    file.write_text(to_file("", [parse_run(row)]))
    calibration, runs = read_calibration(str(file))
    assert [run.measured.step_time_s for run in runs] == [row["measured"]["step_time_s"]]
    assert calibration is not None
    assert calibration.cluster is not None
    assert calibration.cluster.runs == 1


def test_runs_are_reported_to_the_server_and_taken_back(at_server: Asap) -> None:
    named = {**SCENARIO, "cluster": {**SCENARIO["cluster"], "name": "alpha"}}
    row = {"scenario": named, "measured": {"step_time_s": predict([parse_scenario(named)])[0].step_time_s}}
    made = at_server("calibrate", row, "--report", "--json").answer
    assert (made["name"], made["version"], made["runs"]) == ("alpha", 1, 1)
    assert at_server("calibrate", "--undo", "alpha").out.startswith("alpha: ")
    again = at_server("calibrate", "--undo", "alpha")
    assert again.status != 0
    assert "alpha" in again.err
