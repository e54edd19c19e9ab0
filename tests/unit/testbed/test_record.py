"""What a run leaves behind, and what must be equal for two runs to be compared."""

import json
from pathlib import Path

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
from tests.unit.testbed.scenarios import Json, scenario
from tools.errors import InputError
from tools.scenario import parse_scenario

RANKS = [
    {"host": host, "device": "chip", "python": "3.11", "torch": "2.13", "backend": "gloo"}
    for host in ("a", "b")
]
DATA_PARALLEL = scenario(2, {"dp": 2})


@pytest.mark.parametrize(
    ("scenario", "settings", "rank", "same"),
    [
        pytest.param(scenario(2, {"tp": 2}), {}, {}, True, id="another plan"),
        pytest.param(scenario(2, {"dp": 2}, seq_len=32), {}, {}, False, id="longer"),
        pytest.param(scenario(2, {"dp": 2}, {"intermediate_size": 16}), {}, {}, False, id="narrower"),
        pytest.param(DATA_PARALLEL, {"seed": 1}, {}, False, id="seed"),
        pytest.param(DATA_PARALLEL, {"optimizer": "sgd"}, {}, False, id="optimizer"),
        pytest.param(DATA_PARALLEL, {}, {"torch": "2.14"}, False, id="torch"),
        pytest.param(DATA_PARALLEL, {}, {"host": "c"}, False, id="host"),
    ],
)
def test_the_fingerprint_has_all_that_a_fair_comparison_needs_but_not_the_plan(
    tmp_path: Path, scenario: Json, settings: Json, rank: dict[str, str], same: bool
) -> None:
    base = fingerprint(parse_scenario(DATA_PARALLEL), RunSettings(tmp_path), RANKS)
    other = fingerprint(
        parse_scenario(scenario), RunSettings(tmp_path, **settings), [each | rank for each in RANKS]
    )
    assert (other == base) == same


def test_warm_up_and_profiled_steps_are_no_measured_steps(tmp_path: Path) -> None:
    parsed = parse_scenario(DATA_PARALLEL)
    settings = RunSettings(tmp_path, steps=2, warmup=1, profile_steps=1)
    measured = Measurements([9.0, 1.0, 2.0, 8.0, 8.0], [5.0, 4.0, 3.0, 2.0, 1.0])
    memory = [{"peak_bytes": 2, "before_model_bytes": 1, "method": "count"}] * 2
    assert parsed.plan is not None
    content = result(parsed, parsed.plan, settings, measured, RANKS, memory)
    assert settings.total_steps == 5
    assert (content["warmup_times_s"], content["step_times_s"]) == ([9.0], [1.0, 2.0])
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
    steps = [(line["step"], line["phase"], line["loss"]) for line in lines]
    assert steps == [(0, "warmup", 4.0), (1, "measure", 3.0)]


def test_the_first_account_of_a_failure_is_kept_with_its_kind_and_field(tmp_path: Path) -> None:
    write_failure(tmp_path, InputError("plan.tp", 3, "must divide 4"), 1)
    write_failure(tmp_path, RuntimeError("later"), None)
    (file,) = (tmp_path / "failures").iterdir()
    content = json.loads(file.read_text())
    assert (content["kind"], content["field"], content["rank"]) == ("InputError", "plan.tp", 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("warmup", -1), ("profile_steps", -1), ("seed", -1), ("optimizer", "lion")],
)
def test_settings_out_of_range_name_their_option(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(InputError) as refused:
        RunSettings(tmp_path, **{name: value})  # type: ignore[arg-type]
    assert refused.value.field == f"--{name.replace('_', '-')}"


@pytest.mark.parametrize(
    ("content", "says"),
    [(json.dumps(scenario(framework="megatron-core")), "training.framework"), (None, "FILE")],
)
def test_a_scenario_that_is_refused_or_absent_ends_with_status_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, says: str
) -> None:
    file = tmp_path / "scenario.json"
    if content:
        file.write_text(content)
    assert main([str(file), "--out", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
