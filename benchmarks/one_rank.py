"""One rank with the others faked, and a probe of the nodes, beside the real job: five plans on shaped links.

    python -m benchmarks.one_rank [--rounds N] [--mbit N]

The hosts are probed (tools/probe), and each plan predicted with what the probe says. Then
`asap dry-run --measure` of each plan on one core, and the same plan by gloo over two hosts as network
namespaces, one rank and one core each, on links of 500 Mbit/s; in turn, so that what else runs here slows
both alike. The shortest of the rounds counts on either side, and the load meanwhile is printed. As root.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median

from testbed.record import RESULT
from tools.model.predict import predict
from tools.model.update import calibrate
from tools.physics.memory import GIB
from tools.probe.report import ProbeReport, read_probe, report_of, settings_for
from tools.scenario import parse_scenario

ON_HOSTS = (
    "import sys; from benchmarks.testbed.hosts import run_on_hosts; "
    "sys.exit(run_on_hosts(['tools.probe.worker', *sys.argv[2:]], 2, 2, float(sys.argv[1]), True))"
)
PROBE_S = 15.0
REPO = Path(__file__).resolve().parents[1]
BARS = {"the step after a probe": 0.12, "the step with one rank": 0.12, "its memory": 0.05}
MODEL = {
    "name": "dense-20m", "num_hidden_layers": 8, "hidden_size": 384, "intermediate_size": 1152,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192,
}  # fmt: skip
TRAINING = {"seq_len": 64, "global_batch_size": 8, "precision": "fp32", "framework": "torch-fsdp2"}
ALONE = {"tp": 1, "pp": 1, "cp": 1, "dp": 1, "dp_shard": 1, "zero_stage": 0, "micro_batch_size": 2}
PLAIN_MALLOC = ("env", "MALLOC_ARENA_MAX=1", "MALLOC_MMAP_THRESHOLD_=262144")
"""Freed memory goes back at once: a process then holds what its tensors need, as a GPU's allocator counts."""
PLANS: Mapping[str, Mapping[str, int]] = {
    "FSDP": {"dp": 2, "dp_shard": 2, "zero_stage": 3, "micro_batch_size": 4},
    "DDP": {"dp": 2},
    "tensor parallel": {"tp": 2, "micro_batch_size": 4},
    "pipeline": {"pp": 2},
    "context parallel": {"cp": 2, "micro_batch_size": 4},
}


def probed(folder: Path, mbit: float) -> ProbeReport:
    """As `asap probe` runs it, on the hosts; busy ones too, as their load is printed."""
    settings = folder / "settings.json"
    settings.write_text(json.dumps(asdict(settings_for("cpu", (), PROBE_S, anyway=True))))
    command = [sys.executable, "-c", ON_HOSTS, str(mbit), str(settings), "--out", str(folder)]
    subprocess.run(command, cwd=REPO, check=True, stderr=subprocess.DEVNULL)
    return report_of(read_probe(folder))


def real(file: Path, out: Path, mbit: float) -> tuple[float, float]:
    """Seconds and GiB of the fullest rank."""
    words = ["--hosts", "2", "--ranks", "2", "--pins", "--mbit", str(mbit), "--steps", "5", "--warmup", "1"]
    command = [
        *PLAIN_MALLOC,
        sys.executable,
        "-m",
        "benchmarks.testbed",
        str(file),
        "--out",
        str(out),
        *words,
    ]
    subprocess.run(command, cwd=REPO, check=True, stderr=subprocess.DEVNULL)
    result = json.loads((out / RESULT).read_text())
    memory = zip(result["peak_memory_bytes"], result["before_model_memory_bytes"], strict=True)
    return median(result["step_times_s"]), max(peak - before for peak, before in memory) / GIB


def faked(file: Path) -> tuple[float, float]:
    asap = str(Path(sys.executable).with_name("asap"))
    core = str(min(os.sched_getaffinity(0)))
    command = [
        *PLAIN_MALLOC,
        "taskset",
        "--cpu-list",
        core,
        asap,
        "dry-run",
        "--measure",
        "--json",
        str(file),
    ]
    measured = json.loads(subprocess.run(command, cwd=REPO, check=True, capture_output=True).stdout)
    return measured["step_time_s"], measured["peak_memory_gib"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mbit", type=float, default=500)
    args = parser.parse_args()
    link = {"inter_node_gbps_per_device": args.mbit / 1000}
    cluster = {"device": "cpu", "num_devices": 2, "devices_per_node": 1, "overrides": link}
    errors: list[tuple[float, float, float]] = []
    print(
        f"{'plan':18}{'step: probe':>12}{'error':>8}{'faked':>9}{'error':>8}{'real':>9}"
        f"{'memory: faked':>16}{'real':>11}{'error':>8}{'load':>7}"
    )
    with tempfile.TemporaryDirectory() as folder:
        report = probed(Path(folder), args.mbit)
        calibration = calibrate([report.run]).calibration
        for name, degrees in PLANS.items():
            file = Path(folder) / "scenario.json"
            plan = {**ALONE, **degrees, "ep": 1, "recompute": "none", "sequence_parallel": False}
            described = {"model": MODEL, "cluster": cluster, "training": TRAINING, "plan": plan}
            file.write_text(json.dumps(described))
            seen = {**described, "cluster": {**cluster, "overrides": {**link, **report.overrides}}}
            probe_s = predict([parse_scenario(seen)], calibration)[0].step_time_s
            rounds = [(faked(file), real(file, Path(folder) / name, args.mbit)) for _ in range(args.rounds)]
            (fake_s, fake_gib), (real_s, real_gib) = (
                (min(each[side][0] for each in rounds), median(each[side][1] for each in rounds))
                for side in (0, 1)
            )
            errors.append((probe_s / real_s - 1, fake_s / real_s - 1, fake_gib / real_gib - 1))
            print(
                f"{name:18}{probe_s:>11.3f}s{errors[-1][0]:>+8.1%}{fake_s:>8.3f}s{errors[-1][1]:>+8.1%}{real_s:>8.3f}s"
                f"{fake_gib:>12.3f} GiB{real_gib:>7.3f} GiB{errors[-1][2]:>+8.1%}{os.getloadavg()[0]:>7.1f}",
                flush=True,
            )
    means = [mean(abs(each[kind]) for each in errors) for kind in range(len(BARS))]
    for (what, bar), error in zip(BARS.items(), means, strict=True):
        print(f"mean error of {what}: {error:.1%} (bar {bar:.0%})")
    return 0 if all(error <= bar for error, bar in zip(means, BARS.values(), strict=True)) else 1


if __name__ == "__main__":
    sys.exit(main())
