"""Wrong input of every command: exit status 2, one line on standard error that names what is wrong."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.service.cli.commands import EXAMPLE, REPO, Asap
from tests.unit.service.render.scenes import SMALL
from tools.scenario import Plan

TRACES = REPO / "examples/traces/ddp-gloo-straggler"
SCENARIO: dict[str, Any] = json.loads(EXAMPLE.read_text())
PLAN = SCENARIO["plan"]


def changed(path: str, value: object) -> dict[str, Any]:
    """The example with another value at one place."""
    copied = copy.deepcopy(SCENARIO)
    part, name = path.split(".")
    copied[part][name] = value
    return copied


EXPORT = ("export", EXAMPLE, "--format", "megatron")
IMPORT = ("import", EXAMPLE, "--format", "megatron")
EXPLAIN = ("explain", SMALL, "--plan")
REPORT = {"proposals": [{"plan": PLAN}]}
RUN = {"scenario": SCENARIO, "measured": {"step_time_s": 1.0}}
WRONG_RUNS: dict[str, dict[str, object]] = {
    "measured.step_time_s": {"measured": {"step_time_s": "9 s"}},
    "measured.step_time_s: got -1": {"measured": {"step_time_s": -1}},
    "measured.step_time_s: got None": {"measured": {}},
    "crashed": {"crashed": "yes"},
    "scenario": {"scenario": None},
    "scenario.plan": {"scenario": changed("plan.tp", 3)},
    "measured.terms_s.compte": {"measured": {"step_time_s": 1, "terms_s": {"compte": 1}}},
}
WRONG_FIELDS = [  # where, value, what the line says; every rule is in tests/unit/scenario
    ("model.hidden_sizes", 8192, "model.hidden_sizes: got 8192"),
    ("model.vocab_size", None, "model.vocab_size: got nothing"),
    ("cluster.nodes", 8, "cluster.nodes: got 8; unknown field"),
    ("cluster.device", "h100-smx-80gb", "cluster.device: got 'h100-smx-80gb'; did you mean h100-sxm-80gb"),
    ("cluster.overrides", {"memory_gib": -1}, "cluster.overrides.memory_gib: got -1"),
    ("plan.tp", "4", "plan.tp: got '4'"),
    ("plan.dp", 10**30, "plan.dp: got"),
    ("training.precision", "nvfp4", "training.precision: got 'nvfp4'; h100-sxm-80gb has"),
]
MARK = ("kb", "mark", "no-such-entry", "--status", "confirmed", "--by", "a")
REFUSED: list[tuple[tuple[object, ...], str]] = [
    (("predict", "absent"), "FILE: got 'absent'"),
    (("predict", EXAMPLE, "--calibration", "absent"), "--calibration: got 'absent'"),
    (("predict", EXAMPLE, "--calibration", {}), "format"),
    (("predict", EXAMPLE, "--calibration", b"nonsense"), "input-3.json line 1"),
    (("predict", EXAMPLE, "--calibration", {"format": "asap-cluster-calibration-1"}), "framework"),
    *((("predict", changed(path, value)), says) for path, value, says in WRONG_FIELDS),
    *((("calibrate", RUN | wrong, "--out", "x"), f"line 1: {field}") for field, wrong in WRONG_RUNS.items()),
    (("optimize",), "FILE"),
    (("optimize", b""), ".json: got 'no text'"),
    (("optimize", b"[]"), ".json"),
    (("optimize", b"not JSON"), ".json"),
    (("optimize", f"{json.dumps(SMALL)}\n{json.dumps(SMALL)}".encode()), "line 2: got 'a second object'"),
    (("optimize", SMALL, "--format", "pdf"), "--format"),
    (("optimize", SMALL, "--json", "--format", "html"), "--format"),
    (("optimize", SMALL | {"constraints": {"tpp": 2}}), "constraints.tpp: got 2"),
    (("optimize", SMALL | {"traces": "absent"}), "traces: got 'absent'"),
    (("optimize", SMALL | {"mode": "tune"}), "mode: got 'tune'; this installation runs no trials"),
    (("optimize", SMALL | {"mode": "guess"}), "mode: got 'guess'; allowed: advise, tune"),
    (("optimize", SMALL | {"approval": "person"}), "approval: got 'person'"),
    (("optimize", SMALL | {"plan": SMALL["plan"] | {"tp": 3}}), "plan.dp: got 2"),
    (("optimize", {**SMALL, "model": None}), "model"),
    (("optimize", SCENARIO["model"]), "--devices"),
    (("optimize", SCENARIO["model"], "--devices", "H100"), "--devices"),
    (("optimize", SCENARIO["model"], "--devices", "0 x H100"), "--devices"),
    (("optimize", SCENARIO["model"], "--devices", "8 x abacus"), "--devices: got '8 x abacus'"),
    (
        ("optimize", "meta-llama/Llama-3.1-70B", "--devices", "64 x H100"),
        "hf download meta-llama/Llama-3.1-70B",
    ),
    *((("optimize", SMALL, f"--session={name}"), "--session") for name in ("", "../x", "a.b", "X", "x" * 81)),
    ((*EXPLAIN, "tp"), "--plan: got 'tp'"),
    ((*EXPLAIN, ""), "--plan: got ''"),
    ((*EXPLAIN, "tp=2,,pp=2"), "--plan: got ''"),
    ((*EXPLAIN, "tpp=2"), "plan.tpp: got 2"),
    ((*EXPLAIN, "tp=two"), "plan.tp: got 'two'"),
    ((*EXPLAIN, "tp=null"), "plan.tp: got nothing"),
    ((*EXPLAIN, "tp=" + "[" * 100_000), "plan.tp: got"),
    ((*EXPLAIN, "tp=3"), "plan: got {'tp': 3}; tp * pp * cp must be whole numbers that divide 8 devices"),
    ((*EXPLAIN, '{"tp": 2} x'), "--plan"),
    (("explain", SMALL), "--plan"),
    (("export", EXAMPLE), "--format"),
    (("export", EXAMPLE, "--format", "accelerate"), "plan.pp: got "),
    (("export", EXAMPLE, "--format", "megatorn"), "--format: got 'megatorn'; did you mean megatron?"),
    ((*EXPORT, "--proposal", "2"), "--proposal: got 2; needs"),
    ((*EXPORT, "--report", "absent"), "--report: got 'absent'"),
    *(((*EXPORT, "--report", REPORT, "--proposal", rank), "--proposal") for rank in ("0", "2", "-1")),
    *(((*EXPORT, "--report", {"proposals": wrong}), "") for wrong in (None, 3, ["x"], [{"plan": 7}])),
    (("import", "absent.sh"), "FILE"),
    (("import", b" \n"), "FILE: got 'no text'"),
    (("import", b"\xff\xfe\x00", "--format", "maxtext"), "UTF-8"),
    (("import", EXAMPLE, "--format", "deepspeed"), "--num-devices"),
    ((*IMPORT, "--num-devices", "-1"), "--num-devices"),
    ((*IMPORT, "--set", "plan.tp"), "FIELD=VALUE"),
    ((*IMPORT, "--model", "absent.json"), "--model: got 'absent.json'"),
    (("diagnose", "absent"), "DIR: got 'absent'"),
    (("diagnose", REPO / "docs"), "DIR"),
    (("diagnose", TRACES, "--device", "abacus"), "--device"),
    (("diagnose", TRACES, "--communication-pattern", "("), "communication pattern"),
    (("diagnose", TRACES, "--workers", "0"), "--workers: must be a whole number of 1 or more"),
    (("diagnose", TRACES, "--scenario", "absent"), "--scenario: got 'absent'"),
    (("diagnose", TRACES, "--scenario", b"# no JSON"), "input-3.json line 1"),
    (("diagnose", TRACES, "--compare", EXAMPLE), "--compare: got"),
    (("diagnose", TRACES, "--calibration-out", "out.json"), "--calibration-out"),
    (("hardware", "show", "h100-sxn-80gb"), "NAME: got 'h100-sxn-80gb'; did you mean h100-sxm-80gb"),
    (("kb",), "ACTION"),
    (("kb", "search", "x", "--device", "h1000"), "--device"),
    (("kb", "search", "x", "--limit", "0"), "limit"),
    (("kb", "search", "x", "--bottleneck", "network"), "--bottleneck"),
    (("kb", "show", "no-such-entry"), "id: got 'no-such-entry'"),
    (("kb", "add", {"id": "x", "title": "y"}), "story: got nothing"),
    (MARK, "--reason"),
    ((*MARK, "--reason", "b"), "id:"),
    (("keys", "add", "x", "--scope", "root"), "--scope: got"),
    (("keys", "add", "x", "--tenant", "No Spaces"), "--tenant: got"),
    (("keys", "add", "x", "--days", "nan"), "--days: got"),
    (("keys", "add", ""), "NAME: got"),
    (("keys", "revoke", "0123456789ab"), "ID: got"),
    (("serve", "--port=-1"), "--port"),
    (("serve", "--port=65536"), "--port"),
    (("sessions", "list", "--server", "nonsense"), "--server"),
    (("sessions", "submit", SMALL, "--label", "noequals"), "--label"),
    (("sessions", "submit", SMALL, "--upload"), "traces"),
    (("sessions", "submit", SMALL | {"labels": "team"}, "--label", "a=b"), "labels: got 'team'"),
    (("sessions", "decide", "s1", "edit", "--plan", "{"), "--plan"),
]
PATHS = [
    (part, name)
    for part in ("model", "cluster", "training", "plan")
    for name in (*SMALL[part], "unknown")
] + [("constraints", name) for name in ("tp", "recompute", "max_changes", "max_memory_fraction")]  # fmt: skip
JUNK = st.sampled_from(
    [
        None, True, 0, -1, 1, 2, 3, 7, 8, 2.5, 1e300, 10**30, "", "x", "none", "bf16", [], [1], [2, "x"], {},
        {"a": 1},
    ]
)  # fmt: skip
PAIR = st.tuples(
    st.sampled_from([*Plan.model_fields, "other"]),
    st.sampled_from(["1", "4", "-1", "0", "1e9", "1e400", "null", "x", "[]", "{}", "true", '"2"', ""]),
)


@pytest.mark.parametrize(
    ("words", "says"), REFUSED, ids=[f"{words[0]} {says}"[:40] for words, says in REFUSED]
)
def test_what_is_wrong_is_named(asap: Asap, data_dir: Path, words: tuple[object, ...], says: str) -> None:
    result = asap(*words)
    assert result.refused, result
    assert says in result.err


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(PATHS), value=JUNK, json_only=st.booleans())
def test_junk_in_a_scenario_never_ends_in_a_traceback(
    asap: Asap, path: tuple[str, str], value: object, json_only: bool
) -> None:
    raw = copy.deepcopy(SMALL)
    raw.setdefault(path[0], {})[path[1]] = value
    result = asap("optimize", raw, *(("--json",) if json_only else ()))
    assert result.status in (0, 2, 3), result.err
    assert result.err.count("\n") == (0 if result.status == 0 else 1)
    assert bool(result.out) == (result.status == 0)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(PAIR, min_size=1, max_size=3))
def test_junk_in_a_plan_never_ends_in_a_traceback(asap: Asap, pairs: list[tuple[str, str]]) -> None:
    plan = ",".join(f"{name}={value}" for name, value in pairs)
    result = asap(*EXPLAIN, plan, "--json")
    assert result.status in (0, 2), result.err
    assert result.err.count("\n") == (0 if result.status == 0 else 1)
