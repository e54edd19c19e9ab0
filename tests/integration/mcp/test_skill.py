"""skills/asap/SKILL.md, which teaches assistants to use ASAP: what it names exists, what it shows works."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.integration.docs.pages import fenced_blocks

REPO = Path(__file__).resolve().parents[3]
SKILL = REPO / "skills/asap/SKILL.md"
MAX_DESCRIPTION = 1024
"""Of the format that assistants read (agentskills.io): a longer one is cut or refused."""
PROCESS = StdioServerParameters(
    command=sys.executable, args=["-m", "service.cli.main", "mcp"], env={"PYTHONPATH": str(REPO)}
)


def test_the_front_matter_is_what_assistants_read() -> None:
    _, front, _ = SKILL.read_text().split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields["name"] == SKILL.parent.name
    assert 0 < len(fields["description"]) <= MAX_DESCRIPTION


@pytest.mark.real
def test_an_assistant_that_follows_it_gets_a_plan_and_its_file() -> None:
    """Over the protocol, in a process of its own: the tools of the table, its scenario, an export."""
    text = SKILL.read_text()
    table = text.split("| the user wants | call |")[1].split("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", table)) - {"plan"}
    scenario = json.loads(next(b.text for b in fenced_blocks(text) if '"cluster"' in b.text))

    async def follow() -> tuple[set[str], Any, Any]:
        async with Client(stdio_client(PROCESS)) as client:
            offered = {tool.name for tool in (await client.list_tools()).tools}
            report: Any = (await client.call_tool("optimize", {"scenario": scenario})).structured_content
            planned = {**scenario, "plan": report["proposals"][0]["plan"]}
            words = {"scenario": planned, "format": "megatron"}
            return offered, report, (await client.call_tool("export_plan", words)).structured_content

    offered, report, export = anyio.run(follow)
    assert named == offered
    assert len(report["proposals"]) == 3
    assert "--tensor-model-parallel-size" in export["text"]
