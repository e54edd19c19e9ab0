"""Nothing fits, or nothing is legal: how far off, and what would help, checked by trying it."""

import copy
import re

import pytest

from tests.unit.recommend.cases import LLAMA_405B, Raw, llama
from tools.cost.predict import predict
from tools.errors import InfeasibleError
from tools.recommend.optimize import optimize
from tools.scenario import parse_scenario


def refusal(raw: Raw) -> str:
    with pytest.raises(InfeasibleError) as told:
        optimize(parse_scenario(raw, need_plan=False))
    return str(told.value)


def on_devices(raw: Raw, devices: int) -> Raw:
    grown: Raw = copy.deepcopy(raw)
    grown["training"]["global_batch_size"] *= devices // raw["cluster"]["num_devices"]
    grown["cluster"]["num_devices"] = devices
    return grown


def test_405b_on_8_devices_is_told_how_much_it_lacks_and_how_many_devices_would_do() -> None:
    says = refusal(LLAMA_405B)
    needs, usable = (float(x) for x in re.findall(r"needs ([\d.]+) GiB of ([\d.]+) usable", says)[0])
    assert needs > 405e9 * 16 / 8 / 2**30 > usable
    assert usable == pytest.approx(0.92 * 79.1, abs=0.1)
    devices = int(re.findall(r"(\d+) devices \(with the batch grown alike\) would suffice", says)[0])
    enough = optimize(parse_scenario(on_devices(LLAMA_405B, devices), need_plan=False))
    assert enough.proposals[0].prediction.fits
    assert "no legal plan fits" in refusal(on_devices(LLAMA_405B, devices // 2))
    assert "optimizer state" in says


def test_a_constraint_that_leaves_nothing_that_fits_is_named() -> None:
    says = refusal(llama(constraints={"tp": 1, "pp": 1, "zero_stage": 0}))
    assert says.startswith("no legal plan fits: the smallest (")
    assert "without the constraints on tp, pp, zero_stage plans fit" in says


def test_a_constraint_that_leaves_nothing_legal_is_named() -> None:
    says = refusal(llama(constraints={"tp": 3}))
    assert says.startswith(
        "no plan is legal: megatron-core accepts none for 64 devices, a global batch of 128"
    )
    assert says.endswith("and the constraints tp 3")


def test_a_memory_cap_that_leaves_nothing_is_told_what_is_usable() -> None:
    says = refusal(llama(constraints={"max_memory_fraction": 0.05}))
    assert f"of {0.05 * 79.1:.1f} usable" in says


def test_too_few_changes_allowed_from_a_plan_that_does_not_fit_are_named() -> None:
    too_large = {
        "tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 64, "dp_shard": 1, "zero_stage": 0, "micro_batch_size": 1,
        "recompute": "none",
    }  # fmt: skip
    says = refusal(llama(plan=too_large, constraints={"max_changes": 0}))
    assert "without the constraints on max_changes plans fit" in says


def test_a_batch_that_no_plan_can_split_is_nothing_legal() -> None:
    raw = llama(plan=None)
    raw["training"] = raw["training"] | {"global_batch_size": 1, "framework": "torch-fsdp"}
    assert refusal(raw).startswith("no plan is legal: torch-fsdp")


def test_who_wants_to_stop_is_heard_while_remedies_are_sought() -> None:
    class StoppedError(Exception):
        pass

    searches = 0

    def stop_after_the_search(done: float) -> None:
        nonlocal searches
        if searches:
            raise StoppedError
        searches += done == 1.0

    with pytest.raises(StoppedError):
        optimize(parse_scenario(LLAMA_405B, need_plan=False), stop_after_the_search)


def test_the_smallest_plan_is_really_the_smallest() -> None:
    needs = float(re.findall(r"needs ([\d.]+) GiB", refusal(LLAMA_405B))[0])
    recomputed = {"tp": 8, "pp": 1, "cp": 1, "ep": 1, "dp": 1, "dp_shard": 1, "zero_stage": 0}
    plan = {**recomputed, "micro_batch_size": 1, "sequence_parallel": True, "recompute": "full"}
    other = predict([parse_scenario({**LLAMA_405B, "plan": plan})])[0].peak_memory_gib
    assert needs <= other + 0.05
