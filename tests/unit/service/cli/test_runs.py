"""`asap runs`: what is found in rows, what is added from tables and logs, and which runs are near."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.cli.commands import EXAMPLE, Asap
from tools.model.calibration import shipped_calibration
from tools.model.predict import predict
from tools.scenario import parse_scenario

SCENARIO: dict[str, Any] = json.loads(EXAMPLE.read_text())
PREDICTED = predict([parse_scenario(SCENARIO)], shipped_calibration().formulas)[0]
RATE = PREDICTED.tokens_per_s_per_device


def row(id: str, factor: float = 1.05, **changes: dict[str, Any]) -> dict[str, Any]:
    """A run `factor` times as long as predicted; `plan`, `training` and `measured` change its fields."""
    measured = {"step_time_s": PREDICTED.step_time_s * factor, "tokens_per_s_per_device": RATE / factor}
    scenario = {
        **SCENARIO,
        "plan": {**SCENARIO["plan"], **changes.get("plan", {})},
        "training": {**SCENARIO["training"], **changes.get("training", {})},
    }
    return {"id": id, "scenario": scenario, "measured": {**measured, **changes.get("measured", {})}}


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in rows).encode()


@pytest.mark.parametrize(
    ("faulty", "field", "word"),
    [
        (row("x", measured={"step_time_s": PREDICTED.step_time_s * 1e3}), "measured.step_time_s", "millisec"),
        (
            row("x", measured={"step_time_s": PREDICTED.step_time_s * 1e3, "tokens_per_s_per_device": None}),
            "measured.step_time_s",
            "milliseconds",
        ),
        (row("x", measured={"step_time_s": PREDICTED.step_time_s / 60}), "measured.step_time_s", "minutes"),
        (row("x", measured={"peak_memory_gib": 61_000}), "measured.peak_memory_gib", "MiB"),
        (
            row("x", training={"global_batch_size": 128 * 8192}),
            "scenario.training.global_batch_size",
            "tokens",
        ),
        (
            row("x", training={"global_batch_size": 64}),
            "scenario.training.global_batch_size",
            "128 sequences",
        ),
        (
            row("x", plan={"tp": 2, "dp": 8}, training={"gradient_dtype": "fp32"}),
            "scenario.plan",
            "swapped",
        ),
        (row("x", plan={"tp": 3}), "scenario.plan.dp", "must equal num_devices"),
        (row("x", measured={"step_time_s": PREDICTED.step_time_s / 10}), "measured.step_time_s", "peak"),
        (row("clean", 1.0503), "id", "the scenario and the time of 'clean'"),
        ({**row("x"), "confidnce": "high"}, "confidnce", "did you mean confidence"),
        (
            row("x", measured={"step_time_s": None, "peak_memory_gib": 60.0}),
            "measured.step_time_s",
            "missing",
        ),
    ],
)
def test_a_fault_is_found_at_its_field(asap: Asap, faulty: dict[str, Any], field: str, word: str) -> None:
    if faulty["id"] == "clean":
        faulty = {**faulty, "id": "again"}
    result = asap("runs", "check", "--json", lines(row("clean"), faulty))
    clean, found = result.lines
    is_error = any(each["severity"] == "error" for each in found["findings"])
    assert result.status == (2 if is_error else 0)
    assert clean == {"row": "line 1", "id": "clean", "findings": []}
    assert [each for each in found["findings"] if each["field"] == field and word in each["message"]]


def test_a_table_becomes_rows_and_those_with_an_error_are_refused(asap: Asap, tmp_path: Path) -> None:
    step_s, out = PREDICTED.step_time_s, tmp_path / "out.jsonl"
    table = tmp_path / "week.md"
    table.write_text(
        "Results of the week\n\n| id | tp | pp | tokens_per_s_per_device | step_time_s |\n|--|--|--|--|--|\n"
        f"| a | 8 | 4 | | {step_s:.3f} |\n| b | 8 | 4 | {RATE * 1.03:,.1f} | |\n| c | 4 | 2 | | OOM |\n"
        f"| d | 8 | 4 | | {step_s * 1000:.1f} |\n"
    )
    words = ("runs", "add", str(table), "--scenario", str(EXAMPLE), "--out", str(out))
    result = asap(*words)
    assert result.status == 2
    assert "row 4 (d): error: measured.step_time_s: " in result.out
    assert "3 rows added" in result.err
    first, second, third = (json.loads(line) for line in out.read_text().splitlines())
    assert (first["id"], first["source"], first["scenario"]["plan"]["dp"]) == ("a", "week", 2)
    assert second["measured"]["step_time_s"] == pytest.approx(step_s / 1.03, rel=1e-3)
    assert (third["crashed"], third["scenario"]["plan"]["dp"]) == (True, 8)
    assert "dp_shard" not in third["scenario"]["plan"]
    again = asap(*words)  # what was added is known now
    assert "row 1 (a): error: id: 'a' is in " in again.out
    assert len(out.read_text().splitlines()) == 3
    assert asap("runs", "check", str(out)).status == 0


def test_a_csv_names_its_wrong_column_and_a_log_gives_one_row(asap: Asap, tmp_path: Path) -> None:
    out, table, log = tmp_path / "out.jsonl", tmp_path / "table.csv", tmp_path / "train.log"
    table.write_text("tp,step_tme_s\n8,20\n")
    words = ("--scenario", str(EXAMPLE), "--out", str(out))
    result = asap("runs", "add", str(table), *words)
    assert result.refused
    assert "step_tme_s" in result.err
    log.write_text(f"elapsed time per iteration (ms): {PREDICTED.step_time_s * 1e3:.1f} | loss: 2\n" * 10)
    assert asap("runs", "add", str(log), *words).status == 0
    (added,) = (json.loads(line) for line in out.read_text().splitlines())
    assert added["measured"]["step_time_s"] == pytest.approx(PREDICTED.step_time_s, rel=1e-3)


def test_the_nearest_own_run_is_first_with_what_differs(asap: Asap, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_bytes(lines(row("other", training={"seq_len": 4096}), row("same")))
    result = asap("runs", "near", str(EXAMPLE), "--runs", str(own), "-n", "2", "--json")
    same, other = result.lines
    assert (same["id"], same["distance"], same["differs"]) == ("same", 0.0, [])
    assert same["measured_step_time_s"] == pytest.approx(same["predicted_step_time_s"] * 1.05)
    assert same["tokens_per_s_per_device"] == pytest.approx(RATE / 1.05)
    assert other["distance"] > 0
    text = asap("runs", "near", str(EXAMPLE), "--runs", str(own), "-n", "1").out
    assert "same (upload)" in text
    assert "differs: nothing" in text
