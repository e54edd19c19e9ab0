"""Step times read from what training programs print and export: nine frameworks, three examples each."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from service.cli.main import main
from tools.errors import InputError
from tools.model.logs import read_log
from tools.model.run_tables import find_table
from tools.model.runs import parse_run
from tools.scenario import parse_scenario

REPO = Path(__file__).resolve().parents[3]
FILE = REPO / "examples" / "llama-3.1-70b-64xh100.json"
SCENARIO = parse_scenario(json.loads(FILE.read_text()))
BATCH, SEQ, DEVICES = 128, 8192, 64
STEP_S = 9.7
STEPS = 60
PLAN = SCENARIO.plan
assert PLAN is not None
ACCUMULATED = BATCH // (PLAN.dp * PLAN.micro_batch_size)
Line = Callable[[int, float, float], str]
"""A line of step n, which took so many seconds and ended so many seconds after the start."""


def clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


def stamp(seconds: float) -> str:
    return f"2026-08-10 {int(10 + seconds // 3600):02}:{int(seconds // 60 % 60):02}:{int(seconds % 60):02}"


def bar(n: int, at_s: float, rest: str = "") -> str:
    return f"{n}%|██▌       | {n}/1000 [{clock(at_s)}<2:15:01,  9.71s/it{rest}]"


PRINTED: dict[str, list[Line]] = {
    "Megatron-LM": [
        lambda n, s, t: (
            f" [{stamp(t)}.123456] iteration {n:>8}/  500 | consumed samples: 1280 | elapsed time per"
            f" iteration (ms): {s * 1e3:.1f} | throughput per GPU (TFLOP/s/GPU): 410.1 | lm loss: 8.1E+00 |"
        ),
        lambda n, s, t: (
            f"63:  iteration {n:>8}/ 15000 | consumed samples: 1280 | elapsed time per iteration (ms):"
            f" {s * 1e3:.1f} | learning rate: 3.000E-05 | global batch size: 128 | grad norm: 1.2 |"
        ),
        lambda n, s, t: (
            f"[{stamp(t)}][INFO][training:1251] - iteration= {n:>7}/  317892 | consumed_samples= 768 |"
            f" elapsed_time_per_iteration_ms={s * 1e3:.1f} | samples_per_second=15.969 |"
        ),
    ],
    "nanotron": [
        lambda n, s, t: (
            f"11/01 [INFO|DP=0|PP=0]: iteration: {n} / 100 | consumed_tokens: 1M |"
            f" elapsed_time_per_iteration_ms: {s:.4f}K | tokens_per_sec: 54.2K"
        ),
        lambda n, s, t: (
            f"{stamp(t)} [INFO|DP=0|PP=1|TP=0]: iteration: {n} / 100 | elapsed_time_per_iteration_ms:"
            f" {s:.3f}K | lm_loss: 11.2"
        ),
        lambda n, s, t: f"iteration: {n} / 9 | elapsed_time_per_iteration_ms: {s * 1e3:.0f} | lm_loss: 11.2",
    ],
    "torchtitan": [
        lambda n, s, t: (
            f"\x1b[31mstep: {n:>2}\x1b[32m loss:  8.1\x1b[33m memory: 61.20GiB(77.3%)\x1b[34m"
            f" tps: {BATCH * SEQ / DEVICES / s:,.1f}\x1b[36m tflops: 312\x1b[35m mfu: 31%\x1b[39m"
        ),
        lambda n, s, t: (
            f"[rank0]:[titan] {stamp(t)},123 - root - INFO - step: {n}  loss: 7.2  grad_norm: 1.1"
            f"  memory: 61.20GiB(77%)  tps: {BATCH * SEQ / DEVICES / s:,.2f}  tflops: 300.1  mfu: 31%"
        ),
        lambda n, s, t: (
            f"step: {n}  loss: 12.2365  memory: 81.67GiB(85.93%)  tps: {BATCH * SEQ / DEVICES / s:.3f}"
        ),
    ],
    "MaxText": [
        lambda n, s, t: (
            f"completed step: {n}, seconds: {s:.3f}, TFLOP/s/device: 412.1, Tokens/s/device: 1689.2,"
            " total_weights: 1048576, loss: 10.812"
        ),
        lambda n, s, t: (
            f"I1101 10:00:00.123 139 metric_logger.py:141] completed step: {n}, seconds: {s:.3f},"
            " TFLOP/s/device: 412.1, Tokens/s/device: 1689.2, total_weights: 1048576, loss: 9.1, lm_loss: 9.0"
        ),
        lambda n, s, t: f"0: completed step: {n}, seconds: {s:.3f}, TFLOP/s/device: 0.021, loss: 10.863",
    ],
    "NeMo": [
        lambda n, s, t: (
            f"Training epoch 0, iteration {n}/149 | lr: 3e-05 | consumed_samples: 121 |"
            f" global_batch_size: 128 | global_step: {n} | train_step_timing in s: {s:.4g}"
            " | val_loss: 4.106"
        ),
        lambda n, s, t: (
            f"Epoch 0: :   3%|▎         | {n}/301500 [{clock(t)}<55:37:46, v_num=0-56,"
            f" global_step={n}.0, consumed_samples=6.3e+5, train_step_timing in s={s:.3f}]"
        ),
        lambda n, s, t: (
            f" [{stamp(t)}] iteration {n:>8}/  100 | consumed samples: 1280 | elapsed time per"
            f" iteration (ms): {s * 1e3:.1f} | learning rate: 1.2e-5 | global batch size: 128 | loss: 1.1 |"
        ),
    ],
    "DeepSpeed": [
        lambda n, s, t: (
            f"[{stamp(t)},654] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/global_step={n},"
            f" RunningAvgSamplesPerSec=11.02, CurrSamplesPerSec={BATCH / s}, MemAllocated=1.87GB,"
            " MaxMemAllocated=61.2GB"
        ),
        lambda n, s, t: (
            f"worker-0: [{stamp(t)},424] [INFO] [timer.py:199:stop] epoch=1/micro_step={n}/global_step="
            f"{n}, RunningAvgSamplesPerSec=6.6, CurrSamplesPerSec={BATCH / s}, MaxMemAllocated=10.55GB"
        ),
        lambda n, s, t: (
            f"[{stamp(t)},424] [INFO] [timer.py:199:stop] epoch=1/micro_step={n}/global_step={n},"
            f" CurrSamplesPerSec=9.9, MaxMemAllocated=10.55GB\n iteration {n}/ 9 |"
            f" elapsed time per iteration (ms): {s * 1e3:.1f} | lm loss: 5.9E+00 | samples per second: 13.1 |"
        ),
    ],
    "Automodel": [
        lambda n, s, t: (
            f"{stamp(t)} | INFO | root | step {n} | epoch 0 | loss 0.6974 | grad_norm 1.5436 |"
            " lr 1.00e-05 | mem 61.20 GiB | tps 11278.56(1409.82/gpu) | num_label_tokens 21541"
        ),
        lambda n, s, t: (
            f"{stamp(t)} | INFO | nemo_automodel.recipes.llm.train_ft | step {n} | epoch 1 | loss 0.8 |"
            " lr 1.00e-05 | mem 29.67 GiB | tps 13746.23(1718.28/gpu) | num_label_tokens 29550"
        ),
        lambda n, s, t: (
            f"[default0]:{stamp(t)},501 | INFO | root | step {n} | loss 0.8 | mem 29.67 GiB | tps 13.1"
            "(1.2/gpu)"
        ),
    ],
    "Lightning": [
        lambda n, s, t: f"Epoch 0:  {bar(n * ACCUMULATED, t, ', v_num=0, train_loss=2.1')}",
        lambda n, s, t: f"\rEpoch 12:   {bar(n * ACCUMULATED, t)}\r",
        lambda n, s, t: f"Epoch 0: 5%|▌ | {n * ACCUMULATED}/9000 [{clock(t)}<1:02:03, 0.29it/s, v_num=abc1]",
    ],
    "Trainer": [
        lambda n, s, t: (
            f"{bar(n, t)}\r{{'loss': 2.075, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'epoch': 0.04}}"
        ),
        lambda n, s, t: f"\r  {bar(n, t)}",
        lambda n, s, t: f"rank0:  {n}%|▍  | {n}/3000 [{clock(t)}<7:59:10, 9.71s/it]\x1b[A",
    ],
}
CASES = [
    pytest.param(line, id=f"{name} {i}") for name, lines in PRINTED.items() for i, line in enumerate(lines, 1)
]


def times_s() -> list[float]:
    """Slow at first, with small noise, and one step that waits for a checkpoint."""
    times = [STEP_S * (1 + 0.004 * ((7 * n) % 5 - 2)) for n in range(STEPS)]
    return [40.0, 15.0, *times[2:40], 95.0, *times[41:]]


def log_of(line: Line) -> bytes:
    at_s, lines = 0.0, []
    for n, taken_s in enumerate(times_s(), 1):
        at_s += taken_s
        lines.append(line(n, taken_s, at_s))
    return "\n".join(["starting", *lines, "done"]).encode()


@pytest.mark.parametrize("line", CASES)
def test_only_steady_steps_count(line: Line) -> None:
    assert read_log(log_of(line), SCENARIO).measured.step_time_s == pytest.approx(STEP_S, rel=0.01)


def event_file(scalars: list[tuple[float, int, str, float]], *, as_tensor: bool = False) -> bytes:
    """As TensorFlow's and PyTorch's writers make it, checksums left out."""

    def field(number: int, payload: bytes) -> bytes:
        return bytes([number << 3 | 2, len(payload)]) + payload

    def varint(value: int) -> bytes:
        head, rest = value & 0x7F, value >> 7
        return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])

    data = b""
    for at_s, step, tag, value in scalars:
        number = struct.pack("<f", value)
        stored = (
            field(8, bytes([1 << 3, 1]) + field(4, number)) if as_tensor else bytes([2 << 3 | 5]) + number
        )
        summary = field(1, field(1, tag.encode()) + stored)
        event = (
            bytes([1 << 3 | 1]) + struct.pack("<d", at_s) + bytes([2 << 3]) + varint(step) + field(5, summary)
        )
        data += struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4)
    return data


def rows(text: Line) -> str:
    at_s, lines = 0.0, []
    for n, taken_s in enumerate(times_s(), 1):
        at_s += taken_s
        lines.append(text(n, taken_s, at_s))
    return "\n".join(lines)


def ends() -> list[tuple[int, float]]:
    at_s, found = 1.7e9, []
    for n, taken_s in enumerate(times_s(), 1):
        at_s += taken_s
        found.append((n, at_s))
    return found


EXPORTED: dict[str, str | bytes] = {
    "W&B, a column": "Step,train/step_time\n" + rows(lambda n, s, t: f"{n},{s}"),
    "W&B, milliseconds": "_step,perf/step_time_ms\n" + rows(lambda n, s, t: f"{n},{s * 1e3}"),
    "W&B, history": rows(
        lambda n, s, t: json.dumps({"_step": n, "_runtime": t, "_timestamp": 1.7e9 + t, "train/loss": 2.1})
    ),
    "W&B of the Trainer": "_step,_timestamp,train/global_step,train/loss\n"
    + rows(lambda n, s, t: f"{n},{1.7e9 + 10 * t},{10 * n},2.1"),
    "MLflow, a table": "run_id,key,value,step,timestamp\n"
    + rows(lambda n, s, t: f"abc,loss,2.1,{n},{int((1.7e9 + t) * 1e3)}"),
    "MLflow, a metric's file": rows(lambda n, s, t: f"{int((1.7e9 + t) * 1e3)} 2.1 {n}"),
    "TensorBoard, CSV": "Wall time,Step,Value\n" + rows(lambda n, s, t: f"{1.7e9 + t},{n},8.1"),
    "Lightning's CSVLogger": "step,device/batches_per_sec\n" + rows(lambda n, s, t: f"{n},{1 / s}"),
    "TensorBoard, events": event_file([(at_s, n, "train/loss", 2.1) for n, at_s in ends()]),
    "TensorBoard, tensors": event_file([(at_s, n, "loss", 2.1) for n, at_s in ends()], as_tensor=True),
    "TensorBoard, a step time": event_file(
        [(0.0, n, "perf/step_time_s", taken_s) for n, taken_s in enumerate(times_s())]
    ),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_exports_are_read_by_their_columns_or_their_clock(name: str) -> None:
    data = EXPORTED[name]
    measured = read_log(data if isinstance(data, bytes) else data.encode(), SCENARIO).measured
    assert measured.step_time_s == pytest.approx(STEP_S, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kind", "gib"), [("torchtitan", "reserved", 61.2), ("DeepSpeed", "allocated", 61.2)]
)
def test_the_peak_of_memory_has_its_kind(name: str, kind: str, gib: float) -> None:
    measured = read_log(log_of(PRINTED[name][0]), SCENARIO).measured
    assert (measured.peak_memory_gib, measured.peak_memory_kind) == (gib, kind)


def test_memory_of_exports_is_read_with_its_kind() -> None:
    text = "_step,train/step_time,memory/max_reserved(GiB),system.gpu.0.memoryAllocatedBytes,tp\n"
    history = (text + rows(lambda n, s, t: f"{n},{s},61.5,{70 * 2**30},8")).encode()
    assert find_table(history) is None, "a history of steps is one run, also with a column that is a field"
    measured = read_log(history, SCENARIO).measured
    assert (measured.peak_memory_gib, measured.peak_memory_kind) == (61.5, "reserved")
    assert measured.device_memory_used_gib == 70


def test_an_event_file_is_no_table() -> None:
    assert find_table(event_file([(at_s, n, "train/loss", 2.1) for n, at_s in ends()])) is None


def test_megatrons_memory_report_is_in_mib() -> None:
    report = b"\n[Rank 0] (after 1 iterations) memory (MB) | allocated: 4.0 | max reserved: 65536.0"
    assert read_log(log_of(PRINTED["Megatron-LM"][0]) + report, SCENARIO).measured.peak_memory_gib == 64.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "Step,loss\n1,2\n2,3\n",
        PRINTED["MaxText"][0](1, 5.0, 5.0),
        "\x00" * 64,
        "\xff" * 40,
        "[1, 2]",
    ],
)
def test_a_text_without_steps_is_refused_with_what_is_read(text: str) -> None:
    with pytest.raises(InputError, match="at least 3 steps"):
        read_log(text.encode("latin-1", "replace"), SCENARIO)


def test_a_row_is_what_calibrate_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(log_of(PRINTED["Automodel"][0]))
    assert main(["import-runs", str(log), "--scenario", str(FILE)]) == 0
    run = parse_run(json.loads(capsys.readouterr().out))
    assert (run.id, run.source) == ("train", "import")
    assert run.measured.step_time_s == pytest.approx(STEP_S, rel=0.01)
    assert run.scenario.plan == SCENARIO.plan
