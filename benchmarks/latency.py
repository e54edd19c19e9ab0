"""What somebody waits for who predicts and searches: a cold command, a warm prediction, a search by size.

    python -m benchmarks.latency [--rounds N] [--record]

Seconds are CPU seconds of the process, the best of the rounds: the clock of a shared machine says more about
its neighbours. The curve decides every legal plan of a 70B on 64 to 65,536 H100 and prints seconds beside the
number of plans; time grows no faster than plans do if the last column does not rise.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import compare
from service.cli.parser import positive_number
from tools.model.predict import predict
from tools.scenario import parse_scenario
from tools.search.constraints import Constraints, Space
from tools.search.search import Search, SearchOutcome

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "llama-3.1-70b-64xh100.json"
PLAN = {
    "tp": 4,
    "pp": 4,
    "cp": 1,
    "dp": 64,
    "zero_stage": 1,
    "sequence_parallel": True,
    "micro_batch_size": 1,
}
SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


def llama_70b(devices: int) -> dict[str, Any]:
    return {
        "model": {
            "name": "Llama-3.1-70B", "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672,
            "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
        },
        "cluster": {"device": "h100-sxm-80gb", "num_devices": devices},
        "training": {
            "seq_len": 8192, "global_batch_size": devices, "precision": "bf16", "framework": "megatron-core",
        },
    }  # fmt: skip


def cold_s(rounds: int) -> float:
    """CPU seconds of `asap predict`, from the start of Python to the last line."""
    command = [sys.executable, "-m", "service.cli.main", "predict", str(EXAMPLE)]

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def run() -> float:
        before = spent()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return spent() - before

    run()  # writes the byte code
    return min(run() for _ in range(rounds))


def cpu_s(work: Callable[[], object], rounds: int, repeats: int = 1) -> float:
    work()
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(repeats):
            work()
        best = min(best, (time.process_time() - started) / repeats)
    return best


def search(devices: int, space: Space) -> SearchOutcome:
    return Search(parse_scenario(llama_70b(devices), need_plan=False), Constraints(space=space)).run()


def print_curve(rounds: int) -> None:
    print(f"\n{'devices':>8}  {'plans':>10}  {'seconds':>8}  plans per second")
    for devices in SIZES:
        seconds = cpu_s(partial(search, devices, "all"), rounds)
        plans = search(devices, "all").searched
        print(f"{devices:>8,}  {plans:>10,}  {seconds:>8.3f}  {plans / seconds:>12,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive_number, default=10)
    parser.add_argument("--record", action="store_true", help="write the figures into results.json")
    args = parser.parse_args()
    scenario = parse_scenario(llama_70b(1024) | {"plan": PLAN})
    figures = {
        "predict_cold_s": cold_s(args.rounds),
        "predict_warm_ms": 1e3 * cpu_s(lambda: predict([scenario]), args.rounds, repeats=100),
        "practice_70b_ms": 1e3 * cpu_s(lambda: search(1024, "practice"), args.rounds),
    }
    print_curve(max(args.rounds // 3, 1))
    compare(figures, args.record)


if __name__ == "__main__":
    main()
