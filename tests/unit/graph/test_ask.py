"""Questions about a finished session: what the rules know, what a model may add, whose figures these are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graph.answers import A, Question, ReasonerError, Reply, SuggestedPlan
from graph.ask import Answered, ask, toolbox_of
from graph.ask_words import Words, fields_of
from graph.context import Context
from graph.events import plain
from graph.request import parse_request
from graph.tools import QUESTION_TOOLS, Toolbox
from research.cassette import read_cassette
from tests.unit.graph.cases import run, small
from tools.errors import InputError
from tools.kb import open_seed
from tools.scenario.spec import RunGoal

REPO = Path(__file__).parents[3]
REPORT = run(small())[0].report
SCENARIO = parse_request(small()).scenario
RULES = Context(open_seed())


class Writer:
    """A model that predicts a plan and then hands in claims."""

    name = "writer"

    def __init__(self, *claims: dict[str, str]) -> None:
        self.claims, self.seen = claims, ""

    def ask(self, question: Question[A]) -> Reply[A]:
        if not self.claims:
            raise ReasonerError("timeout", "no answer")
        self.seen = json.dumps(question.payload)
        question.tools["predict_plan"](plan=SuggestedPlan(tp=2))
        return Reply(question.answer.model_validate({"claims": self.claims}), self.name)


def answer(question: str, context: Context = RULES) -> Answered:
    assert REPORT is not None
    return ask(question, REPORT, SCENARIO, context)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ("Why not tp 8?", "tp 2 to 8"),
        ("what if micro-batch size = 1", "micro-batch 1"),
        ("why not ep 7?", "expert parallelism needs a model with experts"),
        ("what if tp=3?", "must be whole numbers that divide 8 devices"),
        ("What if 16 GPUs?", "With 16 devices the best plan is"),
        ("what if 99999 devices", "allowed: 1 to 2048"),
        ("what limits it?", "The lever:"),
        ("how sure is that?", "80% interval"),
        ("hello", "The rules answer:"),
    ],
)
def test_the_rules_answer_what_they_know(question: str, says: str) -> None:
    answered = answer(question)
    assert says in answered.answer
    assert answered.by == "expert-rules"


def test_the_rules_say_which_tools_they_used_with_what() -> None:
    (why,) = answer("Why not tp 8?").trail
    assert (why.tool, why.arguments) == ("explain_plan", {"plan": {"tp": 8}})
    (there,) = answer("What if 16 GPUs?").trail
    assert (there.tool, there.arguments) == ("search_plans", {"changed": "16 devices"})
    assert answer("what limits it?").trail == []


def test_a_question_names_plan_fields_in_the_words_of_engineers() -> None:
    words = Words("why not TP=4, pp of 2 with zero 3, micro batch 1 and recompute full?")
    assert fields_of(words) == {"tp": 4, "pp": 2, "zero_stage": 3, "micro_batch_size": 1, "recompute": "full"}


@pytest.mark.parametrize("question", ["", "  ", "x" * 2001])
def test_what_is_not_a_question_is_refused_by_name(question: str) -> None:
    with pytest.raises(InputError, match="question"):
        answer(question)


def test_a_model_answers_with_figures_that_code_takes_from_tools() -> None:
    writer = Writer(
        {"subject": "t1.step_time_s", "relation": "figure"},
        {"subject": "t1", "relation": "even_with", "object": "p1"},
        {"subject": "p1", "relation": "faster_than", "object": "today"},
    )
    answered = answer("and with narrower tensors?", replace(RULES, reasoner=writer))
    assert (answered.by, answered.tools) == ("writer", ["predict_plan"])
    assert "Predict plan of tp 2, dp 4" in answered.answer
    assert "no different from proposal 1 (tp 2" in answered.answer
    assert "x as fast as today's plan" in answered.answer
    assert "and with narrower tensors?" in writer.seen
    (call,) = answered.trail
    assert call.arguments == {"plan": {"tp": 2}}
    assert isinstance(call.result, dict)
    assert "step_time_s" in call.result


@pytest.mark.parametrize(
    "claims",
    [
        (),
        ({"subject": "Run curl x.", "relation": "fits"},),
        ({"subject": "t9.step_time_s", "relation": "figure"},),
        ({"subject": "p1", "relation": "slower_than", "object": "today"},),
    ],
)
def test_what_does_not_hold_is_answered_by_the_rules(claims: tuple[dict[str, str], ...]) -> None:
    answered = answer("what limits it?", replace(RULES, reasoner=Writer(*claims)))
    assert answered.answer == answer("what limits it?").answer
    assert answered.incidents


ARGUMENTS: dict[str, dict[str, Any]] = {
    "profile_rank": {"rank": 0},
    "search_plans": {"constraints": {"micro_batch_size": 1}},
    "compare_plans": {"plans": [SuggestedPlan(), SuggestedPlan(zero_stage=3)]},
    "explain_plan": {"plan": SuggestedPlan(zero_stage=3)},
    "check_export": {"plan": SuggestedPlan(), "format": "megatron"},
    "what_if": {"term": "compute", "factor": 0.5},
    "find_knowledge": {"query": "exposed data-parallel communication"},
    "read_knowledge": {"id": "playbook:host-larger-kernels"},
    "hardware": {"name": "h100-sxm-80gb"},
}


def test_every_tool_of_the_agents_answers_in_json_about_a_profiled_job() -> None:
    raw = json.loads((REPO / "examples/profiled-run.json").read_text())
    box = Toolbox(RULES, parse_request({**raw, "traces": str(REPO / raw["traces"])}).scenario)
    answers = {
        name: json.dumps(plain(tool(**ARGUMENTS.get(name, {}))))
        for name, tool in box.named(QUESTION_TOOLS).items()
    }
    empty = {name for name, answer in answers.items() if answer in ("[]", "{}", "null")}
    assert empty <= {"stragglers", "published_recipes"}
    assert '"measured_share"' in answers["reconcile"]
    assert '"speedup"' in answers["what_if"]
    llama = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
    recipes = Toolbox(RULES, parse_request(llama).scenario).published_recipes(limit=1)
    assert "NVIDIA's recipe for Llama-3-70B on 64 h100-sxm-80gb" in json.dumps(recipes)


def test_a_tool_predicts_every_proposal_as_the_report_does() -> None:
    """Whatever plan the search started from, with modules, sharding groups and switches; also if a step time
    in the notes calibrated the report."""
    compared = 0
    recorded = REPO / "examples/sessions/mixtral-8x22b-128xh100.jsonl"
    llama = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
    told = small(notes="A step takes 0.9 s. keep micro-batch size 1")
    calibrated = 0
    for raw in (
        llama,
        read_cassette(recorded)[0].request,
        small(),
        {**llama, "notes": "A step takes 40 s"},
        told,
    ):
        report = run(raw)[0].report
        assert report is not None
        calibrated += report.calibration is not None
        box = toolbox_of(report, parse_request(raw).scenario, RULES)
        for proposal in report.proposals:
            fields = proposal.plan.model_dump(exclude={"dp"}, exclude_none=True)
            predicted = box.predict_plan(plan=SuggestedPlan(**fields), settings=proposal.settings)
            assert isinstance(predicted, dict)
            assert {
                name: predicted[name] for name in ("step_time_s", "peak_memory_gib", "mfu", "breakdown_s")
            } == (
                proposal.prediction.model_dump(
                    include={"step_time_s", "peak_memory_gib", "mfu", "breakdown_s"}
                )
            )
            compared += 1
    assert compared == 15
    assert calibrated == 2


def test_a_question_about_a_whole_run_keeps_the_report_s_price_and_failures() -> None:
    run = RunGoal(price_per_device_hour=2.5, device_hours_between_failures=50_000)
    assert REPORT is not None
    asked = ask(
        "how long to 15T tokens, and what does it cost?",
        REPORT,
        SCENARIO.model_copy(update={"run": run}),
        RULES,
    )
    assert "to 15T tokens" in asked.answer
    assert "cost" in asked.answer
    assert "checkpoint every" in asked.answer
