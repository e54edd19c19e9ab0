"""What a run leaves behind, and what must be equal for two runs to be compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.record import (
    Measurements,
    Progress,
    RunSettings,
    fingerprint,
    result,
    write_failure,
    write_result,
)
from testbed.trainer import main
from tools.errors import InputError
from tools.scenario import parse_scenario

GIVEN: dict[str, dict[str, Any]] = {
    "model": {
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "vocab_size": 8,
    },
    "cluster": {"device": "cpu", "num_devices": 2},
    "training": {"seq_len": 8, "global_batch_size": 4, "precision": "fp32", "framework": "torch-fsdp2"},
    "plan": {
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "ep": 1,
        "dp": 2,
        "dp_shard": 1,
        "zero_stage": 0,
        "micro_batch_size": 1,
    },
}
RANKS = [
    {"host": host, "device": "chip", "python": "3.11", "torch": "2.13", "backend": "gloo"}
    for host in ("a", "b")
]


def test_the_plan_is_no_part_of_the_fingerprint(tmp_path: Path) -> None:
    other = GIVEN | {"plan": {**GIVEN["plan"], "dp": 1, "tp": 2}}
    settings = RunSettings(tmp_path)
    one, two = (fingerprint(parse_scenario(given), settings, RANKS) for given in (GIVEN, other))
    assert one == two


def test_all_that_a_fair_comparison_needs_is_in_the_fingerprint(tmp_path: Path) -> None:
    scenario = parse_scenario(GIVEN)
    base = fingerprint(scenario, RunSettings(tmp_path), RANKS)
    longer = parse_scenario(GIVEN | {"training": {**GIVEN["training"], "seq_len": 16}})
    wider = parse_scenario(GIVEN | {"model": {**GIVEN["model"], "intermediate_size": 16}})
    newer = [rank | {"torch": "2.14"} for rank in RANKS]
    elsewhere = [rank | {"host": "c"} for rank in RANKS]
    others = [
        fingerprint(longer, RunSettings(tmp_path), RANKS),
        fingerprint(wider, RunSettings(tmp_path), RANKS),
        fingerprint(scenario, RunSettings(tmp_path, seed=1), RANKS),
        fingerprint(scenario, RunSettings(tmp_path, optimizer="sgd"), RANKS),
        fingerprint(scenario, RunSettings(tmp_path), newer),
        fingerprint(scenario, RunSettings(tmp_path), elsewhere),
    ]
    assert all(other != base for other in others)


def test_warm_up_and_profiled_steps_are_no_measured_steps(tmp_path: Path) -> None:
    scenario = parse_scenario(GIVEN)
    settings = RunSettings(tmp_path, steps=2, warmup=1, profile_steps=1)
    measured = Measurements([9.0, 1.0, 2.0, 8.0, 8.0], [5.0, 4.0, 3.0, 2.0, 1.0])
    memory = [{"peak_bytes": 2, "before_model_bytes": 1, "method": "count"}] * 2
    assert scenario.plan is not None
    content = result(scenario, scenario.plan, settings, measured, RANKS, memory)
    assert settings.total_steps == 5
    assert content["warmup_times_s"] == [9.0]
    assert content["step_times_s"] == [1.0, 2.0]
    assert content["losses"] == [5.0, 4.0, 3.0]
    assert content["nodes"] == ["a", "b"]
    write_result(tmp_path, content)
    assert json.loads((tmp_path / "result.json").read_text()) == content
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_every_step_leaves_a_line(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "out")
    progress.add(0, "warmup", 0.5, 4.0)
    progress.add(1, "measure", 0.25, 3.0)
    lines = [json.loads(line) for line in (tmp_path / "out" / "progress.jsonl").read_text().splitlines()]
    assert [(line["step"], line["phase"], line["loss"]) for line in lines] == [
        (0, "warmup", 4.0),
        (1, "measure", 3.0),
    ]


def test_a_failure_keeps_its_kind_and_field(tmp_path: Path) -> None:
    write_failure(tmp_path, InputError("plan.tp", 3, "must divide 4"), 1)
    (file,) = (tmp_path / "failures").iterdir()
    content = json.loads(file.read_text())
    assert (content["kind"], content["field"], content["rank"]) == ("InputError", "plan.tp", 1)


def test_the_first_account_of_a_failure_is_kept(tmp_path: Path) -> None:
    write_failure(tmp_path, FloatingPointError("the loss is nan"), 3)
    write_failure(tmp_path, RuntimeError("later"), None)
    (file,) = (tmp_path / "failures").iterdir()
    assert json.loads(file.read_text())["kind"] == "FloatingPointError"


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("warmup", -1), ("profile_steps", -1), ("seed", -1), ("optimizer", "lion")],
)
def test_settings_out_of_range_name_their_option(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(InputError) as refused:
        RunSettings(tmp_path, **{name: value})  # type: ignore[arg-type]
    assert refused.value.field == f"--{name.replace('_', '-')}"


def test_a_refused_scenario_ends_with_status_two_and_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(GIVEN | {"training": {**GIVEN["training"], "framework": "megatron-core"}}))
    assert main([str(file), "--out", str(tmp_path / "out")]) == 2
    assert "training.framework" in capsys.readouterr().err


def test_an_unreadable_file_ends_with_status_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent.json"), "--out", str(tmp_path / "out")]) == 2
    assert "FILE" in capsys.readouterr().err
