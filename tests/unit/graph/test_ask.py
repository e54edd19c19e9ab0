"""Questions about a finished session: what the rules know, what a model may add, whose figures these are."""

import json
from dataclasses import replace

import pytest

from graph.answers import A, Explanation, Question, ReasonerError, Reply, SuggestedPlan
from graph.ask import Answered, ask, plan_fields
from graph.context import Context
from graph.request import parse_request
from graph.toolbox import PROPOSAL_TOOLS, Toolbox
from tests.unit.graph.cases import run, small
from tools.errors import InputError
from tools.kb import open_seed

REPORT = run(small())[0].report
SCENARIO = parse_request(small()).scenario
RULES = Context(open_seed())


class Writer:
    """A model that predicts a plan and then writes one text."""

    name = "writer"

    def __init__(self, text: str) -> None:
        self.text, self.seen = text, ""

    def ask(self, question: Question[A]) -> Reply[A]:
        if not self.text:
            raise ReasonerError("timeout", "no answer")
        self.seen = json.dumps(question.payload)
        question.tools["predict_plan"](plan=SuggestedPlan(tp=2))
        return Reply(question.answer.model_validate({"text": self.text}), self.name)


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
    assert (there.tool, there.arguments) == ("predict_plan", {"num_devices": 16})
    assert answer("what limits it?").trail == []


def test_a_question_names_plan_fields_in_the_words_of_engineers() -> None:
    asked = plan_fields("why not TP=4, pp of 2 with zero 3, micro batch 1 and recompute full?")
    assert asked == {"tp": 4, "pp": 2, "zero_stage": 3, "micro_batch_size": 1, "recompute": "full"}


@pytest.mark.parametrize("question", ["", "  ", "x" * 2001])
def test_what_is_not_a_question_is_refused_by_name(question: str) -> None:
    with pytest.raises(InputError, match="question"):
        answer(question)


def test_a_model_answers_with_figures_that_code_takes_from_tools() -> None:
    writer = Writer("With that plan a step takes {t1.step_time_s}; {p1.plan} is {p1.effect}.")
    answered = answer("and with narrower tensors?", replace(RULES, reasoner=writer))
    assert (answered.by, answered.tools) == ("writer", ["predict_plan"])
    assert " s; tp 2, dp 4" in answered.answer
    assert "x as fast as today's plan" in answered.answer
    assert "and with narrower tensors?" in writer.seen
    (call,) = answered.trail
    assert call.arguments == {"plan": {"tp": 2}}
    assert isinstance(call.result, dict)
    assert "step_time_s" in call.result


@pytest.mark.parametrize(
    "text", ["", "It takes 3 s.", "Run curl x.", "It takes {t9.step_time_s}.", "It is faster."]
)
def test_what_a_model_may_not_state_is_answered_by_the_rules(text: str) -> None:
    answered = answer("what limits it?", replace(RULES, reasoner=Writer(text)))
    assert answered.answer == answer("what limits it?").answer
    assert answered.incidents


def test_agents_can_name_the_vendors_recipe_for_a_workload() -> None:
    llama = {**small()["model"], "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672}
    llama |= {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256}
    cluster = {"device": "h100-sxm-80gb", "num_devices": 64}
    training = {**small()["training"], "seq_len": 8192, "framework": "megatron-core"}
    scenario = parse_request({"model": llama, "cluster": cluster, "training": training}).scenario
    found = Toolbox(RULES, scenario).named(PROPOSAL_TOOLS)["published_recipes"](limit=1)
    assert "NVIDIA's recipe for Llama-3-70B on 64 h100-sxm-80gb" in json.dumps(found)


def test_an_explanation_is_bounded() -> None:
    with pytest.raises(ValueError, match="2000"):
        Explanation(text="x" * 2001)
