"""The real `asap mcp` process, called by the MCP package's own client as an assistant would."""

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

REPO = Path(__file__).resolve().parents[3]
SCENARIO = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
COMMAND = ["-m", "service.cli.main", "mcp", "--folder", str(REPO / "examples/traces")]
TOOLS = [
    "predict", "optimize", "search_plans", "compare_plans", "explain_plan", "what_if", "export_plan",
    "import_plan", "diagnose", "search_knowledge", "hardware",
]  # fmt: skip

pytestmark = pytest.mark.real


def asked(work: Callable[[Client], Awaitable[Any]], data: Path, address: str | None = None) -> Any:  # noqa: ANN401
    """What the work returns with a client of a process on its standard input, or of an address."""

    async def connected() -> Any:  # noqa: ANN401
        environment = {"ASAP_DATA_DIR": str(data)}
        process = StdioServerParameters(command=sys.executable, args=COMMAND, cwd=str(REPO), env=environment)
        async with Client(address or stdio_client(process)) as client:
            return await work(client)

    return anyio.run(connected)


@contextmanager
def served_over_http(data: Path) -> Iterator[str]:
    command = [sys.executable, *COMMAND, "--port", "0", "--json"]
    environment = {"ASAP_DATA_DIR": str(data), "PATH": ""}
    process = subprocess.Popen(command, cwd=REPO, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def test_an_assistant_finds_the_tools_and_uses_each_of_them(tmp_path: Path) -> None:
    async def work(client: Client) -> dict[str, Any]:
        found = {"tools": (await client.list_tools()).tools}
        calls = {
            "predict": {"scenario": SCENARIO},
            "optimize": {"scenario": SCENARIO},
            "search_plans": {"scenario": SCENARIO, "constraints": {"tp": {"max": 4}}, "count": 1},
            "compare_plans": {"scenario": SCENARIO, "plans": [{"tp": 4}, {"tp": 8}]},
            "explain_plan": {"scenario": SCENARIO, "plan": {"tp": 1}},
            "what_if": {"scenario": SCENARIO, "term": "tp_comm_exposed", "factor": 0.5},
            "hardware": {"name": "h100-sxm-80gb"},
            "export_plan": {"scenario": SCENARIO, "format": "megatron"},
            "diagnose": {"folder": "ddp-gloo-straggler"},
            "search_knowledge": {"query": "all-reduce of gradients is exposed", "limit": 2},
        }
        return found | {name: await client.call_tool(name, given) for name, given in calls.items()}

    found = asked(work, tmp_path)
    assert [tool.name for tool in found["tools"]] == TOOLS
    assert all(tool.annotations.read_only_hint and tool.description for tool in found["tools"])
    answers = {name: answer.structured_content for name, answer in found.items() if name in TOOLS}
    assert answers["predict"]["id"] == SCENARIO["id"]
    assert answers["predict"]["fits"]
    assert [proposal["rank"] for proposal in answers["optimize"]["proposals"]] == [1, 2, 3]
    assert answers["optimize"]["baseline"]["step_time_s"] == answers["predict"]["step_time_s"]
    assert answers["search_plans"]["plans"][0]["plan"]["tp"] <= 4
    assert answers["compare_plans"]["plans"][0]["ratio_to_first"] == 1
    assert answers["what_if"]["step_time_then_s"] < answers["what_if"]["step_time_s"]
    assert answers["hardware"]["name"] == "h100-sxm-80gb"
    assert answers["explain_plan"]["binding"] == "memory"
    assert "--tensor-model-parallel-size 8" in answers["export_plan"]["text"]
    assert answers["diagnose"]["ranks"] == 2
    assert [straggler["rank"] for straggler in answers["diagnose"]["stragglers"]] == [1]
    assert len(answers["search_knowledge"]["hits"]) == 2
    assert not list(tmp_path.iterdir()), "an assistant's questions leave nothing behind"


def test_a_wrong_scenario_is_explained_to_the_assistant(tmp_path: Path) -> None:
    async def work(client: Client) -> list[Any]:
        wrong = {**SCENARIO, "plan": {**SCENARIO["plan"], "tp": 3}}
        return [
            await client.call_tool("predict", {"scenario": wrong}),
            await client.call_tool("optimize", {"scenario": {**SCENARIO, "traces": "../../service"}}),
            await client.call_tool("optimize", {"scenario": {**SCENARIO, "mode": "tune"}}),
            await client.call_tool("diagnose", {"folder": "/"}),
            await client.call_tool("diagnose", {"folder": "absent"}),
        ]

    answers = asked(work, tmp_path)
    assert all(answer.is_error for answer in answers)
    texts = [answer.content[0].text for answer in answers]
    assert "tp" in texts[0]
    assert "must be below" in texts[1]
    assert "not available to an assistant" in texts[2]
    assert "must be below" in texts[3]
    assert "folder" in texts[4]


def test_the_same_is_served_over_http(tmp_path: Path) -> None:
    async def work(client: Client) -> dict[str, Any]:
        return dict((await client.call_tool("predict", {"scenario": SCENARIO})).structured_content or {})

    with served_over_http(tmp_path) as address:
        prediction = asked(work, tmp_path, address)
        code = (
            "import httpx, sys; "
            "print(httpx.post(sys.argv[1], json={}, headers={'Host': 'evil.example'}).status_code)"
        )
        refused = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True)
    assert prediction["fits"]
    assert refused.stdout.strip() == "421", "a page of another site could reach the tools by its own name"
