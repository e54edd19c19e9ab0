"""Fifty questions that teams ask about a report are answered without a model."""

import json
import math
import tomllib
from pathlib import Path

from graph.ask import ask
from graph.ask_rules import KNOWN
from graph.context import Context
from graph.request import parse_request
from tests.unit.graph.cases import run
from tools.kb import open_seed

REPO = Path(__file__).parents[3]
RAW = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
QUESTIONS = tomllib.loads((Path(__file__).parent / "questions.toml").read_text())["question"]
MIN_ANSWERED = 48
DAY_S = 86_400
TOKENS_PER_STEP = RAW["training"]["global_batch_size"] * RAW["training"]["seq_len"]
DEVICES = RAW["cluster"]["num_devices"]


def days(tokens: float, step_s: float) -> float:
    return float(math.ceil(tokens / TOKENS_PER_STEP) * step_s / DAY_S)


def test_teams_questions_are_answered_from_the_report() -> None:
    report = run(RAW)[0].report
    assert report is not None
    first, second, third = report.proposals
    step_s = first.prediction.step_time_s
    figures = {
        "r": report, "p1": first, "p2": second, "p3": third,
        "days_2t": days(2e12, step_s),
        "days_300b_p2": days(3e11, second.prediction.step_time_s),
        "cost_15t": days(15e12, step_s) * 24 * DEVICES * 2,
        "cost_1t": days(1e12, step_s) * 24 * DEVICES * 2.5,
        "one_percent": days(2e12, step_s) * 24 * DEVICES / 100,
    }  # fmt: skip
    context, scenario = Context(open_seed()), parse_request(RAW).scenario
    missed = []
    for question, *expected in QUESTIONS:
        told = ask(question, report, scenario, context).answer
        missing = [part for part in expected if part.format(**figures).lower() not in told.lower()]
        if missing or told == KNOWN:
            missed.append(f"{question} -> {told} (missing {missing})")
    assert len(QUESTIONS) == 50
    assert len(QUESTIONS) - len(missed) >= MIN_ANSWERED, "\n".join(missed)


def test_what_was_not_used_of_a_question_is_said() -> None:
    report = run(RAW)[0].report
    assert report is not None
    told = ask("tp 4 with a warm-up of 77 steps?", report, parse_request(RAW).scenario, Context(open_seed()))
    assert "Not used of the question: 77." in told.answer
