"""A real model at a real endpoint: small, fast and wrong, and ASAP holds whatever it says."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pytest

from graph import model as faults
from graph.agents import LanguageModel
from graph.answers import Answer, Question, ReasonerError, Reply
from graph.model import Endpoint
from tests.integration.llm.questions import TOOLS, TYPES, question

pytestmark = pytest.mark.real
FEW_TOKENS = 40
PATIENCE_S = 240.0
"""Of one question on a machine that does much else; a free one needs a few seconds."""
STEP = {"fits": True, "step_time_s": 9.8, "step_time_low_s": 8.9, "step_time_high_s": 10.9}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "read_notes": {"notes": "Keep tp.", "scenario": {"plan": {"tp": 8}}},
    "choose_step": {},
    "weigh_diagnoses": {"evidence": []},
    "suggest_plans": {"scenario": {}, "plan": {"tp": 8}, "proposals": [], "playbooks": []},
    "explain": {"scenario": {}, "baseline": STEP, "proposals": [{"rank": 1, "summary": "tp 4, pp 2"}]},
}


class Vote(Answer):
    """Nothing that a model could get wrong, if the endpoint holds it to the schema."""

    bottleneck: Literal["compute", "communication"]


@pytest.fixture(scope="module")
def model(smollm: str) -> Iterator[LanguageModel]:
    made = LanguageModel(
        Endpoint(
            smollm, "smollm2", max_tokens=FEW_TOKENS, timeout_s=PATIENCE_S, deadline_s=PATIENCE_S, retries=0
        )
    )
    yield made
    made.close()


QUICK = ("choose_step", "weigh_diagnoses")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SMALL]
)
def test_each_question_gets_a_valid_answer_or_an_error(name: str, model: LanguageModel) -> None:
    outcome = ask(model, question(name, **SMALL[name]))
    assert outcome.tokens > 0
    if isinstance(outcome, ReasonerError):
        assert outcome.kind in (faults.TRUNCATED, faults.MALFORMED)
    else:
        assert type(outcome.answer) is TYPES[name]
        assert outcome.by == "smollm2"


def ask(model: LanguageModel, asked: Question[Answer]) -> Reply[Answer] | ReasonerError:
    try:
        return model.ask(asked)
    except ReasonerError as error:
        return error


def test_tools_that_are_never_called_give_way_to_a_schema_that_holds(model: LanguageModel) -> None:
    asked = question("weigh_diagnoses", **SMALL["weigh_diagnoses"])
    reply = model.ask(Question(asked.name, asked.payload, Vote, TOOLS))
    assert reply.answer.bottleneck in ("compute", "communication")
    assert "submit_answer" not in reply.prompt


def test_a_question_longer_than_the_context_is_an_overflow(model: LanguageModel) -> None:
    """Shortened it is too long as well, and the endpoint says both at once."""
    scenario = {str(place): "the network is slow " * 150 for place in range(30)}
    with pytest.raises(ReasonerError) as raised:
        model.ask(question("read_notes", notes="the network is slow " * 1000, scenario=scenario))
    assert raised.value.kind == faults.OVERFLOW
