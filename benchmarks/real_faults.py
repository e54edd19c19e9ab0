"""Real faults on this machine: gloo over hosts with slow links (namespaces), and a rank that stands still.

    make bench NAME=real_faults        # as root; alone, or other programs are found as well

Four hosts of one core train with FSDP over links of 400 Mbit/s (`benchmarks/testbed`), and their traces are
diagnosed beside the scenario. Gloo's traces name no groups, so that no one can say which link is slow.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.model.predict import predict
from tools.scenario import parse_scenario
from tools.trace.causes import FAULTS
from tools.trace.links import device_of
from tools.trace.match import match_scenario
from tools.trace.report import analyse_folder

REPO = Path(__file__).resolve().parents[1]
HOSTS, MBIT = 4, 400
STOPPED_S, RUNNING_S = 0.15, 0.05
JOB = {
    "model": {
        "name": "wide", "num_hidden_layers": 3, "hidden_size": 512, "intermediate_size": 1024,
        "num_attention_heads": 8, "vocab_size": 512,
    },
    "cluster": {
        "device": "cpu", "num_devices": HOSTS, "devices_per_node": 1,
        "overrides": {"inter_node_gbps_per_device": MBIT / 1000},
    },
    "training": {
        "seq_len": 64, "global_batch_size": 8, "precision": "fp32", "framework": "torch-fsdp2",
    },
    "plan": {
        "tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": HOSTS, "dp_shard": HOSTS, "zero_stage": 3,
        "micro_batch_size": 2, "recompute": "none",
    },
}  # fmt: skip


@dataclass(frozen=True)
class RealFault:
    name: str
    causes: frozenset[str]
    """Any is right; empty: no fault may be found."""
    ranks: tuple[int, ...] = ()
    slow: tuple[int, ...] = ()
    """Hosts, counted from 1, whose link has a fifth of its rate."""
    stopped: int | None = None
    """The rank that stands still three quarters of the time."""


LINK = frozenset({"slow_link"})
CASES = (
    RealFault("healthy", frozenset()),
    RealFault("one link at a fifth", LINK, slow=(3,)),
    RealFault("all links at a fifth", LINK, slow=(1, 2, 3, 4)),
    RealFault("rank 2 stands still", frozenset({"late_host", "slow_device"}), (2,), stopped=2),
)


def run(fault: RealFault, folder: Path) -> None:
    (folder / "job.json").write_text(json.dumps(JOB))
    slow = [word for host in fault.slow for word in ("--slow", f"{host}={MBIT / 5:g}")]
    words = f"--hosts {HOSTS} --ranks {HOSTS} --mbit {MBIT} --steps 1 --warmup 1 --profile-steps 3".split()
    command = [*(sys.executable, "-m", "benchmarks.testbed"), str(folder / "job.json"), "--out", str(folder)]
    with (folder / "log.txt").open("w") as log:
        job = subprocess.Popen([*command, *words, *slow], cwd=REPO, stdout=log, stderr=log)
        while job.poll() is None:
            pids = [] if fault.stopped is None else rank_pids(folder, fault.stopped)
            for number, pause_s in ((signal.SIGSTOP, STOPPED_S), (signal.SIGCONT, RUNNING_S)):
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                time.sleep(pause_s)
    if job.returncode:
        raise RuntimeError((folder / "log.txt").read_text()[-2000:])


def rank_pids(folder: Path, rank: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words, variables = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
            if str(folder).encode() in words and f"RANK={rank}".encode() in variables:
                found.append(int(process.name))
    return found


def main() -> int:
    scenario, right = parse_scenario(JOB), 0
    for fault in CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run(fault, folder)
            report = analyse_folder(folder / "traces", device=device_of(scenario.cluster), limits=None).report
        assert report.diagnosis is not None
        assert report.facts is not None
        match = match_scenario(report.facts, scenario, predict([scenario])[0].step_time_s)
        first = report.diagnosis.causes[0]
        is_named = first.cause in fault.causes if fault.causes else first.cause not in FAULTS
        is_right = match.agrees and is_named and (not fault.ranks or (*first.ranks,) == fault.ranks)
        right += is_right
        mark = "right" if is_right else "MISSED"
        print(f"{fault.name:22}{mark:8}{first.summary}, ranks {first.ranks}", flush=True)
    print(f"{right} of {len(CASES)}")
    return 0 if right == len(CASES) else 1


if __name__ == "__main__":
    raise SystemExit(main())
