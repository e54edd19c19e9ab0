"""`asap optimize`: one JSON object or a page, exit statuses, one line for each mistake."""

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.cli.main import main

Raw = dict[str, Any]
SMALL: Raw = {
    "id": "small",
    "model": {
        "name": "small [/bold] model", "num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 4096,
        "num_attention_heads": 8, "vocab_size": 32000,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 8},
    "training": {
        "seq_len": 2048, "global_batch_size": 16, "precision": "bf16", "framework": "megatron-core",
    },
    "plan": {
        "tp": 2, "pp": 2, "cp": 1, "ep": 1, "dp": 2, "dp_shard": 2, "zero_stage": 1, "micro_batch_size": 1,
        "recompute": "full",
    },
}  # fmt: skip


class Result(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(given: Raw | str, *options: str) -> Result:
        path = tmp_path / "scenario.json"
        path.write_text(given if isinstance(given, str) else json.dumps(given))
        return Result(main(["optimize", *options, str(path)]), *capsys.readouterr())

    return call


def test_json_prints_one_object_and_nothing_else(run: Run) -> None:
    result = run(SMALL, "--json")
    assert (result.status, result.err, result.out.count("\n")) == (0, "", 1)
    report = json.loads(result.out)
    assert report["id"] == "small"
    assert {"diagnosis", "baseline", "proposals", "rejected", "searched", "reasoner"} <= set(report)
    assert report["baseline"]["step_time_s"] >= report["proposals"][0]["prediction"]["step_time_s"]


def test_people_get_todays_plan_the_proposals_with_bars_and_why_not(run: Run) -> None:
    result = run(SMALL)
    assert (result.status, result.err) == (0, "")
    for words in (
        "small [/bold] model on 8 x h100-sxm-80gb",
        "legal plans decided",
        "today",
        "80% interval",
        "█",
        "Why not",
        "GiB",
        "risk: ",
        "MFU",
    ):
        assert words in result.out


def test_a_cold_start_has_no_today(run: Run) -> None:
    result = run({name: part for name, part in SMALL.items() if name != "plan"})
    assert result.status == 0
    assert "today" not in result.out


def test_a_dash_reads_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(SMALL).encode())))
    assert main(["optimize", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "small"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_nothing_feasible_is_exit_3_in_one_line_that_says_what_would_do(
    run: Run, options: tuple[str]
) -> None:
    huge = copy.deepcopy(SMALL) | {"plan": None}
    huge["model"] |= {"num_hidden_layers": 96, "hidden_size": 12288, "intermediate_size": 49152}
    huge["model"]["num_attention_heads"] = 96
    result = run(huge, *options)
    assert (result.status, result.out, result.err.count("\n")) == (3, "", 1)
    assert result.err.startswith("asap: error: no legal plan fits: the smallest (")
    assert "devices (with the batch grown alike) would do" in result.err


def test_constraints_that_leave_nothing_are_exit_3(run: Run) -> None:
    result = run(SMALL | {"constraints": {"tp": 3}}, "--json")
    assert (result.status, result.out) == (3, "")
    assert "'tp': (3,)" in result.err


BAD: list[tuple[object, str]] = [
    (SMALL | {"constraints": {"tpp": 2}}, "constraints.tpp: got 2"),
    (SMALL | {"constraints": {"tp": "2"}}, "constraints.tp: got '2'"),
    (SMALL | {"constraints": {"max_memory_fraction": 2}}, "constraints.max_memory_fraction: got 2"),
    (SMALL | {"constraints": []}, "constraints: got an array"),
    (SMALL | {"plan": SMALL["plan"] | {"tp": 3}}, "plan.dp: got 2"),
    ({name: part for name, part in SMALL.items() if name != "model"}, "model: got nothing"),
    ("", "scenario.json: got 'no text'"),
    ("[]", "scenario.json"),
    ("not JSON", "scenario.json"),
    (json.dumps(SMALL) + "\n" + json.dumps(SMALL), "line 2: got 'a second object'"),
]


@pytest.mark.parametrize(("given_input", "says"), BAD, ids=[says for _, says in BAD])
def test_bad_input_is_exit_2_in_one_line(run: Run, given_input: Raw | str, says: str) -> None:
    result = run(given_input, "--json")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert says in result.err


def test_an_absent_file_and_an_absent_argument_are_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", str(tmp_path / "absent.json")]) == 2
    assert main(["optimize"]) == 2
    assert capsys.readouterr().out == ""


PATHS = [
    (part, name)
    for part in ("model", "cluster", "training", "plan")
    for name in (*SMALL[part], "unknown")
] + [("constraints", name) for name in ("tp", "recompute", "max_changes", "max_memory_fraction")]  # fmt: skip
JUNK = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1,
        2,
        3,
        7,
        8,
        2.5,
        1e300,
        10**30,
        "",
        "x",
        "none",
        "bf16",
        [],
        [1],
        [2, "x"],
        {},
        {"a": 1},
    ]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(PATHS), value=JUNK, json_only=st.booleans())
def test_junk_never_ends_in_a_traceback(
    run: Run, path: tuple[str, str], value: object, json_only: bool
) -> None:
    raw = copy.deepcopy(SMALL)
    raw.setdefault(path[0], {})[path[1]] = value
    result = run(raw, *(("--json",) if json_only else ()))
    assert result.status in (0, 2, 3), result.err
    assert result.err.count("\n") == (0 if result.status == 0 else 1)
    assert "Traceback" not in result.err
    assert bool(result.out) == (result.status == 0)
