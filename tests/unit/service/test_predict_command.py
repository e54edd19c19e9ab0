"""`asap predict`: JSON lines in order, errors in their place, one line for each mistake, exit statuses."""

import copy
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from service.cli.main import main

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "llama-3.1-70b-64xh100.json"
KEYS = {
    "id", "fits", "step_time_s", "step_time_low_s", "step_time_high_s", "parameters", "active_parameters",
    "tokens_per_s_per_device", "model_tflops_per_device", "mfu", "peak_memory_gib", "bottleneck",
    "breakdown_s", "memory_gib",
}  # fmt: skip
BREAKDOWN = {
    "compute", "memory_bound_ops", "tp_comm_exposed", "cp_comm_exposed", "ep_comm_exposed", "dp_comm_exposed",
    "pp_comm_exposed", "pipeline_bubble", "optimizer", "host_and_other",
}  # fmt: skip
MEMORY = {"parameters", "gradients", "optimizer", "activations", "buffers", "runtime"}


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def example() -> dict[str, Any]:
    """The example that comes with the repo, under the plan of the contract."""
    loaded: dict[str, Any] = json.loads(EXAMPLE.read_text())
    plan = {"tp": 4, "pp": 2, "vpp": 5, "cp": 1, "ep": 1, "dp": 8, "dp_shard": 8, "zero_stage": 1}
    return loaded | {"plan": plan | {"micro_batch_size": 1, "sequence_parallel": True, "recompute": "none"}}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Writes a text, or objects a line, to a file and predicts it with --json."""

    def call(*given: object, options: tuple[str, ...] = ("--json",)) -> Result:
        path = tmp_path / "scenarios.jsonl"
        path.write_text("\n".join(g if isinstance(g, str) else json.dumps(g) for g in given) + "\n")
        return Result(main(["predict", *options, str(path)]), *capsys.readouterr())

    return call


def changed(example: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    copied = copy.deepcopy(example)
    part, name = path.split(".", 1)
    copied[part][name] = value
    return copied


def test_a_prediction_has_the_contract_s_keys_and_adds_up(run: Run, example: dict[str, Any]) -> None:
    result = run(example)
    assert (result.status, result.err) == (0, "")
    (prediction,) = result.lines
    assert set(prediction) == KEYS
    assert set(prediction["breakdown_s"]) == BREAKDOWN
    assert set(prediction["memory_gib"]) == MEMORY
    assert sum(prediction["breakdown_s"].values()) == pytest.approx(prediction["step_time_s"])
    assert sum(prediction["memory_gib"].values()) == pytest.approx(prediction["peak_memory_gib"])
    assert prediction["id"] == example.get("id")


def test_the_table_shows_what_was_stated_and_the_parameters(run: Run, example: dict[str, Any]) -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 28672}
    example["cluster"]["name"] = "gamma-west"
    example["training"] |= {"software_date": "2026-06", "cuda_graph": True}
    dense = " ".join(run(example, options=()).out.split())
    assert "in gamma-west" in dense
    assert "software_date 2026-06, cuda_graph on (no effect on the prediction yet)" in dense
    assert "parameters 70.6 B step time" in dense
    example["model"] |= experts
    assert "B active per token" in run(example, options=()).out


def test_lines_come_back_in_order_with_their_ids(run: Run, example: dict[str, Any]) -> None:
    ids = ["b", 7, "a", None, 1.5]
    result = run(*(example | {"id": given} for given in ids))
    assert result.status == 0
    assert [line["id"] for line in result.lines] == ids
    assert len({line["step_time_s"] for line in result.lines}) == 1


def test_a_bad_line_is_an_error_in_its_place_and_the_rest_is_predicted(
    run: Run, example: dict[str, Any]
) -> None:
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


def test_nothing_but_bad_lines_is_wrong_input(run: Run, example: dict[str, Any]) -> None:
    bad = changed(example, "plan.tp", 3)
    result = run(bad, bad)
    assert result.status == 2
    assert [set(line) for line in result.lines] == [{"id", "error", "field"}] * 2
    assert result.err.count("\n") == 1


def test_a_pretty_printed_object_is_one_scenario(run: Run, example: dict[str, Any]) -> None:
    result = run(json.dumps(example, indent=4))
    assert len(result.lines) == 1
    assert result.lines == run(example).lines


def test_empty_lines_are_skipped(run: Run, example: dict[str, Any]) -> None:
    result = run(example, "", "  ", example)
    assert (result.status, len(result.lines)) == (0, 2)


@pytest.mark.parametrize("text", ["", "   \n  ", "not JSON at all", "[1, 2]", "{", '{"model": 1'])
def test_a_text_without_a_scenario_is_wrong_input_in_one_line(run: Run, text: str) -> None:
    result = run(text)
    assert result.status == 2
    assert result.err.count("\n") == 1


def test_a_dash_reads_standard_input(
    example: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(example).encode())))
    assert main(["predict", "--json", "-"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == KEYS


def test_an_absent_file_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--json", str(tmp_path / "absent.json")]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)


BAD: list[tuple[str, object, str, str]] = [
    # where, value, the field that is named, what the line must say
    ("model.hidden_sizes", 8192, "model.hidden_sizes", "hidden_size"),
    ("training.seqlen", 8192, "training.seqlen", "seq_len"),
    ("plan.micro_batchsize", 1, "plan.micro_batchsize", "micro_batch_size"),
    ("cluster.nodes", 8, "cluster.nodes", "unknown field"),
    ("plan.dp", 4, "plan.dp", "= 32"),
    ("plan.tp", 8, "plan.dp", "must equal num_devices (64)"),
    ("training.global_batch_size", 100, "training.global_batch_size", "multiple of dp * micro_batch_size"),
    ("plan.micro_batch_size", 3, "training.global_batch_size", "3"),
    ("plan.vpp", 7, "plan.vpp", "80 layers"),
    ("plan.tp", 0, "plan.tp", "0"),
    ("plan.pp", -2, "plan.pp", "-2"),
    ("plan.dp", 10**30, "plan.dp", "1000000"),
    ("plan.tp", 2.5, "plan.tp", "2.5"),
    ("plan.tp", "4", "plan.tp", "'4'"),
    ("plan.tp", True, "plan.tp", "True"),
    ("plan.tp", None, "plan.tp", "integer"),
    ("plan.zero_stage", 4, "plan.zero_stage", "4"),
    ("plan.recompute", "some", "plan.recompute", "selective"),
    ("plan.ep", 2, "plan.ep", "dense"),
    ("plan.dp_shard", 3, "plan.dp_shard", "must divide"),
    ("model.num_hidden_layers", 0, "model.num_hidden_layers", "0"),
    ("model.hidden_size", -1, "model.hidden_size", "-1"),
    ("model.vocab_size", 10**12, "model.vocab_size", "100000000"),
    ("model.num_key_value_heads", 7, "model.num_key_value_heads", "64"),
    ("training.seq_len", 10**15, "training.seq_len", "100000000"),
    ("training.precision", "fp7", "training.precision", "bf16"),
    ("training.precision", "nvfp4", "training.precision", "h100-sxm-80gb has"),
    ("training.framework", "megatron", "training.framework", "megatron-core"),
    ("cluster.num_devices", 0, "cluster.num_devices", "0"),
    ("cluster.device", "h100-smx-80gb", "cluster.device", "h100-sxm-80gb"),
    ("cluster.device", "", "cluster.device", ""),
    ("cluster.overrides", {"memory_gib": -1}, "cluster.overrides.memory_gib", "-1"),
]


@pytest.mark.parametrize(("path", "value", "field", "says"), BAD)
def test_each_kind_of_bad_input_is_one_line_that_names_the_field(
    run: Run, example: dict[str, Any], path: str, value: object, field: str, says: str
) -> None:
    result = run(changed(example, path, value))
    assert result.status == 2
    assert result.err.startswith(f"asap: error: {field}: got ")
    assert result.err.count("\n") == 1
    assert says in result.err
    (line,) = result.lines
    assert line["field"] == field


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("path", ["plan.tp", "training.seq_len", "model.hidden_size"])
def test_numbers_that_are_not_finite_are_refused(
    run: Run, example: dict[str, Any], word: str, path: str
) -> None:
    text = json.dumps(changed(example, path, 123456789)).replace("123456789", word)
    result = run(text, example)
    assert result.status == 0
    assert "error" in result.lines[0]
    assert math.isfinite(result.lines[1]["step_time_s"])
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("model", "num_hidden_layers"),
        ("model", "vocab_size"),
        ("cluster", "device"),
        ("cluster", "num_devices"),
        ("training", "seq_len"),
        ("training", "framework"),
        ("plan", "tp"),
        ("plan", "micro_batch_size"),
    ],
)
def test_a_missing_field_is_named(run: Run, example: dict[str, Any], part: str, name: str) -> None:
    del example[part][name]
    result = run(example)
    assert result.status == 2
    assert result.err.startswith(f"asap: error: {part}.{name}: got nothing")


@pytest.mark.parametrize("part", ["model", "cluster", "training", "plan"])
def test_a_missing_part_is_named(run: Run, example: dict[str, Any], part: str) -> None:
    del example[part]
    result = run(example)
    assert result.status == 2
    assert result.err.startswith(f"asap: error: {part}: got nothing")


def test_torchtitan_refuses_more_tensor_ranks_than_key_value_heads(run: Run, example: dict[str, Any]) -> None:
    example["training"]["framework"] = "torchtitan"
    example["plan"] |= {"tp": 16, "pp": 1, "vpp": 1, "dp": 4, "dp_shard": 4, "zero_stage": 3}
    result = run(example)
    assert result.status == 2
    assert result.err.startswith("asap: error: plan.tp: got 16; must divide the 8 key/value heads")


def test_megatron_allows_more_tensor_ranks_than_key_value_heads(run: Run, example: dict[str, Any]) -> None:
    example["plan"] |= {"tp": 16, "pp": 1, "vpp": 1, "dp": 4, "dp_shard": 4}
    assert run(example).status == 0


def test_maxtext_refuses_layers_that_do_not_divide_into_stages(run: Run, example: dict[str, Any]) -> None:
    example["training"]["framework"] = "maxtext"
    example["model"]["num_hidden_layers"] = 81
    example["plan"] |= {"vpp": 1, "zero_stage": 3, "sequence_parallel": False}
    result = run(example)
    assert result.status == 2
    assert result.err.startswith("asap: error: plan.pp: got 2; 81 layers")


def test_people_get_a_page_with_the_interval_the_memory_and_the_bottleneck(
    run: Run, example: dict[str, Any]
) -> None:
    result = run(example, options=())
    assert (result.status, result.err) == (0, "")
    for word in (
        "Llama-3.1-70B",
        "step time",
        "80% interval",
        "of 79.1 GiB",
        "bottleneck",
        "pipeline_bubble",
    ):
        assert word in result.out


def test_people_get_a_table_of_many_with_the_errors_below(run: Run, example: dict[str, Any]) -> None:
    ids = [example | {"id": f"run-{n}"} for n in range(3)]
    result = run(*ids, changed(example, "plan.tp", 3), options=())
    assert result.status == 0
    assert all(f"run-{n}" in result.out for n in range(3))
    assert result.err.count("\n") == 1


def test_a_hugging_face_config_is_a_model_as_it_is(run: Run, example: dict[str, Any]) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_hidden_layers": 80,
        "num_key_value_heads": 8,
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0",
        "vocab_size": 128256,
    }
    first, second = run(example | {"model": config}, example).lines
    assert first["step_time_s"] == second["step_time_s"]
