"""Nights from real profiles, from metrics files, and what the job says of itself."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.errors import InputError
from tools.nightly.night import parse_environment, read_environment
from tools.nightly.read import profile_key, read_metrics_night, read_profile_night, slow_ranks, spread

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/traces/gpt-ddp-gloo"

values = st.recursive(
    st.none() | st.text(max_size=5),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(), part, max_size=3),
)


@pytest.fixture
def workload() -> dict[str, Any]:
    described: dict[str, Any] = json.loads((EXAMPLES / "base.json").read_text())
    return described


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES / "round4/base", tmp_path / "2026-11-15"))


def write_metrics(folder: Path, **content: Any) -> Path:  # noqa: ANN401 - any JSON
    path = folder / "metrics.json"
    path.write_text(json.dumps(content))
    return path


def test_a_profile_is_a_night_whose_parts_add_up(workload: dict[str, Any], folder: Path) -> None:
    night, report = read_profile_night(workload, folder)
    assert night.step_time_s == pytest.approx(0.587, abs=0.001)  # as the folder's README has it
    assert sum(night.terms_s.values()) == pytest.approx(night.step_time_s)
    assert {"compute", "dp_comm_exposed", "host_and_other"} <= night.terms_s.keys()
    assert (night.num_devices, night.num_steps, night.source) == (2, 2, f"{folder.parent.name}/2026-11-15")
    assert night.mfu is not None
    assert 0 < night.mfu < 1
    assert report.report.diagnosis


def test_a_profile_of_an_unknown_plan_has_what_every_trace_tells(
    workload: dict[str, Any], folder: Path
) -> None:
    del workload["plan"]
    night, _ = read_profile_night(workload, folder)
    assert list(night.terms_s) == ["compute", "exposed_communication", "memory", "idle"]
    assert sum(night.terms_s.values()) == pytest.approx(night.step_time_s)
    assert night.mfu is None


def test_a_profile_that_is_copied_and_touched_is_the_same_night(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    os.utime(copy / "rank0.summary.json.gz", (1, 1))
    assert profile_key(copy) == profile_key(folder)
    with (copy / "rank0.summary.json.gz").open("ab") as file:
        file.write(b"x")
    assert profile_key(copy) != profile_key(folder)


def test_a_folder_in_which_nothing_can_be_read_says_why(workload: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("{broken")
    with pytest.raises(InputError, match=r"traces: .*rank0\.json"):
        read_profile_night(workload, tmp_path)


def test_traces_without_steps_are_refused(workload: dict[str, Any], tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.0, "dur": 5.0}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [event]}))
    with pytest.raises(InputError, match="marks no steps"):
        read_profile_night(workload, tmp_path)


def test_the_job_says_versions_nodes_data_and_plan(workload: dict[str, Any], folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "versions: {torch: 2.10, image: 5f1c}\nnodes: [n1]\ndata: d7\nplan: {micro_batch_size: 1}\n"
    )
    around = read_profile_night(workload, folder)[0].environment
    assert around.versions == {"torch": "2.10", "image": "5f1c"}
    assert (around.nodes, around.data) == (["n1"], "d7")
    assert around.plan["micro_batch_size"] == 1
    assert around.plan["dp"] == 2


def test_json_is_a_job_file_too(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps({"plan": {"tp": 4, "sequence_parallel": True}}))
    assert read_environment(tmp_path).plan == {"tp": 4, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("- a list", "job.yaml"),
        ("{", "job.yaml"),
        ("version: {torch: 2}", "job.yaml version"),
        ("versions: [torch]", "job.yaml versions"),
        ("versions: {torch: {a: b}}", "job.yaml versions.torch"),
        ("nodes: n1", "job.yaml nodes"),
        ("!!python/object/apply:os.system [exit]", "job.yaml"),
    ],
)
def test_a_job_file_that_cannot_be_used_names_the_part(tmp_path: Path, text: str, field: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(InputError) as refused:
        read_environment(tmp_path)
    assert refused.value.field == field


@settings(max_examples=40)
@given(values | st.dictionaries(st.sampled_from(["versions", "nodes", "data", "plan"]), values, max_size=3))
def test_any_job_content_is_taken_or_refused(content: object) -> None:
    with suppress(InputError):
        assert parse_environment(content).versions is not None


def test_metrics_of_one_object_and_of_lines_are_the_same_night(
    workload: dict[str, Any], tmp_path: Path
) -> None:
    times_s = [0.9, 0.5, 0.51, 0.49, 0.5]
    whole = read_metrics_night(workload, write_metrics(tmp_path, step_times_s=times_s, data="d1"))
    lines = tmp_path / "log.jsonl"
    steps = [json.dumps({"step_time_s": one, "data": "d1", "loss": 2}) for one in times_s]
    lines.write_text("\n".join(steps))
    logged = read_metrics_night(workload, lines)
    assert whole.step_time_s == logged.step_time_s == pytest.approx(0.5)  # the first one was warm-up
    assert (whole.num_steps, logged.num_steps) == (4, 4)
    assert whole.environment == logged.environment


def test_metrics_may_tell_memory_parts_and_ranks(workload: dict[str, Any], tmp_path: Path) -> None:
    path = write_metrics(
        tmp_path,
        step_times_s=[1.0, 1.0, 1.0],
        warmup=1,
        mfu=0.4,
        peak_memory_bytes=[5e9, 6e9],
        breakdown_s={"compute": 0.8, "idle": 0.2},
        rank_times_s=[0.5, 0.5, 0.5, 0.8],
        nodes=["n1", "n2"],
    )
    night = read_metrics_night(workload, path)
    assert (night.num_steps, night.mfu, night.peak_memory_bytes) == (2, 0.4, 6e9)
    assert night.terms_s == {"compute": 0.8, "idle": 0.2}
    assert night.rank_spread_ratio == pytest.approx(0.3)
    assert [(one.rank, one.node) for one in night.slow_ranks] == [(3, "n2")]


def test_the_reference_trainers_result_is_a_metrics_file(workload: dict[str, Any], tmp_path: Path) -> None:
    path = write_metrics(
        tmp_path,
        step_times_s=[0.5, 0.5],
        nodes=["vm"],
        plan={"micro_batch_size": 1},
        peak_memory_bytes=[4, 5],
        fingerprint={"versions": ["gloo torch 2.13.0"], "data": "tokens", "nodes": {"vm": 2}},
    )
    around = read_metrics_night(workload, path).environment
    assert around.versions == {"stack": "gloo torch 2.13.0"}
    assert (around.data, around.nodes, around.plan["micro_batch_size"]) == ("tokens", ["vm"], 1)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "metrics"),
        ("[1, 2]", "metrics"),
        ('{"loss": 1}', "metrics"),
        ('{"step_time_s": 1}\n{broken', "metrics.json line 2"),
        ('{"step_times_s": []}', "step_times_s"),
        ('{"step_times_s": [1, "2"]}', "step_times_s"),
        ('{"step_times_s": [NaN]}', "step_times_s"),
        ('{"step_times_s": [-1]}', "step_times_s"),
        (f'{{"step_times_s": [1{"0" * 400}]}}', "step_times_s"),
        ('{"step_times_s": [1e308, 1e308]}', "step_times_s"),
        ('{"step_times_s": [1e-320]}', "step_times_s"),
        ('{"step_times_s": [1], "mfu": 0}', "mfu"),
        ('{"step_times_s": [1], "mfu": 38.5}', "mfu"),
        ('{"step_times_s": [1], "breakdown_s": {"compute": "much"}}', "breakdown_s"),
        ('{"step_times_s": [1], "plan": {"tp": 0}}', "plan.tp"),
    ],
)
def test_metrics_that_cannot_be_used_name_the_field(
    workload: dict[str, Any], tmp_path: Path, text: str, field: str
) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_metrics_night(workload, path)
    assert refused.value.field == field


def test_a_field_of_the_plan_that_is_null_is_not_stated(workload: dict[str, Any], tmp_path: Path) -> None:
    path = write_metrics(tmp_path, step_times_s=[1.0], plan={"vpp": None, "recompute": None})
    assert read_metrics_night(workload, path).environment.plan["vpp"] == 1


def test_another_training_contract_is_another_history(workload: dict[str, Any], tmp_path: Path) -> None:
    path = write_metrics(tmp_path, step_times_s=[1.0])
    before = read_metrics_night(workload, path).contract
    workload["model"]["name"] = "the same by another name"
    assert read_metrics_night(workload, path).contract == before
    workload["training"]["seq_len"] *= 2
    assert read_metrics_night(workload, path).contract != before


def test_ranks_alike_have_no_spread_and_a_single_one_has_none() -> None:
    assert spread([1.0, 1.0], 2.0) == 0.0
    assert spread([1.0], 2.0) is None
    assert slow_ranks({0: 1.0, 1: 1.0}, [], 8) == []
