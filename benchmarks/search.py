"""How long it takes to decide every legal plan of two large workloads, and how much memory.

    python -m benchmarks.search [--rounds N] [--record]

A 1T dense GPT on 4,096 H100 and DeepSeek-V3 671B on 16,384 H100, one process each, so that the peak of
resident memory is the search's own (with Python, NumPy and ASAP itself). Plans decided are all legal ones,
by recomputation; plans timed are those of them that fit, with the least recomputation that does. CPU seconds,
which are those on the clock of a quiet machine, count against the bars. The best round counts.
"""

import argparse
import resource
import sys
import time
from multiprocessing import get_context
from typing import Any, NamedTuple

from benchmarks.results import compare
from service.cli.parser import positive_number
from tools.recommend.words import short
from tools.scenario import parse_scenario
from tools.search.constraints import Constraints
from tools.search.search import Search

GPT_1T: dict[str, Any] = {
    "model": {
        "name": "GPT 1T", "num_hidden_layers": 128, "hidden_size": 25600, "intermediate_size": 102400,
        "num_attention_heads": 160, "vocab_size": 51200, "gated_mlp": False, "tie_word_embeddings": True,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 4096},
    "training": {
        "seq_len": 2048, "global_batch_size": 4096, "precision": "bf16", "framework": "megatron-core",
    },
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model": {
        "name": "DeepSeek-V3 671B", "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432,
        "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
        "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 16384},
    "training": {
        "seq_len": 4096, "global_batch_size": 16384, "precision": "bf16", "framework": "megatron-core",
    },
}  # fmt: skip
KIB = 1 if sys.platform == "darwin" else 1024
"""Bytes of the unit in which the system reports the peak of resident memory."""


class Figures(NamedTuple):
    decided: int
    timed: int
    seconds: float
    cpu_s: float
    peak_gib: float
    best: str
    step_time_s: float


def measure(workload: dict[str, Any]) -> Figures:
    """Runs in a process of its own."""
    scenario = parse_scenario(workload, need_plan=False)
    started, cpu = time.perf_counter(), time.process_time()
    found = Search(scenario, Constraints(space="all")).run()
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / 2**30
    best = short(found.best.plans.plan(0))
    fastest_s = float(found.best.step_time_s[0])
    return Figures(found.searched, found.timed, seconds, cpu_s, peak_gib, best, fastest_s)


def report(workload: dict[str, Any], rounds: int) -> Figures:
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        measured = [pool.apply(measure, (workload,)) for _ in range(rounds)]
    f = min(measured, key=lambda figures: figures.cpu_s)
    cluster = workload["cluster"]
    print(f"\n{workload['model']['name']} on {cluster['num_devices']:,} {cluster['device']}")
    print(f"  plans decided {f.decided:,}, timed {f.timed:,}")
    print(f"  {f.cpu_s:.2f} CPU s, {f.seconds:.2f} s on the clock, {f.decided / f.cpu_s:,.0f} plans/s")
    print(f"  peak resident memory {f.peak_gib:.2f} GiB")
    print(f"  fastest: {f.best}: {f.step_time_s:.3g} s per step")
    return f


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive_number, default=3)
    parser.add_argument("--record", action="store_true", help="write the figures into results.json")
    args = parser.parse_args()
    dense, moe = (report(workload, args.rounds) for workload in (GPT_1T, DEEPSEEK_V3))
    peak_gib = max(dense.peak_gib, moe.peak_gib)
    figures = {"search_1t_s": dense.cpu_s, "search_671b_s": moe.cpu_s, "search_peak_gib": peak_gib}
    compare(figures, args.record)


if __name__ == "__main__":
    main()
