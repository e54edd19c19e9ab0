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
from tools.nightly.read import profile_key, read_metrics_night, read_profile_night

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


def test_a_profile_that_is_copied_and_touched_is_the_same_night(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    os.utime(copy / "rank0.summary.json.gz", (1, 1))
    assert profile_key(copy) == profile_key(folder)
    with (copy / "rank0.summary.json.gz").open("ab") as file:
        file.write(b"x")
    assert profile_key(copy) != profile_key(folder)


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
    assert refused.value.path == field


@pytest.mark.parametrize(
    ("field", "text"), [(field, text) for field in BAD_METRICS for text in BAD_METRICS[field]]
)
def test_metrics_that_cannot_be_used_name_the_field(
    workload: dict[str, Any], tmp_path: Path, field: str, text: str
) -> None:
    (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(InputError) as refused:
        read_metrics_night(workload, tmp_path / "metrics.json")
    assert refused.value.path == field


@settings(max_examples=40)
@given(values | st.dictionaries(st.sampled_from(["versions", "nodes", "data", "plan"]), values, max_size=3))
def test_any_job_content_is_accepted_or_refused(content: object) -> None:
    with suppress(InputError):
        assert parse_environment(content).versions is not None


def test_the_reference_trainers_result_is_a_metrics_file(workload: dict[str, Any], tmp_path: Path) -> None:
    fingerprint = {"versions": ["gloo torch 2.13.0"], "data": "tokens", "nodes": {"vm": 2}}
    plan = {"micro_batch_size": 1, "vpp": None, "recompute": None}  # null is not stated
    result = {"nodes": ["vm"], "plan": plan, "peak_memory_bytes": [4, 5]}
    state = read_metrics(workload, tmp_path, fingerprint=fingerprint, **result).environment
    assert (state.versions, state.data, state.nodes) == ({"stack": "gloo torch 2.13.0"}, "tokens", ["vm"])
    assert (state.plan["micro_batch_size"], state.plan["vpp"]) == (1, 1)


def test_a_training_log_is_a_night(workload: dict[str, Any], tmp_path: Path) -> None:
    """Steady steps alone; the peak that the program prints counts too."""
    line = "completed step: {n}, seconds: {s}, TFLOP/s/device: 412.1, loss: 10.8"
    times_s = [40.0, 9.9, *[9.7] * 18]
    log = tmp_path / "train.log"
    log.write_text(
        "\n".join(line.format(n=n, s=s) for n, s in enumerate(times_s)) + "\nmax reserved: 65536.0"
    )
    night = read_metrics_night(workload, log)
    assert (night.num_steps, night.peak_memory_bytes) == (16, 2**36)
    assert night.step_time_s == pytest.approx(9.7)
