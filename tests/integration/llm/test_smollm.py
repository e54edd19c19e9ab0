"""A real model at a real endpoint: small, fast and wrong, and ASAP holds whatever it says."""

from collections.abc import Iterator
from typing import Literal

import pytest

from graph import model as faults
from graph.agents import LanguageModel
from graph.answers import Answer, Question, ReasonerError, Reply
from graph.model import Endpoint
from tests.integration.llm.questions import TOOLS, TYPES, question

pytestmark = pytest.mark.real
FEW_TOKENS = 24
PATIENCE_S = 240.0
"""Of one question on a machine that does much else; a free one needs a few seconds."""


class Vote(Answer):
    """Nothing that a model could get wrong, if the endpoint holds it to the schema."""

    cause: Literal["compute", "exposed_tp"]


@pytest.fixture(scope="module")
def model(smollm: str) -> Iterator[LanguageModel]:
    made = LanguageModel(
        Endpoint(
            smollm, "smollm2", max_tokens=FEW_TOKENS, timeout_s=PATIENCE_S, deadline_s=PATIENCE_S, retries=0
        )
    )
    yield made
    made.close()


@pytest.mark.parametrize("name", ["confirm_reading", pytest.param("read_notes", marks=pytest.mark.slow)])
def test_a_question_gets_a_valid_answer_or_an_error_with_what_it_cost(
    name: str, model: LanguageModel
) -> None:
    outcome = asked(model, question(name))
    assert outcome.tokens > 0
    if isinstance(outcome, ReasonerError):
        assert outcome.kind in (faults.TRUNCATED, faults.MALFORMED)
    else:
        assert (type(outcome.answer), outcome.by) == (TYPES[name], "smollm2")


def asked(model: LanguageModel, question: Question[Answer]) -> Reply[Answer] | ReasonerError:
    try:
        return model.ask(question)
    except ReasonerError as error:
        return error


# It reads the prompt twice, a hundred tokens per second. test_answers.py proves the change of ways quickly,
# the quick case above that a real endpoint holds a reply to a schema.
@pytest.mark.slow
def test_tools_that_are_never_called_give_way_to_a_schema_that_holds(model: LanguageModel) -> None:
    about = question("find_cause", hypotheses=[], diagnosis={}).about
    reply = model.ask(Question(about, Vote, {"explain_plan": TOOLS["explain_plan"]}))
    assert reply.answer.cause in ("compute", "exposed_tp")


def test_a_question_longer_than_the_context_is_an_overflow(model: LanguageModel) -> None:
    """Shortened it is too long as well, and the endpoint says both at once."""
    scenario = {str(place): "the network is slow " * 150 for place in range(30)}
    with pytest.raises(ReasonerError) as raised:
        model.ask(question("read_notes", notes="the network is slow " * 1000, scenario=scenario))
    assert raised.value.kind == faults.OVERFLOW
