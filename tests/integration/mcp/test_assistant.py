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
CONFIG = json.loads((REPO / "examples/llama-3.1-70b.config.json").read_text())
TOOLS = [
    "import_plan", "predict", "optimize", "ask", "search_plans", "compare_plans", "explain_plan", "what_if",
    "export_plan", "patch_plan", "where", "near_runs", "check_runs", "read_runs", "diagnose",
    "search_knowledge", "hardware",
]  # fmt: skip
MAX_SCHEMA_BYTES = 25_000
SCRIPT = """\
#!/bin/bash
TP=8   # inside a node
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 8 \\
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --swiglu --vocab-size 128256 \\
    --num-attention-heads 64 --group-query-attention --num-query-groups 8 \\
    --untie-embeddings-and-output-weights --seq-length 8192 --micro-batch-size 1 \\
    --global-batch-size 128 --bf16 --use-distributed-optimizer --sequence-parallel \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"""

pytestmark = pytest.mark.real


def asked(
    work: Callable[[Client], Awaitable[Any]],
    data: Path,
    address: str | None = None,
    folder: Path | None = None,
) -> Any:  # noqa: ANN401
    """What the work returns with a client of a process on its standard input, or of an address."""

    async def connected() -> Any:  # noqa: ANN401
        environment = {"ASAP_DATA_DIR": str(data)}
        args = [*COMMAND[:-1], str(folder)] if folder else COMMAND
        process = StdioServerParameters(command=sys.executable, args=args, cwd=str(REPO), env=environment)
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
            "ask": {"report": "r1", "question": "why not tp 2?"},
            "where": {
                "scenario": SCENARIO | {"run": {"tokens": 10**12}},
                "clusters": [{"devices": "64 x H100"}, {"devices": "64 x B200", "name": "faster"}],
            },
            "near_runs": {"scenario": SCENARIO, "count": 2},
            "check_runs": {"rows": [{"id": "a", "scenario": SCENARIO, "measured": {"step_time_s": 0.001}}]},
            "read_runs": {"scenario": SCENARIO, "text": "elapsed time per iteration (ms): 9700.0 |\n" * 5},
        }
        return found | {name: await client.call_tool(name, given) for name, given in calls.items()}

    found = asked(work, tmp_path)
    assert [tool.name for tool in found["tools"]] == TOOLS
    assert all(tool.annotations.read_only_hint and tool.description for tool in found["tools"])
    assert sum(len(tool.model_dump_json()) for tool in found["tools"]) < MAX_SCHEMA_BYTES
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
    assert "tp 2" in answers["ask"]["answer"]
    assert [place["name"] for place in answers["where"]["places"]] == ["faster", "64 x H100"]
    assert answers["where"]["places"][0]["run"]["days"] > 0
    assert answers["near_runs"]["runs"][0]["measured_step_time_s"] > 0
    assert answers["check_runs"]["rows"][0]["findings"][0]["severity"] == "error"
    assert answers["read_runs"]["rows"][0]["measured"]["step_time_s"] == 9.7
    assert not list(tmp_path.iterdir()), "an assistant's questions leave nothing behind"


def test_an_assistant_goes_from_a_config_json_to_a_patch_of_the_script_in_five_calls(tmp_path: Path) -> None:
    """Nothing but what a call returned goes into the next."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "pretrain.sh").write_text(SCRIPT)
    calls = []

    async def work(client: Client) -> dict[str, Any]:
        async def call(name: str, **arguments: object) -> Any:  # noqa: ANN401
            calls.append(name)
            answer = await client.call_tool(name, arguments)
            assert not answer.is_error, answer.content
            return answer.structured_content

        devices = (await call("hardware"))["devices"]
        device = next(each["name"] for each in devices if "H100 SXM" in each["title"])
        where = {"device": device, "num_devices": 64}
        alone = await call("import_plan", text=json.dumps(CONFIG), **where)
        today = await call("import_plan", file="pretrain.sh", model=CONFIG, devices="64 x H100")
        report = await call("optimize", scenario=today["scenario"])
        patch = await call("patch_plan", report=report["report"], file="pretrain.sh")
        return {"alone": alone, "today": today, "report": report, "patch": patch}

    found = asked(work, tmp_path / "data", folder=folder)
    assert len(calls) == 5
    assert set(found["alone"]["assumed"]) == {"seq_len", "global_batch_size", "framework"}
    assert found["today"]["scenario"]["plan"]["tp"] == 8
    subprocess.run(["git", "apply", "-"], cwd=folder, input=found["patch"]["diff"], text=True, check=True)
    changed = (folder / "pretrain.sh").read_text()
    best = found["report"]["proposals"][0]["plan"]
    assert changed != SCRIPT
    assert f"TP={best['tp']} " in changed or f"--tensor-model-parallel-size {best['tp']} " in changed


RECIPE = """
from common import _pretrain_common


def llama_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model.tensor_model_parallel_size = 4
    return cfg
"""
COMMON = """
def _pretrain_common() -> ConfigContainer:
    model = GPTProvider(pipeline_model_parallel_size=2, context_parallel_size=1, sequence_parallel=True)
    train = TrainingConfig(global_batch_size=64, micro_batch_size=1)
    return ConfigContainer(model=model, train=train, dataset=GPTDatasetConfig(seq_length=4096))
"""


def test_what_a_file_imports_is_read_below_the_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "recipe.py").write_text(RECIPE)
    (tmp_path / "common.py").write_text(COMMON)
    given = {"file": "recipe.py", "model": CONFIG, "devices": "64 x H100"}

    async def work(client: Client) -> list[Any]:
        outside = await client.call_tool("import_plan", given)
        (folder / "common.py").write_text(COMMON)
        return [outside, await client.call_tool("import_plan", given)]

    outside, inside = asked(work, tmp_path / "data", folder=folder)
    assert outside.content[0].text.startswith("global_batch_size: got nothing")
    plan = inside.structured_content["scenario"]["plan"]
    assert (plan["tp"], plan["pp"], plan["dp"]) == (4, 2, 8)


def test_resources_and_prompts_say_what_a_call_needs(tmp_path: Path) -> None:
    async def work(client: Client) -> dict[str, Any]:
        async def read(uri: str) -> str:
            return str(getattr((await client.read_resource(uri)).contents[0], "text", ""))

        texts = {
            str(each.uri): await read(str(each.uri)) for each in (await client.list_resources()).resources
        }
        entry = json.loads(await read("asap://knowledge/nccl-rails-and-pxn"))
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        patch = await client.get_prompt("patch", {"file": "pretrain.sh", "devices": "64 x H100"})
        return {"texts": texts, "entry": entry, "prompts": prompts, "patch": str(patch.messages[0].content)}

    found = asked(work, tmp_path)
    assert "num_hidden_layers" in found["texts"]["asap://scenario"]
    assert {"h100-sxm-80gb", "tpu-v5p"} <= {
        device["name"] for device in json.loads(found["texts"]["asap://devices"])["devices"]
    }
    assert json.loads(found["texts"]["asap://formats"])["megatron"]["writes"]
    assert found["entry"]["title"]
    assert found["prompts"] == ["plan", "patch"]
    assert "pretrain.sh" in found["patch"]
    assert "patch_plan" in found["patch"]


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
