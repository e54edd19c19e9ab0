"""Nights from real profiles, from metrics files, and what the job states about itself."""

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
from tools.nightly.night import Night, parse_environment, read_environment
from tools.nightly.read import profile_key, read_metrics_night, read_profile_night, slow_ranks, spread

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/traces/gpt-ddp-gloo"
KERNEL = (
    '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 5}]}'
)

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


def read_metrics(workload: dict[str, Any], folder: Path, **content: Any) -> Night:  # noqa: ANN401 - any JSON
    path = folder / "metrics.json"
    path.write_text(json.dumps({"step_times_s": [1.0], **content}))
    return read_metrics_night(workload, path)


def test_a_profile_is_a_night_whose_terms_add_up(workload: dict[str, Any], folder: Path) -> None:
    night, analysis = read_profile_night(workload, folder)
    assert night.step_time_s == pytest.approx(0.587, abs=0.001)  # as the folder's README has it
    assert sum(night.terms_s.values()) == pytest.approx(night.step_time_s)
    assert {"compute", "dp_comm_exposed", "host_and_other"} <= night.terms_s.keys()
    assert (night.num_devices, night.num_steps, night.source) == (2, 2, f"{folder.parent.name}/2026-11-15")
    assert 0 < (night.mfu or 0) < 1
    assert analysis.report.diagnosis


def test_a_profile_of_an_unknown_plan_has_what_every_trace_shows(
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


@pytest.mark.parametrize(
    ("trace", "message"), [("{broken", r"traces: .*rank0\.json"), (KERNEL, "marks no steps")]
)
def test_traces_without_readable_steps_are_refused_with_the_reason(
    workload: dict[str, Any], tmp_path: Path, trace: str, message: str
) -> None:
    (tmp_path / "rank0.json").write_text(trace)
    with pytest.raises(InputError, match=message):
        read_profile_night(workload, tmp_path)


def test_the_job_states_versions_nodes_data_and_plan_in_yaml_or_json(
    workload: dict[str, Any], folder: Path
) -> None:
    (folder / "job.yaml").write_text(
        "versions: {torch: 2.10, image: 5f1c}\nnodes: [n1]\ndata: d7\nplan: {micro_batch_size: 1}\n"
    )
    state = read_profile_night(workload, folder)[0].environment
    assert (state.versions, state.nodes, state.data) == ({"torch": "2.10", "image": "5f1c"}, ["n1"], "d7")
    assert (state.plan["micro_batch_size"], state.plan["dp"]) == (1, 2)
    (folder / "job.yaml").write_text(json.dumps({"plan": {"tp": 4, "sequence_parallel": True}}))
    assert read_environment(folder).plan == {"tp": 4, "sequence_parallel": True}


BAD_JOBS = {
    "job.yaml": ["- a list", "{", "!!python/object/apply:os.system [exit]"],
    "job.yaml version": ["version: {torch: 2}"],
    "job.yaml versions": ["versions: [torch]"],
    "job.yaml versions.torch": ["versions: {torch: {a: b}}"],
    "job.yaml nodes": ["nodes: n1"],
}
BAD_TIMES = ["[]", '[1, "2"]', "[NaN]", "[-1]", f"[1{'0' * 400}]", "[1e308, 1e308]", "[1e-320]"]
BAD_METRICS = {
    "metrics": ["", "[1, 2]", '{"loss": 1}'],
    "metrics.json line 2": ['{"step_time_s": 1}\n{broken'],
    "step_times_s": [f'{{"step_times_s": {times}}}' for times in BAD_TIMES],
    "mfu": ['{"step_times_s": [1], "mfu": 0}', '{"step_times_s": [1], "mfu": 38.5}'],
    "breakdown_s": ['{"step_times_s": [1], "breakdown_s": {"compute": "much"}}'],
    "plan.tp": ['{"step_times_s": [1], "plan": {"tp": 0}}'],
}


@pytest.mark.parametrize(("field", "text"), [(field, text) for field in BAD_JOBS for text in BAD_JOBS[field]])
def test_a_job_file_that_cannot_be_used_names_the_field(tmp_path: Path, field: str, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(InputError) as refused:
        read_environment(tmp_path)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "text"), [(field, text) for field in BAD_METRICS for text in BAD_METRICS[field]]
)
def test_metrics_that_cannot_be_used_name_the_field(
    workload: dict[str, Any], tmp_path: Path, field: str, text: str
) -> None:
    (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(InputError) as refused:
        read_metrics_night(workload, tmp_path / "metrics.json")
    assert refused.value.field == field


@settings(max_examples=40)
@given(values | st.dictionaries(st.sampled_from(["versions", "nodes", "data", "plan"]), values, max_size=3))
def test_any_job_content_is_accepted_or_refused(content: object) -> None:
    with suppress(InputError):
        assert parse_environment(content).versions is not None


def test_metrics_of_one_object_and_of_lines_are_the_same_night(
    workload: dict[str, Any], tmp_path: Path
) -> None:
    times_s = [0.9, 0.5, 0.51, 0.49, 0.5]
    whole = read_metrics(workload, tmp_path, step_times_s=times_s, data="d1")
    lines = tmp_path / "log.jsonl"
    lines.write_text("\n".join(json.dumps({"step_time_s": s, "data": "d1", "loss": 2}) for s in times_s))
    logged = read_metrics_night(workload, lines)
    assert whole.step_time_s == logged.step_time_s == pytest.approx(0.5)  # the first step was warm-up
    assert whole.num_steps == logged.num_steps == 4
    assert whole.environment == logged.environment


def test_metrics_may_state_memory_terms_and_ranks(workload: dict[str, Any], tmp_path: Path) -> None:
    optional = {"warmup": 1, "mfu": 0.4, "peak_memory_bytes": [5e9, 6e9], "nodes": ["n1", "n2"]}
    terms = {"compute": 0.8, "idle": 0.2}
    ranks_s = [0.5, 0.5, 0.5, 0.8]
    night = read_metrics(
        workload, tmp_path, step_times_s=[1.0] * 3, breakdown_s=terms, rank_times_s=ranks_s, **optional
    )
    assert (night.num_steps, night.mfu, night.peak_memory_bytes, night.terms_s) == (2, 0.4, 6e9, terms)
    assert night.rank_spread_ratio == pytest.approx(0.3)
    assert [(slow.rank, slow.node) for slow in night.slow_ranks] == [(3, "n2")]


def test_the_reference_trainers_result_is_a_metrics_file(workload: dict[str, Any], tmp_path: Path) -> None:
    fingerprint = {"versions": ["gloo torch 2.13.0"], "data": "tokens", "nodes": {"vm": 2}}
    plan = {"micro_batch_size": 1, "vpp": None, "recompute": None}  # null is not stated
    result = {"nodes": ["vm"], "plan": plan, "peak_memory_bytes": [4, 5]}
    state = read_metrics(workload, tmp_path, fingerprint=fingerprint, **result).environment
    assert (state.versions, state.data, state.nodes) == ({"stack": "gloo torch 2.13.0"}, "tokens", ["vm"])
    assert (state.plan["micro_batch_size"], state.plan["vpp"]) == (1, 1)


def test_another_training_contract_is_another_history(workload: dict[str, Any], tmp_path: Path) -> None:
    before = read_metrics(workload, tmp_path).contract
    workload["model"]["name"] = "the same by another name"
    assert read_metrics(workload, tmp_path).contract == before
    workload["training"]["seq_len"] *= 2
    assert read_metrics(workload, tmp_path).contract != before


def test_equal_ranks_have_no_spread_and_for_a_single_rank_it_is_unknown() -> None:
    assert spread([1.0, 1.0], 2.0) == 0.0
    assert spread([1.0], 2.0) is None
    assert slow_ranks({0: 1.0, 1: 1.0}, [], 8) == []
