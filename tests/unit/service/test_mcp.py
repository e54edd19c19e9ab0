"""Answers to an assistant: short, bounded, in the names of its own arguments."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult

from service.mcp import make_server
from service.settings import Settings
from tools.trace import report
from tools.trace.report import analyse_folder

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


def test_a_job_of_thousands_of_ranks_is_described_by_its_worst_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = analyse_folder(REPO / "examples/traces/ddp-gloo-straggler")
    lists = {name: getattr(analysis.report, name)[:1] * 5000 for name in ("stragglers", "collectives")}
    large = replace(analysis, report=analysis.report.model_copy(update=lists))
    monkeypatch.setattr(report, "analyse_folder", lambda _: large)
    answer = called("diagnose", folder="ddp-gloo-straggler")
    assert len(text_of(answer)) < 20_000
    assert answer.structured_content is not None
    assert answer.structured_content["left_out"] == {"stragglers": 4980, "collectives": 4980}


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
