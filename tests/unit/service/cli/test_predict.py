"""`asap predict`: JSON lines in order, errors in their place, one line for each mistake, exit statuses."""

import copy
import json
from typing import Any

import pytest

from tests.unit.service.cli.commands import EXAMPLE, Asap, Result

Raw = dict[str, Any]
KEYS = {
    "id", "run", "fits", "fit_probability", "step_time_s", "step_time_low_s", "step_time_high_s",
    "parameters", "active_parameters", "tokens_per_s_per_device", "model_tflops_per_device", "mfu",
    "peak_memory_gib", "bottleneck",
    "breakdown_s", "memory_gib",
}  # fmt: skip
BASED = {"basis", "assumed"}
"""Of a single scenario."""
BREAKDOWN = {
    "compute", "recompute", "memory_bound_ops", "tp_comm_exposed", "cp_comm_exposed", "ep_comm_exposed",
    "dp_comm_exposed", "pp_comm_exposed", "pipeline_bubble", "optimizer", "host_and_other",
}  # fmt: skip
MEMORY = {"parameters", "gradients", "optimizer", "activations", "buffers", "runtime"}


@pytest.fixture
def example() -> Raw:
    """The example that comes with the repo, under the plan of the contract."""
    loaded: Raw = json.loads(EXAMPLE.read_text())
    plan = {"tp": 4, "pp": 2, "vpp": 5, "cp": 1, "ep": 1, "dp": 8, "dp_shard": 8, "zero_stage": 1}
    return loaded | {"plan": plan | {"micro_batch_size": 1, "sequence_parallel": True, "recompute": "none"}}


@pytest.fixture
def run(asap: Asap) -> Asap:
    """Predicts texts or objects, one per line of a file."""

    def call(*given: object, options: tuple[str, ...] = ("--json",)) -> Result:
        lines = [item if isinstance(item, str) else json.dumps(item) for item in given]
        return asap("predict", *options, ("\n".join(lines) + "\n").encode())

    return call


def changed(example: Raw, path: str, value: object) -> Raw:
    copied = copy.deepcopy(example)
    part, name = path.split(".", 1)
    copied[part][name] = value
    return copied


def test_a_prediction_has_the_contract_s_keys_and_adds_up(run: Asap, example: Raw) -> None:
    result = run(example)
    assert (result.status, result.err) == (0, "")
    (prediction,) = result.lines
    assert set(prediction) == KEYS | BASED
    assert set(prediction["breakdown_s"]) == BREAKDOWN
    assert set(prediction["memory_gib"]) == MEMORY
    assert sum(prediction["breakdown_s"].values()) == pytest.approx(prediction["step_time_s"])
    assert sum(prediction["memory_gib"].values()) == pytest.approx(prediction["peak_memory_gib"])
    assert prediction["id"] == example.get("id")


def test_a_bad_line_is_an_error_in_its_place_and_the_rest_is_predicted(run: Asap, example: Raw) -> None:
    bad = changed(example, "plan.tp", 3) | {"id": "bad"}
    result = run(example | {"id": 1}, bad, "not JSON", example | {"id": 4})
    assert result.status == 0
    first, second, third, fourth = result.lines
    assert (first["id"], fourth["id"]) == (1, 4)
    assert first["step_time_s"] == fourth["step_time_s"]
    assert second["id"] == "bad"
    assert second["field"].startswith("plan.")
    assert second["field"] in second["error"]
    assert "error" in third
    assert [line.split(":")[1].strip() for line in result.err.splitlines()] == ["line 2", "line 3"]


@pytest.mark.parametrize("count", [1, 2])
def test_names_are_printed_as_they_are_and_no_terminal_obeys_them(
    run: Asap, example: Raw, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    example["model"]["name"] = example["id"] = "[/x] [red] \x1b[31m [bold"
    result = run(*[example] * count, options=())
    assert result.status == 0
    assert "[/x] [red] \\x1b[31m [bold" in result.out
    assert "\x1b" not in result.out
