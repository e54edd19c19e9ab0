"""Predictions per CPU second in one process, beside calculon and llm-analysis on the same plans.

    python -m benchmarks.predict [--plans N] [--seconds S] [--rounds N] [--calculon DIR]

Two scenarios: GPT-3 175B on 1,024 A100, which all three can represent, and Mixtral 8x7B on 64 H100, which
calculon cannot. Plans are drawn with replacement from all legal ones of a scenario. ASAP predicts the whole
array: step time with its interval, breakdown, memory. The peers take one plan per call, those of the first
200 that they accept, again and again for --seconds. Contenders alternate; the best round of each counts.
llm-analysis is taken from where Python finds it (`make peers`), calculon, which is not on PyPI
(github.com/calculon-ai/calculon; it imports pandas and psutil), from --calculon, a checkout of it.
What is compared is speed; for accuracy see benchmarks/accuracy.py.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Peer, Plan, RefusedError, calculon, llm_analysis
from benchmarks.results import compare
from service.cli.parser import positive_number
from tools.model.predict import predict, predict_rows
from tools.physics.encode import encode_plans
from tools.scenario import (
    RECOMPUTES,
    SCHEDULES,
    SEARCHED_FIELDS,
    PlanColumns,
    PlanFacts,
    Scenario,
    legal_mask,
    parse_scenario,
)  # fmt: skip
from tools.scenario import Plan as PlanSpec

PLANS_FOR_PEERS = 200
GPT3 = {
    "model": {
        "name": "GPT-3 175B", "num_hidden_layers": 96, "hidden_size": 12288, "intermediate_size": 49152,
        "num_attention_heads": 96, "vocab_size": 51200, "gated_mlp": False, "tie_word_embeddings": True,
    },
    "cluster": {"device": "a100-sxm-80gb", "num_devices": 1024},
    "training": {
        "seq_len": 2048, "global_batch_size": 1536, "precision": "fp16", "framework": "megatron-core",
    },
}  # fmt: skip
MIXTRAL = {
    "model": {
        "name": "Mixtral 8x7B", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 14336,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 64},
    "training": {
        "seq_len": 4096, "global_batch_size": 512, "precision": "bf16", "framework": "megatron-core",
    },
}  # fmt: skip

PredictOne = Callable[[Plan], float]


def legal_plans(scenario: Scenario) -> PlanColumns:
    """Every legal combination of powers of two and three, of the choices that all contenders know."""
    degrees = [d for d in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96) if d <= scenario.cluster.num_devices]
    expert = [1, 2, 4, 8] if scenario.model.is_moe else [1]
    grid = itertools.product(
        degrees, degrees, (1, 2, 4, 8), expert, (0, 1), (1, 2, 4, 8), range(len(RECOMPUTES))
    )
    tp, pp, vpp, ep, zero, micro, recompute = np.array(list(grid)).T
    dp = scenario.cluster.num_devices // (tp * pp)
    ones = np.ones_like(tp)
    columns = PlanColumns(
        tp=tp, pp=pp, vpp=vpp, cp=ones, ep=ep, etp=ones, dp=np.maximum(dp, 1), dp_shard=np.maximum(dp, 1),
        zero_stage=zero, micro_batch_size=micro, sequence_parallel=(tp > 1).astype(np.int64),
        recompute=recompute, schedule=(vpp > 1).astype(np.int64),
    )  # fmt: skip
    facts = PlanFacts(
        model=scenario.model, cluster=scenario.cluster, training=scenario.training, plan=columns
    )
    return columns.take(np.flatnonzero(legal_mask(facts)))


def listed(plans: PlanColumns, count: int) -> list[Plan]:
    columns = {name: getattr(plans, name)[:count].tolist() for name in SEARCHED_FIELDS}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def asap_array_per_s(scenario: Scenario, plans: PlanColumns) -> float:
    start = time.process_time()
    x, keys = encode_plans(scenario, plans)
    batch = predict_rows(x, keys, [scenario.training.precision])
    rate = len(plans.tp) / (time.process_time() - start)
    assert np.isfinite(batch.high_s).all()
    return rate


def one_by_one_per_s(predict_one: PredictOne, plans: list[Plan], seconds: float) -> float:
    start = time.process_time()
    for done, plan in enumerate(itertools.cycle(plans), start=1):
        predict_one(plan)
        if (spent := time.process_time() - start) > seconds:
            return done / spent
    raise ValueError("no plans")


def accepted(predict_one: PredictOne, plans: list[Plan]) -> list[Plan]:
    """Those that the contender takes: each has rules of its own."""
    usable = []
    for plan in plans:
        try:
            if predict_one(plan) > 0:
                usable.append(plan)
        except RefusedError:
            continue
    return usable


def timed(peer: Peer) -> PredictOne:
    return lambda plan: peer(plan).step_time_s


def asap_one(scenario: Scenario) -> PredictOne:
    """One call per plan, by someone who does not know of arrays."""

    def predict_one(plan: Plan) -> float:
        named = {"recompute": RECOMPUTES[plan["recompute"]], "schedule": SCHEDULES[plan["schedule"]]}
        spec = PlanSpec.model_validate(plan | named)
        return predict([scenario.model_copy(update={"plan": spec})])[0].step_time_s

    return predict_one


def contenders(
    scenario: Scenario, plans: PlanColumns, args: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], float] | str]]:
    """Name and a round's measurement, or why there is none."""
    few = listed(plans, PLANS_FOR_PEERS)
    makers: dict[str, Callable[[], PredictOne]] = {
        "asap, one plan per call": lambda: asap_one(scenario),
        "llm-analysis": lambda: timed(llm_analysis(scenario)),
        "calculon": lambda: timed(calculon(scenario, args.calculon)),
    }
    yield "asap", lambda: asap_array_per_s(scenario, plans)
    for name, make in makers.items():
        try:
            predict_one = make()
        except ImportError as error:
            yield name, f"not installed ({error})"
        except RefusedError:
            yield name, "cannot represent this model"
        else:
            taken = accepted(predict_one, few)
            yield (
                name,
                partial(one_by_one_per_s, predict_one, taken, args.seconds)
                if taken
                else "took none of the plans",
            )


def measure(workload: dict[str, Any], args: argparse.Namespace) -> float:
    """Predictions per CPU second of ours, printed beside the peers'."""
    scenario = parse_scenario(workload, need_plan=False)
    legal = legal_plans(scenario)
    plans = legal.take(np.random.default_rng(0).integers(0, legal.rows, args.plans))
    cluster = f"{scenario.cluster.num_devices} {scenario.cluster.device}"
    print(
        f"\n{scenario.model.name} on {cluster}: {args.plans:,} plans, drawn from {len(legal.tp):,} legal ones"
    )
    measured = dict(contenders(scenario, plans, args))
    best: dict[str, float] = {}
    for _ in range(args.rounds):
        for name, measure in measured.items():
            if not isinstance(measure, str):
                best[name] = max(best.get(name, 0.0), measure())
    print(f"{'':24}{'predictions/CPU s':>18}{'asap is':>14}")
    for name, measure in measured.items():
        if isinstance(measure, str):
            print(f"{name:24}{measure}")
            continue
        ratio = "" if name == "asap" else f"{best['asap'] / best[name]:,.0f}×"
        print(f"{name:24}{best[name]:18,.0f}{ratio:>14}")
    return best["asap"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=positive_number, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU time for a peer's round")
    parser.add_argument("--rounds", type=positive_number, default=3)
    parser.add_argument("--calculon", type=Path, default=Path("calculon"), metavar="DIR", help="its checkout")
    parser.add_argument("--record", action="store_true", help="write the figures into results.json")
    args = parser.parse_args()
    dense, _ = [measure(workload, args) for workload in (GPT3, MIXTRAL)]
    compare({"predictions_per_s": dense}, args.record)


if __name__ == "__main__":
    main()
