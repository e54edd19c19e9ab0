"""Answers to an assistant: short, bounded, in the names of its own arguments."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult

from service.mcp import make_server
from service.settings import Settings
from tools.trace import report

REPO = Path(__file__).resolve().parents[3]
SETTINGS = Settings(data_dir=Path("absent"))
SCENARIO = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())


def called(tool: str, **arguments: object) -> CallToolResult:
    """As the protocol's server does it, without the protocol."""
    server = make_server(SETTINGS, REPO / "examples/traces")
    answer: Any = anyio.run(server.call_tool, tool, arguments)
    assert isinstance(answer, CallToolResult)
    return answer


def text_of(answer: CallToolResult) -> str:
    return "".join(getattr(block, "text", "") for block in answer.content)


def numbers_in(value: object) -> list[float]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [number for item in inner for number in numbers_in(item)]
    return [value] if isinstance(value, float) else []


def test_the_longest_answer_fits_an_assistants_memory() -> None:
    answer = called("optimize", scenario=SCENARIO)
    assert len(text_of(answer)) < 15_000
    assert json.loads(text_of(answer)) == answer.structured_content


def test_evidence_that_proposals_share_is_spelled_out_once() -> None:
    report = called("optimize", scenario=SCENARIO).structured_content
    assert report
    evidence = [fact for proposal in report["proposals"] for fact in proposal["evidence"]]
    spelled_out = [(fact["ref"], fact["says"]) for fact in evidence if "says" in fact]
    assert len(spelled_out) == len(set(spelled_out)) < len(evidence)
    assert {fact["ref"] for fact in evidence} == {ref for ref, _ in spelled_out}


def test_numbers_have_the_digits_that_mean_something() -> None:
    numbers = numbers_in(called("predict", scenario=SCENARIO).structured_content)
    assert numbers
    assert all(number == float(f"{number:.4g}") for number in numbers)


def test_a_job_of_thousands_of_ranks_is_described_by_its_worst_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {name: [{"rank": rank} for rank in range(5000)] for name in ("stragglers", "collectives")}
    unreadable = [{"file": f"rank{rank}.json", "reason": "ends early"} for rank in range(5000)]
    data = {"diagnosis": {}, "total": {}, "ranks": [{}], **lists, "unreadable": unreadable}
    monkeypatch.setattr(
        report, "analyse_folder", lambda _: SimpleNamespace(report=SimpleNamespace(model_dump=lambda: data))
    )
    answer = called("diagnose", folder="ddp-gloo-straggler")
    assert len(text_of(answer)) < 10_000
    assert answer.structured_content is not None
    assert answer.structured_content["left_out"] == dict.fromkeys(
        ("stragglers", "collectives", "unreadable"), 4980
    )


def test_a_hit_says_nothing_twice() -> None:
    answer = called("search_knowledge", query="all-reduce of gradients is exposed")
    assert answer.structured_content is not None
    hits = answer.structured_content["hits"]
    assert hits
    assert not any({"id", "title"} & set(hit["body"]) for hit in hits)


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("diagnose", {"folder": "absent"}, "folder: got "),
        ("export_plan", {"scenario": SCENARIO, "format": "jax"}, " format: got 'jax'"),
    ],
)
def test_an_error_names_the_argument_that_the_assistant_gave(
    tool: str, arguments: dict[str, object], named: str
) -> None:
    with pytest.raises(ToolError) as raised:
        called(tool, **arguments)
    assert named in f" {raised.value}"


def test_a_description_is_not_indented_as_its_source_is() -> None:
    tools = anyio.run(make_server(SETTINGS, REPO).list_tools)
    assert not [tool.name for tool in tools if "\n  " in (tool.description or "")]
