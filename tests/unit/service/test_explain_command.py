"""`asap explain`: what speaks against a plan, asked for by pairs or JSON, and what it cannot read."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.cli.main import main
from tools.scenario import Plan

SCENARIO: dict[str, Any] = {
    "model": {
        "num_hidden_layers": 16, "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 32000,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 16},
    "training": {
        "seq_len": 4096, "global_batch_size": 32, "precision": "bf16", "framework": "megatron-core",
    },
}  # fmt: skip


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(plan: str, *options: str, **changed: object) -> Result:
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(SCENARIO | changed))
        return Result(main(["explain", str(path), "--plan", plan, *options]), *capsys.readouterr())

    return call


def test_the_answer_is_one_object_with_the_winner_the_plan_and_the_reason(run: Run) -> None:
    result = run("tp=8", "--json")
    assert (result.status, result.err, result.out.count("\n")) == (0, "", 1)
    assert set(result.answer) >= {"winner", "plan", "summary", "binding", "why"}
    assert result.answer["plan"]["tp"] == 8
    assert result.answer["binding"] == "time"
    assert "exposed tensor-parallel communication (" in result.answer["why"]


def test_pairs_and_json_ask_for_the_same(run: Run) -> None:
    pairs = run(" tp = 4, pp=2,recompute=full ,sequence_parallel=false", "--json")
    as_json = run('{"tp": 4, "pp": 2, "recompute": "full", "sequence_parallel": false}', "--json")
    assert pairs.answer == as_json.answer
    plan = pairs.answer["plan"]
    assert (plan["tp"], plan["pp"], plan["dp"], plan["recompute"]) == (4, 2, 2, "full")
    assert plan["sequence_parallel"] is False


def test_an_illegal_plan_is_told_the_rule(run: Run) -> None:
    result = run("vpp=5,pp=2", "--json")
    assert (result.status, result.answer["binding"]) == (0, "rule")
    assert result.answer["why"].startswith("plan.vpp: got 5; ")


def test_a_plan_that_does_not_fit_is_told_gibibytes(run: Run) -> None:
    result = run("zero_stage=0,tp=1,pp=1,micro_batch_size=2,recompute=none", "--json")
    assert result.answer["binding"] == "memory"
    assert f"needs {result.answer['peak_memory_gib']:.1f} GiB of 72.8 usable" in result.answer["why"]


def test_a_constraint_is_told(run: Run) -> None:
    result = run("tp=4", "--json", constraints={"tp": 1})
    assert result.answer["binding"] == "constraint"


def test_people_get_both_plans_and_the_reason(run: Run) -> None:
    result = run("tp=8")
    first, second, third = result.out.splitlines()
    assert first.startswith("best plan: ")
    assert second.startswith("asked:     tp 8")
    assert third.startswith("time: ")


def test_a_dash_reads_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(SCENARIO).encode())))
    assert main(["explain", "-", "--plan", "tp=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["tp"] == 2


BAD: list[tuple[str, str]] = [
    ("tp", "--plan: got 'tp'"),
    ("", "--plan: got ''"),
    ("tp=2,,pp=2", "--plan: got ''"),
    ("=2", "--plan: got '=2'"),
    ("tpp=2", "plan.tpp: got 2"),
    ("tp=", "plan.tp: got ''"),
    ("tp=two", "plan.tp: got 'two'"),
    ("tp=null", "plan.tp: got nothing"),
    ("tp=true", "plan.tp: got True"),
    ("tp=2.5", "plan.tp: got 2.5"),
    ("tp=0", "plan.tp: got 0"),
    ("tp=-4", "plan.tp: got -4"),
    ("tp=1e999", "plan.tp: got"),
    ("tp=NaN", "plan.tp: got"),
    ("tp=[2]", "plan.tp: got"),
    ("tp=3", "plan: got {'tp': 3}; tp * pp * cp must be whole numbers that divide 16 devices"),
    ("zero_stage=4", "plan.zero_stage: got 4"),
    ("recompute=some", "plan.recompute: got 'some'"),
    ("schedule=fast", "plan.schedule: got 'fast'"),
    ("sequence_parallel=1", "plan.sequence_parallel: got 1"),
    ("{", "--plan"),
    ('{"tp": 2', "--plan"),
    ('{"tp": 2} x', "--plan"),
]


@pytest.mark.parametrize(("text", "says"), BAD, ids=[text or "nothing" for text, _ in BAD])
def test_a_plan_that_cannot_be_read_is_exit_2_in_one_line(run: Run, text: str, says: str) -> None:
    result = run(text, "--json")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert says in result.err


def test_nothing_feasible_is_exit_3_and_no_plan_is_exit_2(run: Run, tmp_path: Path) -> None:
    assert run("tp=2", constraints={"tp": 3}).status == 3
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(SCENARIO))
    assert main(["explain", str(path)]) == 2


VALUES = st.sampled_from(
    ["1", "2", "4", "16", "-1", "0", "1e9", "1e400", "null", "x", "[]", "{}", "true", '"2"', ""]
)
PAIR = st.tuples(st.sampled_from([*Plan.model_fields, "other"]), VALUES)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(PAIR, min_size=1, max_size=3))
def test_junk_never_ends_in_a_traceback(run: Run, pairs: list[tuple[str, str]]) -> None:
    result = run(",".join(f"{name}={value}" for name, value in pairs), "--json")
    assert result.status in (0, 2), result.err
    assert result.err.count("\n") == (0 if result.status == 0 else 1)
    assert "Traceback" not in result.err
