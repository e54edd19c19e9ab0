"""Ninety questions that teams ask about a report are answered without a model."""

import json
import math
import re
import tomllib
from pathlib import Path

import pytest

from graph.ask import ask
from graph.ask_rules import KNOWN
from graph.context import Context
from graph.request import parse_request
from tests.unit.graph.cases import run
from tools.kb import open_seed
from tools.model.predict import Prediction, predict
from tools.recommend.optimize import optimize
from tools.recommend.report import Proposal
from tools.recommend.words import format_same_decimals
from tools.scenario import Scenario

REPO = Path(__file__).parents[3]
RAW = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
QUESTIONS = tomllib.loads((Path(__file__).parent / "questions.toml").read_text())
DAY_S = 86_400
TOKENS_PER_STEP = RAW["training"]["global_batch_size"] * RAW["training"]["seq_len"]
DEVICES = RAW["cluster"]["num_devices"]


def days(tokens: float, step_s: float) -> float:
    return float(math.ceil(tokens / TOKENS_PER_STEP) * step_s / DAY_S)


def scenario_with(**changes: object) -> Scenario:
    """The job with other figures of its parts, by their names."""
    raw = json.loads(json.dumps(RAW))
    for name, value in changes.items():
        part = "cluster" if name in ("device", "num_devices") else "training"
        raw[part][name] = value
    if "num_devices" in changes:
        del raw["plan"]
    return parse_request(raw).scenario


def best(**changes: object) -> str:
    return seconds(optimize(scenario_with(**changes)).proposals[0].prediction.step_time_s)


def predicted(proposal: Proposal, **changes: object) -> Prediction:
    """A proposal as it stands, under changes that leave its data-parallel degree alone."""
    return predict([proposal.of(scenario_with(**changes))])[0]


def seconds(value: float) -> str:
    return format_same_decimals(value)[0]


def test_teams_questions_are_answered_with_the_figures_that_are_right() -> None:
    report = run(RAW)[0].report
    assert report is not None
    assert report.baseline_plan
    first, second, third = report.proposals
    step_s = first.prediction.step_time_s
    batch, seq = "global_batch_size", "seq_len"
    second_256 = predicted(second, **{batch: 256})
    today = first.model_copy(update={"plan": report.baseline_plan.plan, "settings": {}})
    wider = third.model_copy(update={"plan": third.plan.model_copy(update={"dp": 16, "dp_shard": 16})})
    h200_s = optimize(scenario_with(device="h200-sxm-141gb")).proposals[0].prediction.step_time_s
    figures = {
        "r": report, "p1": first, "p2": second, "p3": third,
        "days_2t": days(2e12, step_s),
        "days_300b_p2": days(3e11, second.prediction.step_time_s),
        "days_2t_h200": days(2e12, h200_s),
        "days_1t_p3_128": days(1e12, predicted(wider, num_devices=128).step_time_s),
        "cost_15t": days(15e12, step_s) * 24 * DEVICES * 2,
        "cost_1t": days(1e12, step_s) * 24 * DEVICES * 2.5,
        "cost_500b": days(5e11, step_s) * 24 * DEVICES * 3,
        "one_percent": days(2e12, step_s) * 24 * DEVICES / 100,
        "tokens_30_days": 30 * DAY_S / step_s * TOKENS_PER_STEP / 1e9,
        "p2_batch_256": {"s": seconds(second_256.step_time_s), "gib": f"{second_256.peak_memory_gib:.1f}"},
        "p1_seq_32k": predicted(first, **{seq: 32768}).peak_memory_gib,
        "tokens_in_all": first.prediction.tokens_per_s_per_device * DEVICES,
        "p2_fp8": seconds(predicted(second, precision="fp8").step_time_s),
        "today_batch_256": seconds(predicted(today, **{batch: 256}).step_time_s),
        "best": {
            "batch_256": best(**{batch: 256}),
            "batch_512": best(**{batch: 512}),
            "h200": best(device="h200-sxm-141gb"),
            "b200": best(device="b200"),
            "a100": best(device="a100-sxm-80gb"),
            "seq_16384": best(**{seq: 16384}),
            "devices_128": best(num_devices=128),
            "devices_256": best(num_devices=256),
            "devices_56": best(num_devices=56),
            "devices_48": best(num_devices=48),
            "fp8_128": best(num_devices=128, precision="fp8"),
            "fp8_256": best(precision="fp8", **{batch: 256}),
            "four": best(num_devices=32, device="h200-sxm-141gb", **{batch: 256, seq: 4096}),
            "h200_32k": best(device="h200-sxm-141gb", **{seq: 32768}),
        },
    }  # fmt: skip
    context, scenario = Context(open_seed()), parse_request(RAW).scenario
    missed = []
    for question, *expected in [*QUESTIONS["question"], *QUESTIONS["changed"], *QUESTIONS["asked"]]:
        told = ask(question, report, scenario, context).answer
        missing = [part for part in expected if part.format(**figures).lower() not in told.lower()]
        is_left = "Not used" in told and "Not used" not in "".join(expected)
        if missing or is_left or (told == KNOWN) != (expected == ["The rules answer"]):
            missed.append(f"{question} -> {told} (missing {missing})")
    assert [len(asked) for asked in QUESTIONS.values()] == [50, 25, 15]
    assert not missed, "\n".join(missed)


def test_what_was_not_used_of_a_question_is_said() -> None:
    report = run(RAW)[0].report
    assert report is not None
    told = ask("tp 4 with a warm-up of 77 steps?", report, parse_request(RAW).scenario, Context(open_seed()))
    assert "Not used of the question: warm-up and 77." in told.answer


def test_money_and_failures_that_the_request_states_count_in_an_answer() -> None:
    run_goal = {"tokens": 10**12, "price_per_device_hour": 2.0, "device_hours_between_failures": 50_000}
    raw = {**RAW, "run": run_goal}
    report = run(raw)[0].report
    assert report is not None
    told = ask("How long for 1T tokens?", report, parse_request(raw).scenario, Context(open_seed())).answer
    step_s = report.proposals[0].prediction.step_time_s
    share = float(re.findall(r"([0-9.]+)% of it is progress", told)[0]) / 100
    cost = float(re.findall(r"cost ([0-9,]+)", told)[0].replace(",", ""))
    assert cost == pytest.approx(days(1e12, step_s) / share * 24 * DEVICES * 2.0, rel=0.002)
