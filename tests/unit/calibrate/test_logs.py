"""Step times read from what training programs print and export."""

import json
from pathlib import Path

import pytest

from service.cli.main import main
from tools.calibrate.runs import parse_run, read_log
from tools.errors import InputError
from tools.scenario import parse_scenario

REPO = Path(__file__).resolve().parents[3]
FILE = REPO / "examples" / "llama-3.1-70b-64xh100.json"
SCENARIO = parse_scenario(json.loads(FILE.read_text()))

MEGATRON = (
    " [2026-11-01 10:00:00] iteration {n:>8}/  500 | consumed samples: 1280 | elapsed time per iteration"
    " (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 410.1 | learning rate: 1.0E-04 | lm loss: 8.1E+00 |"
)
MEMORY = (
    "[Rank 0] (after 1 iterations) memory (MB) | allocated: 40000.0 | max allocated: 61440.0 | "
    "max reserved: 65536.0"
)
NANOTRON = (
    "11/01 [INFO|DP=0]: iteration: {n} / 100 | consumed_tokens: 1M | "
    "elapsed_time_per_iteration_ms: {k:.2f}K |"
)
TITAN = (
    "\x1b[31mstep: {n}\x1b[0m  loss:  8.1  memory: 61.20GiB(77.3%)  tps: {tps:,.0f}  tflops: 312  mfu: 31%"
)


def test_megatron_lines_give_the_median_after_warmup_and_the_peak() -> None:
    times_ms = [30000.0, 9700.0, 9710.0, 9690.0, 9700.0, 9705.0]
    lines = [MEGATRON.format(n=n, ms=ms) for n, ms in enumerate(times_ms)]
    run = read_log("\n".join([*lines, MEMORY]), SCENARIO)
    assert run.measured.step_time_s == pytest.approx(9.7)
    assert run.measured.peak_memory_gib == 64.0


def test_nanotron_lines_have_thousands() -> None:
    text = "\n".join(NANOTRON.format(n=n, k=3.26) for n in range(5))
    assert read_log(text, SCENARIO).measured.step_time_s == pytest.approx(3.26)


def test_torchtitan_counts_tokens_per_device() -> None:
    training, devices = SCENARIO.training, SCENARIO.cluster.num_devices
    rate = training.global_batch_size * training.seq_len / devices / 9.7
    run = read_log("\n".join(TITAN.format(n=n, tps=rate) for n in range(5)), SCENARIO)
    assert run.measured.step_time_s == pytest.approx(9.7, rel=1e-3)
    assert run.measured.peak_memory_gib == 61.2


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("Step,train/step_time", "{n},9.7"),
        ("_step,perf/step_time_ms", "{n},9700"),
        ("Wall time,Step,Value", "{t:.1f},{step},8.1"),
    ],
)
def test_exported_tables_are_read_by_their_columns(header: str, row: str) -> None:
    rows = [row.format(n=n, t=1e9 + 97.0 * n, step=10 * n) for n in range(8)]
    assert read_log("\n".join([header, *rows]), SCENARIO).measured.step_time_s == pytest.approx(9.7)


@pytest.mark.parametrize("text", ["", "hello", "Step,loss\n1,2\n2,3\n", MEGATRON.format(n=1, ms=5.0)])
def test_a_text_without_steps_is_refused_with_what_is_read(text: str) -> None:
    with pytest.raises(InputError, match="at least 3 steps"):
        read_log(text, SCENARIO)


def test_a_row_is_what_calibrate_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(MEGATRON.format(n=n, ms=9700.0) for n in range(5)))
    assert main(["import-runs", str(log), "--scenario", str(FILE)]) == 0
    run = parse_run(json.loads(capsys.readouterr().out))
    assert (run.id, run.source) == ("train", "import")
    assert run.measured.step_time_s == pytest.approx(9.7)
    assert run.scenario.plan == SCENARIO.plan
