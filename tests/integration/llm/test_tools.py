"""Tool calling: lookups while the model thinks, a limit on them, and the answer handed in."""

import json
from collections.abc import Mapping

import pytest

from graph import model as faults
from graph.answers import ReasonerError
from tests.integration.llm import replies
from tests.integration.llm.conftest import MakeModel
from tests.integration.llm.questions import GOOD, TOOLS, propose_plans
from tests.integration.llm.scripted_server import ScriptedServer

ANSWER = replies.answer(GOOD["propose_plans"])
MAX_CALLS = propose_plans(TOOLS).max_calls
LOOKUP = replies.calls(("explain_plan", {"plan": {"tp": 4}}))


def results(server: ScriptedServer) -> list[str]:
    """What the tools returned, as the last request shows it."""
    return [str(message["content"]) for message in server.seen[-1].messages if message["role"] == "tool"]


def test_a_lookup_is_run_and_its_result_returned_before_the_answer(model_at: MakeModel) -> None:
    with ScriptedServer(LOOKUP, ANSWER) as server:
        reply = model_at(server).ask(propose_plans(TOOLS))
    assert reply.answer.suggestions[0].plan.tp == 4
    assert '{"accepted":true,"why":"the slower term is pipeline_bubble"}' in results(server)[0]
    assert reply.tokens == 240
    assert "explain_plan(" in reply.prompt


def test_the_tools_are_described_by_their_types_and_words(model_at: MakeModel) -> None:
    with ScriptedServer(ANSWER) as server:
        model_at(server).ask(propose_plans(TOOLS))
    specs = {tool["function"]["name"]: tool["function"] for tool in server.seen[0].body["tools"]}
    assert list(specs) == ["explain_plan", "find_knowledge", "Suggestions"]
    assert specs["find_knowledge"]["description"] == "Find playbooks by a description."
    assert specs["find_knowledge"]["parameters"]["required"] == ["query"]
    assert "zero_stage" in specs["explain_plan"]["parameters"]["properties"]["plan"]["properties"]
    assert "$ref" not in json.dumps(specs)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (("launch_missiles", {}), "not a valid tool"),
        (("explain_plan", {"plan": {"tp": "many"}}), "plan.tp"),
        (("explain_plan", {}), "plan: Field required"),
        (("explain_plan", "{broken"), "not a JSON object"),
        (("find_knowledge", {"query": "x", "folder": "/etc"}), "folder"),
    ],
)
def test_a_call_that_cannot_be_run_is_reported_to_the_model(
    call: tuple[str, Mapping[str, object] | str], says: str, model_at: MakeModel
) -> None:
    with ScriptedServer(replies.calls(call), ANSWER) as server:
        model_at(server).ask(propose_plans(TOOLS))
    assert says in results(server)[0]


@pytest.mark.parametrize("counted", [1_000, 1])
def test_an_endless_loop_of_lookups_ends(model_at: MakeModel, counted: int) -> None:
    """The endpoint's count is taken as it is; one that no text of this length can have is estimated."""
    usage = {"prompt_tokens": counted, "completion_tokens": 0, "total_tokens": counted}
    endless = replies.endless_calls("find_knowledge", [{"query": "a"}, {"query": "b"}], usage)
    with ScriptedServer(then=endless) as server, pytest.raises(ReasonerError) as raised:
        model_at(server).ask(propose_plans(TOOLS))
    assert raised.value.kind == faults.TOOL_LOOP
    assert len(server.seen) == MAX_CALLS + 1
    assert server.seen[-1].tools == ["Suggestions"]
    if counted == 1:
        asked = sum(len(seen.prompt) for seen in server.seen)
        assert raised.value.tokens >= asked // faults.CHARACTERS_PER_TOKEN > MAX_CALLS + 1
    else:
        assert raised.value.tokens == counted * (MAX_CALLS + 1)


def test_a_loop_that_has_cost_enough_is_told_to_end(model_at: MakeModel) -> None:
    with ScriptedServer(LOOKUP, LOOKUP, ANSWER) as server:
        model_at(server, max_question_tokens=200).ask(propose_plans(TOOLS))
    assert [len(seen.tools) for seen in server.seen] == [3, 3, 1]
