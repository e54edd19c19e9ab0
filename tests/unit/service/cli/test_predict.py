"""`asap predict`: JSON lines in order, errors in their place, one line for each mistake, exit statuses."""

import copy
import json
import math
from typing import Any

import pytest

from tests.unit.service.cli.commands import EXAMPLE, Asap, Result

Raw = dict[str, Any]
KEYS = {
    "id", "fits", "fit_probability", "step_time_s", "step_time_low_s", "step_time_high_s",
    "parameters", "active_parameters", "tokens_per_s_per_device", "model_tflops_per_device", "mfu",
    "peak_memory_gib", "bottleneck",
    "breakdown_s", "memory_gib",
}  # fmt: skip
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
    assert set(prediction) == KEYS
    assert set(prediction["breakdown_s"]) == BREAKDOWN
    assert set(prediction["memory_gib"]) == MEMORY
    assert sum(prediction["breakdown_s"].values()) == pytest.approx(prediction["step_time_s"])
    assert sum(prediction["memory_gib"].values()) == pytest.approx(prediction["peak_memory_gib"])
    assert prediction["id"] == example.get("id")


def test_the_table_shows_what_was_stated_and_the_parameters(run: Asap, example: Raw) -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 28672}
    example["cluster"]["name"] = "gamma-west"
    example["training"] |= {"software_date": "2026-06", "cuda_graph": True}
    dense = " ".join(run(example, options=()).out.split())
    assert "in gamma-west" in dense
    assert "stated software_date 2026-06, cuda_graph on parameters" in dense
    assert "parameters 70.6 B step time" in dense
    example["model"] |= experts
    assert "B active per token" in run(example, options=()).out


def test_lines_come_back_in_order_with_their_ids(run: Asap, example: Raw) -> None:
    ids = ["b", 7, "a", None, 1.5]
    result = run(*(example | {"id": given} for given in ids))
    assert result.status == 0
    assert [line["id"] for line in result.lines] == ids
    assert len({line["step_time_s"] for line in result.lines}) == 1


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


def test_nothing_but_bad_lines_is_wrong_input(run: Asap, example: Raw) -> None:
    bad = changed(example, "plan.tp", 3)
    result = run(bad, bad)
    assert result.status == 2
    assert [set(line) for line in result.lines] == [{"id", "error", "field"}] * 2
    assert result.err.count("\n") == 1


BAD: list[tuple[str, object, str, str]] = [
    # where, value, the field that is named, what the line must say; every rule is in tests/unit/scenario
    ("model.hidden_sizes", 8192, "model.hidden_sizes", "hidden_size"),
    ("cluster.nodes", 8, "cluster.nodes", "unknown field"),
    ("plan.tp", 8, "plan.dp", "must equal num_devices (64)"),
    ("plan.vpp", 7, "plan.vpp", "80 layers"),
    ("plan.dp", 10**30, "plan.dp", "1000000"),
    ("plan.tp", "4", "plan.tp", "'4'"),
    ("plan.tp", None, "plan.tp", "integer"),
    ("plan.recompute", "some", "plan.recompute", "selective"),
    ("training.precision", "nvfp4", "training.precision", "h100-sxm-80gb has"),
    ("cluster.device", "h100-smx-80gb", "cluster.device", "h100-sxm-80gb"),
    ("cluster.overrides", {"memory_gib": -1}, "cluster.overrides.memory_gib", "-1"),
]


@pytest.mark.parametrize(("path", "value", "field", "says"), BAD)
def test_each_kind_of_bad_input_is_one_line_that_names_the_field(
    run: Asap, example: Raw, path: str, value: object, field: str, says: str
) -> None:
    result = run(changed(example, path, value))
    assert result.status == 2
    assert result.err.startswith(f"asap: error: {field}: got ")
    assert result.err.count("\n") == 1
    assert says in result.err
    (line,) = result.lines
    assert line["field"] == field


@pytest.mark.parametrize("word", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(run: Asap, example: Raw, word: str) -> None:
    text = json.dumps(changed(example, "plan.tp", 123456789)).replace("123456789", word)
    result = run(text, example)
    assert result.status == 0
    assert "error" in result.lines[0]
    assert math.isfinite(result.lines[1]["step_time_s"])
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("path", ["model", "plan", "model.vocab_size", "cluster.device", "plan.tp"])
def test_a_missing_part_or_field_is_named(run: Asap, example: Raw, path: str) -> None:
    part, _, name = path.partition(".")
    del (example[part] if name else example)[name or part]
    result = run(example)
    assert result.status == 2
    assert result.err.startswith(f"asap: error: {path}: got nothing")


def test_people_get_a_page_with_the_interval_the_memory_and_the_bottleneck(run: Asap, example: Raw) -> None:
    result = run(example, options=())
    assert (result.status, result.err) == (0, "")
    shown = ("Llama-3.1-70B", "step time", "80% interval", "of 79.1 GiB", "bottleneck", "pipeline_bubble")
    assert [word for word in shown if word not in result.out] == []


def test_people_get_a_table_of_many_with_the_errors_below(run: Asap, example: Raw) -> None:
    ids = [example | {"id": f"run-{n}"} for n in range(3)]
    result = run(*ids, changed(example, "plan.tp", 3), options=())
    assert result.status == 0
    assert all(f"run-{n}" in result.out for n in range(3))
    assert result.err.count("\n") == 1


def test_a_hugging_face_config_is_a_model_as_it_is(run: Asap, example: Raw) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
        "num_key_value_heads": 8, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0", "vocab_size": 128256,
    }  # fmt: skip
    first, second = run(example | {"model": config}, example).lines
    assert first["step_time_s"] == second["step_time_s"]


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
