"""Optional fields that change speed at the same plan: validated, kept and shown, not yet priced."""

from typing import Any

import pytest

from tools.cost.predict import predict
from tools.errors import InputError
from tools.nightly.night import contract_of
from tools.scenario import parse_scenario
from tools.scenario.spec import TRAINING_OPTIONS

OPTIONS: list[tuple[str, object, str]] = [
    ("software_date", "2026-06", "2026-06"),
    ("moe_dispatcher", "deepep", "deepep"),
    ("overlap_moe_communication", True, "on"),
    ("cuda_graph", False, "off"),
    ("capacity_factor", 1.25, "1.25"),
    ("optimizer_offload", True, "on"),
    ("lora", {"rank": 16, "targets": ["attention", "mlp"]}, "rank 16 on attention and mlp"),
    ("lora", {"rank": 8.0}, "rank 8 on attention and mlp"),
]
DIGEST_OF_EXAMPLE = "5bf8d5988840d997"
"""As stored by version 0.1, which had none of the options."""


@pytest.mark.parametrize(("name", "value", "text"), OPTIONS)
def test_an_option_is_kept_and_shown_and_changes_no_prediction(
    example: dict[str, Any], name: str, value: object, text: str
) -> None:
    plain = parse_scenario(example)
    example["training"][name] = value
    stated = parse_scenario(example)
    assert (plain.training.options(), stated.training.options()) == ({}, {name: text})
    assert predict([stated]) == predict([plain])
    assert contract_of(stated) != contract_of(plain) == DIGEST_OF_EXAMPLE
    dumped = stated.model_dump(mode="json", exclude={"constraints"})
    assert parse_scenario(dumped).training == stated.training


@pytest.mark.parametrize("name", sorted({*TRAINING_OPTIONS} - {"optimizer_offload"}))
def test_null_means_not_stated(example: dict[str, Any], name: str) -> None:
    example["training"][name] = None
    assert parse_scenario(example).training.options() == {}


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("software_date", "2026-13", "2026-06"),
        ("software_date", "2026-6", "2026-06"),
        ("software_date", "June 2026", "2026-06"),
        ("software_date", "2026-06\n", "2026-06"),
        ("software_date", 202606, "2026-06"),
        ("moe_dispatcher", "deep-ep", "alltoall, allgather, deepep, hybridep (did you mean deepep"),
        ("moe_dispatcher", 1, "alltoall, allgather, deepep, hybridep"),
        ("overlap_moe_communication", "yes", "true or false"),
        ("cuda_graph", 1, "true or false"),
        ("capacity_factor", 0, "above 0 and at most 1,000"),
        ("capacity_factor", float("inf"), "above 0 and at most 1,000"),
        ("capacity_factor", "1.0", "above 0 and at most 1,000"),
        ("optimizer_offload", "cpu", "true or false"),
        ("lora", 16, "a JSON object"),
        ("lora.rank", 0, "an integer from 1 to 1,000,000"),
        ("lora.targets", [], "attention"),
        ("lora.targets", ["attention", "head"], "attention"),
        ("lora.alpha", 32, "rank, targets"),
    ],
)
def test_a_wrong_option_is_refused_with_what_was_given_and_what_is_allowed(
    example: dict[str, Any], field: str, value: object, allowed: str
) -> None:
    parent, _, child = field.partition(".")
    example["training"][parent] = {"rank": 16, child: value} if child else value
    with pytest.raises(InputError) as caught:
        parse_scenario(example)
    assert caught.value.field == f"training.{field}"
    assert allowed in caught.value.allowed


def test_the_cluster_s_name_is_kept_and_changes_no_prediction(example: dict[str, Any]) -> None:
    plain = parse_scenario(example)
    example["cluster"]["name"] = "gamma-west"
    named = parse_scenario(example)
    assert (plain.cluster.name, named.cluster.name) == (None, "gamma-west")
    assert predict([named]) == predict([plain])


@pytest.mark.parametrize("value", ["", 7, "x" * 201])
def test_a_cluster_name_that_is_empty_too_long_or_no_text_is_refused(
    example: dict[str, Any], value: object
) -> None:
    example["cluster"]["name"] = value
    with pytest.raises(InputError) as caught:
        parse_scenario(example)
    assert caught.value.field == "cluster.name"
    assert "a text of at most 200 characters" in caught.value.allowed


@pytest.mark.parametrize("device", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e"])
def test_int8_is_a_precision_of_tpus(example: dict[str, Any], device: str) -> None:
    example["cluster"] = {"device": device, "num_devices": 64}
    example["training"] |= {"precision": "int8", "framework": "maxtext"}
    example["plan"] = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 64, "dp_shard": 64, "zero_stage": 3}
    example["plan"]["micro_batch_size"] = 1
    int8 = parse_scenario(example)
    example["training"]["precision"] = "bf16"
    faster, slower = predict([int8, parse_scenario(example)])
    assert faster.breakdown_s["compute"] <= slower.breakdown_s["compute"]


def test_int8_is_refused_on_gpus(example: dict[str, Any]) -> None:
    example["training"]["precision"] = "int8"
    with pytest.raises(InputError) as caught:
        parse_scenario(example)
    assert (caught.value.field, caught.value.given) == ("training.precision", "int8")
    assert "h100-sxm-80gb has" in caught.value.allowed
