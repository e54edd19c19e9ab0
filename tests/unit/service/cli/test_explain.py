"""`asap explain`: what speaks against a plan, asked for by pairs or JSON, and what it cannot read."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.graph.cases import small
from tests.unit.service.cli.commands import Asap
from tests.workloads import SMALL
from tools.scenario import Plan

SCENARIO = small(
    model={
        "num_hidden_layers": 16, "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 32000,
    },
    cluster={"device": "h100-sxm-80gb", "num_devices": 16},
    training=SMALL["training"] | {"seq_len": 4096, "global_batch_size": 32},
    plan=None,
)  # fmt: skip


def test_the_answer_is_one_object_with_the_winner_the_plan_and_the_reason(asap: Asap) -> None:
    result = asap("explain", SCENARIO, "--plan", "tp=8", "--json")
    assert (result.status, result.err) == (0, "")
    assert set(result.answer) >= {"winner", "plan", "summary", "binding", "why"}
    assert result.answer["plan"]["tp"] == 8
    assert result.answer["binding"] == "time"
    assert "exposed tensor-parallel communication (" in result.answer["why"]


def test_pairs_and_json_ask_for_the_same(asap: Asap) -> None:
    texts = (
        " tp = 4, pp=2,recompute=full ,sequence_parallel=false",
        '{"tp": 4, "pp": 2, "recompute": "full", "sequence_parallel": false}',
    )
    pairs, as_json = (asap("explain", SCENARIO, "--plan", text, "--json").answer for text in texts)
    assert pairs == as_json
    expected = {"tp": 4, "pp": 2, "dp": 2, "recompute": "full", "sequence_parallel": False}
    assert pairs["plan"].items() >= expected.items()


RULE = (
    "plan.vpp: got 5; 16 layers, or up to 3 more places for embedding, loss and MTP, "
    "must divide into pp * vpp (2 * 5 = 10) equal chunks"
)


@pytest.mark.parametrize(
    ("plan", "constraints", "binding", "why"),
    [
        ("vpp=5,pp=2", {}, "rule", f"^{RULE}"),
        (
            "zero_stage=0,tp=1,pp=1,micro_batch_size=2",
            {},
            "memory",
            "more but needs {peak} GiB of 72.8 usable",
        ),
        ("tp=4", {"tp": 1}, "constraint", "more but constraints.tp allows 1 only"),
    ],
)
def test_the_rule_the_memory_or_the_constraint_against_a_plan_is_the_reason(
    asap: Asap, plan: str, constraints: dict[str, int], binding: str, why: str
) -> None:
    result = asap("explain", SCENARIO | {"constraints": constraints}, "--plan", plan, "--json")
    assert (result.status, result.answer["binding"]) == (0, binding)
    peak = result.answer.get("peak_memory_gib") or 0.0
    assert f"^{result.answer['why']}".endswith(why.format(peak=f"{peak:.1f}"))


def test_people_get_both_plans_and_the_reason(asap: Asap) -> None:
    lines = asap("explain", SCENARIO, "--plan", "tp=8").out.splitlines()
    starts = ("best plan: ", "asked:     tp 8", "time: ")
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 3


BAD: list[tuple[str, str]] = [
    ("tp", "--plan: got 'tp'"),
    ("", "--plan: got ''"),
    ("tp=2,,pp=2", "--plan: got ''"),
    ("=2", "--plan: got '=2'"),
    ("tpp=2", "plan.tpp: got 2"),
    ("tp=", "plan.tp: got ''"),
    ("tp=two", "plan.tp: got 'two'"),
    ("tp=null", "plan.tp: got nothing"),
    ("tp=0", "plan.tp: got 0"),
    ("tp=1e999", "plan.tp: got"),
    ("tp=NaN", "plan.tp: got"),
    ("tp=" + "[" * 100_000, "plan.tp: got"),
    ("tp=3", "plan: got {'tp': 3}; tp * pp * cp must be whole numbers that divide 16 devices"),
    ("sequence_parallel=1", "plan.sequence_parallel: got 1"),
    ('{"tp": 2', "--plan"),
    ('{"tp": 2} x', "--plan"),
]


@pytest.mark.parametrize(("text", "says"), BAD, ids=[text[:20] or "nothing" for text, _ in BAD])
def test_a_plan_that_cannot_be_read_is_exit_2_in_one_line(asap: Asap, text: str, says: str) -> None:
    result = asap("explain", SCENARIO, "--plan", text, "--json")
    assert result.refused
    assert says in result.err


def test_nothing_feasible_is_exit_3_and_no_plan_is_exit_2(asap: Asap) -> None:
    assert asap("explain", SCENARIO | {"constraints": {"tp": 3}}, "--plan", "tp=2").status == 3
    assert asap("explain", SCENARIO).status == 2


VALUES = st.sampled_from(
    ["1", "2", "4", "16", "-1", "0", "1e9", "1e400", "null", "x", "[]", "{}", "true", '"2"', ""]
)
PAIR = st.tuples(st.sampled_from([*Plan.model_fields, "other"]), VALUES)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(PAIR, min_size=1, max_size=3))
def test_junk_never_ends_in_a_traceback(asap: Asap, pairs: list[tuple[str, str]]) -> None:
    plan = ",".join(f"{name}={value}" for name, value in pairs)
    result = asap("explain", SCENARIO, "--plan", plan, "--json")
    assert result.status in (0, 2), result.err
    assert result.err.count("\n") == (0 if result.status == 0 else 1)
    assert "Traceback" not in result.err
