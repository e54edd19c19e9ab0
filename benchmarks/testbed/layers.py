"""Two nodes predicted from one, on the testbed: a few layers measured on one host, whole plans for two.

    python -m benchmarks.testbed.layers [--rounds N]

Hosts have a core and two ranks each, and links of 500 Mbit/s; as root and on an idle machine. Every plan of
two workloads whose tensor, context and expert groups fit one host is run over two hosts, and the samples of
`tools.probe.layers` on one; what was measured stays in build/testbed-layers, and a run goes on where the last
one stopped. `make bench NAME=calibrate` prints the errors of the predictions without and with the samples.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.testbed.many import SECONDS
from benchmarks.testbed.workloads import LLAMA, Workload, plan_name
from testbed.record import RESULT
from tools.model.predict import predict
from tools.model.runs import Measured, Run
from tools.model.update import calibrate
from tools.probe.layers import samples_of
from tools.scenario import Scenario

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "build" / "testbed-layers"
MBIT, RANKS_PER_HOST = 500, 2
STEPS, WARMUP, ROUNDS = 3, 1, 2
LINK = {"inter_node_gbps_per_device": MBIT / 1000 / RANKS_PER_HOST}
LIMITS = {"sequence_parallel": False, "tp": [1, 2], "pp": [1, 2], "cp": [1, 2], "micro_batch_size": [2]}
WORKLOADS = (
    Workload(
        "dense",
        {**LLAMA, "num_hidden_layers": 6, "hidden_size": 320, "intermediate_size": 896, "vocab_size": 2048},
        seq_len=256,
        global_batch_size=8,
        limits={**LIMITS, "zero_stage": [0, 3]},
        machine=LINK,
    ),
    Workload(
        "moe",
        {
            **LLAMA,
            "num_hidden_layers": 6,
            "hidden_size": 256,
            "intermediate_size": 768,
            "vocab_size": 2048,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
        },
        seq_len=128,
        global_batch_size=8,
        limits={**LIMITS, "tp": 1, "cp": 1, "ep": [1, 2], "zero_stage": [0, 3]},
        machine=LINK,
    ),
)


def plans_of(workload: Workload) -> list[Scenario]:
    return [workload.scenario.model_copy(update={"plan": plan}) for plan in workload.plans()]


def place_of(scenario: Scenario, folder: Path) -> Path:
    assert scenario.plan is not None
    layers, batch = scenario.model.num_hidden_layers, scenario.training.global_batch_size
    return folder / f"{plan_name(scenario.plan)}-l{layers}-b{batch}"


def folders(workload: Workload, root: Path) -> tuple[tuple[Path, int, list[Scenario]], ...]:
    """Where the runs of one host and of two go, how many hosts, and their scenarios."""
    whole = plans_of(workload)
    samples = {s.model_dump_json(): s for plan in whole for s in samples_of(plan)}
    return (
        (root / f"{workload.name}-one", 1, list(samples.values())),
        (root / f"{workload.name}-two", 2, whole),
    )


def measure(rounds: int, root: Path = FOLDER) -> None:
    for number in range(1, rounds + 1):
        for workload in WORKLOADS:
            for folder, hosts, scenarios in folders(workload, root / f"round-{number}"):
                for scenario in scenarios:
                    place = place_of(scenario, folder)
                    place.mkdir(parents=True, exist_ok=True)
                    described = scenario.model_dump(mode="json", exclude_none=True)
                    (place / "scenario.json").write_text(json.dumps(described))
                if all((place_of(scenario, folder) / RESULT).exists() for scenario in scenarios):
                    continue
                (folder / SECONDS).write_text("100000")
                command = [sys.executable, "-m", "benchmarks.testbed", str(folder), "--out", str(folder)]
                command += ["--hosts", str(hosts), "--ranks", str(RANKS_PER_HOST * hosts), "--pins"]
                command += ["--mbit", str(MBIT), "--steps", str(STEPS), "--warmup", str(WARMUP)]
                subprocess.run(command, cwd=REPO, check=True)


@dataclass(frozen=True)
class Predicted:
    name: str
    measured_s: float
    before_s: float
    after_s: float

    @property
    def errors(self) -> tuple[float, float]:
        """Without the samples and with them."""
        return abs(self.before_s / self.measured_s - 1), abs(self.after_s / self.measured_s - 1)


def results(root: Path = FOLDER) -> Iterator[Predicted]:
    """Plans that were measured with all their samples."""
    for workload in WORKLOADS:
        for scenario in plans_of(workload):
            measured_s = _best_s(scenario, root, f"{workload.name}-two")
            samples = [(s, _best_s(s, root, f"{workload.name}-one")) for s in samples_of(scenario)]
            if measured_s is None or any(seconds is None for _, seconds in samples):
                continue
            runs = [
                Run(scenario=s, measured=Measured(step_time_s=seconds), id=str(i))
                for i, (s, seconds) in enumerate(samples)
            ]
            before_s = predict([scenario])[0].step_time_s
            after_s = predict([scenario], calibrate((), own=runs).calibration)[0].step_time_s
            assert scenario.plan is not None
            yield Predicted(f"{workload.name} {plan_name(scenario.plan)}", measured_s, before_s, after_s)


def _best_s(scenario: Scenario, root: Path, kind: str) -> float | None:
    """The shortest step of all rounds: what else runs on the machine only adds."""
    files = [place_of(scenario, folder) / RESULT for folder in sorted(root.glob(f"round-*/{kind}"))]
    steps = [s for file in files if file.exists() for s in json.loads(file.read_text())["step_times_s"]]
    return min(steps, default=None)


def print_layers() -> None:
    rows = list(results())
    if not rows:
        print("layers on one host: not measured here (python -m benchmarks.testbed.layers, as root)")
        return
    for row in rows:
        before, after = row.errors
        print(f"{row.name:<34}{row.measured_s:>8.3f} s{before:>8.1%}{after:>8.1%}")
    before, after = (sum(row.errors[i] for row in rows) / len(rows) for i in (0, 1))
    print(
        f"layers measured on one host, {len(rows)} plans predicted for two: mean error {after:.1%}, "
        f"{before:.1%} without ({after / before:.2f})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"of all plans ({ROUNDS})")
    measure(parser.parse_args().rounds)
    print_layers()
    return 0


if __name__ == "__main__":
    sys.exit(main())
