"""ASAP's tools over the Model Context Protocol, on standard input and output or as streamable HTTP.

A scenario in, plain data out, short enough for a model to read.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from service.schemas import ScenarioCreate, SearchCreate
from service.settings import Settings
from tools.errors import InputError

if TYPE_CHECKING:
    from graph.context import Context
    from tools.kb import Hit
import inspect
import json
import socket
from functools import wraps

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic_core import to_json

from service import __version__
from tools.errors import AsapError

Data = dict[str, Any]
Scenario = Annotated[ScenarioCreate, Field(description="model, cluster, training and plan")]
Search = Annotated[SearchCreate, Field(description="a scenario; `plan` is today's, absent for a cold start")]
Folder = Annotated[str, Field(description="traces of one run, one file a rank", max_length=4000)]
Question = Annotated[str, Field(description="a sentence, or a whole diagnosis", max_length=4000)]
Format = Annotated[str, Field(description="torchtitan, megatron, nemo, deepspeed, maxtext or accelerate")]

REPORT = (
    "verdict", "first_step", "would_change", "diagnosis", "baseline", "proposals", "rejected", "searched",
    "advice", "cases", "notes", "incidents", "reasoner",
)  # fmt: skip
"""Of a session's report; the rest is for figures."""
IN_SHORT = {
    "rejected": ("summary", "binding", "why", "step_time_s", "step_time_ratio", "peak_memory_gib"),
    "advice": ("id", "title", "do", "effect"),
    "cases": ("id", "title", "status", "warning", "lesson"),
}
"""Of each item of these lists; knowledge is found whole by `search_knowledge`."""
DIAGNOSIS = ("diagnosis", "total", "stragglers", "collectives", "pipeline", "unreadable")
"""Of an analysis; what each rank did would fill a model's memory."""
LISTS = ("stragglers", "collectives", "unreadable")
MOST_LISTED = 20
"""Of each, the worst first: a job may have thousands of ranks."""


class Tools:
    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder = settings, folder.resolve()
        self._lock = Lock()

    def all(self) -> list[Callable[..., Data]]:
        """In the order in which an assistant would use them."""
        return [
            self.predict,
            self.optimize,
            self.explain_plan,
            self.export_plan,
            self.diagnose,
            self.search_knowledge,
        ]

    def predict(self, scenario: Scenario) -> Data:
        """Predict the step time of a training plan: 80% interval, breakdown, memory, MFU, bottleneck."""
        from tools.cost.predict import predict
        from tools.scenario import parse_scenario

        return predict([parse_scenario(scenario.body())])[0].model_dump()

    def optimize(self, scenario: Search) -> Data:
        """Search every legal sharding plan; at most three proposals with speed-ups, reasons and risks.

        `constraints` fixes or limits plan fields, `traces` names a folder of profiles of today's run.
        `advice` and `cases` are told in short: `search_knowledge` has them whole, with their sources.
        """
        from graph.request import parse_request
        from graph.session import Session

        body = scenario.body()
        for name in {"mode", "approval"} & body.keys():
            raise InputError(name, body[name], "an assistant is advised only; 'asap serve' tunes")
        if body.get("traces") is not None:
            body["traces"] = str(self._below(str(body["traces"]), "traces"))
        report = Session("mcp", self._context).run(parse_request(body)).report or {}
        short = {name: [_picked(one, IN_SHORT[name]) for one in report.get(name) or ()] for name in IN_SHORT}
        return _picked(report, REPORT) | short

    def explain_plan(self, scenario: Search, plan: Data) -> Data:
        """Say what speaks against a plan: the rule it breaks, the memory it lacks, the term that is slower.

        `plan` holds the fields that differ from the best plan, for instance {"tp": 8, "pp": 1}.
        """
        from tools.recommend.optimize import best_plans, workload_of
        from tools.recommend.score import complete
        from tools.recommend.why_not import explain_plan
        from tools.scenario import parse_scenario

        workload = workload_of(parse_scenario(scenario.body(), need_plan=False))
        winner = best_plans(workload)[0][0]
        answer = explain_plan(workload, complete(workload, winner, plan), winner).model_dump()
        return {"winner": winner.model_dump(), **answer}

    def export_plan(self, scenario: Scenario, format: Format) -> Data:
        """Write a scenario's plan as the configuration of a training framework."""
        from tools.frameworks import export_plan
        from tools.scenario import parse_scenario

        return asdict(export_plan(parse_scenario(scenario.body()), format))

    def diagnose(self, folder: Folder) -> Data:
        """Find where the time of profiled training steps goes, and why, from a folder of profiler traces."""
        from tools.trace.report import analyse_folder

        found = analyse_folder(self._below(folder, "folder")).report.model_dump()
        shown = {name: found[name][:MOST_LISTED] for name in LISTS}
        left_out = {name: len(found[name]) - MOST_LISTED for name in LISTS if len(found[name]) > MOST_LISTED}
        return {**_picked(found, DIAGNOSIS), **shown, "left_out": left_out, "ranks": len(found["ranks"])}

    def search_knowledge(self, query: Question, limit: Annotated[int, Field(ge=1, le=20)] = 5) -> Data:
        """Find playbooks (advice with its conditions) and measured cases about sharding, with sources."""
        hits = self._context.knowledge.search(query, limit=limit)
        return {"hits": [_told(hit) for hit in hits]}

    @property
    def _context(self) -> "Context":
        with self._lock:  # calls come on threads, and two must not open the knowledge base
            return self._opened

    @cached_property
    def _opened(self) -> "Context":
        from service.runtime import open_context

        return open_context(self._settings, learns=False)

    def _below(self, path: str, field: str) -> Path:
        found = (self._folder / path).resolve()
        if not found.is_relative_to(self._folder):
            raise InputError(field, path, f"must lie below {self._folder} ('asap mcp --folder DIR' sets it)")
        return found


def _told(hit: "Hit") -> Data:
    entry = hit.entry
    head = {"id": entry.id, "kind": entry.kind, "title": entry.title, "status": entry.status}
    body = {name: value for name, value in entry.body.items() if name not in head}
    return head | {"warning": hit.warning, "body": body}


def _picked(data: Mapping[str, Any], names: tuple[str, ...]) -> Data:
    return {name: data[name] for name in names if name in data}


HOST = "127.0.0.1"
PATH = "/mcp"
DIGITS = 4
"""Of every number: more would mean nothing, and an assistant pays for each."""
ARGUMENTS = {"DIR": "folder", "--format": "format"}
"""What the command line calls otherwise."""
INSTRUCTIONS = """\
ASAP predicts and improves how a training job of a large language model is sharded. A scenario holds `model`
(a Hugging Face config.json will do), `cluster` (device, num_devices, devices_per_node), `training` (seq_len,
global_batch_size, precision, framework) and `plan` (tp, pp, cp, ep, dp, zero_stage, micro_batch_size,
recompute, ...). Numbers come from these tools: do not estimate step times yourself. Predictions carry an 80%
interval; tell it along."""


def make_server(settings: Settings, folder: Path) -> MCPServer[Any]:
    """`folder` is the one below which traces may be read."""
    server: MCPServer[Any] = MCPServer("asap", version=__version__, instructions=INSTRUCTIONS)
    harmless = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool in Tools(settings, folder).all():
        server.add_tool(_telling(tool), description=inspect.getdoc(tool), annotations=harmless)
    return server


def serve_http(server: MCPServer[Any], port: int, announce: Callable[[str], None]) -> None:
    """On loopback only: there is no key. Pages of other sites are refused by their Host and Origin."""
    app = server.streamable_http_app(
        host=HOST, streamable_http_path=PATH, stateless_http=True, json_response=True
    )
    with _listen(port) as listening:
        announce(f"http://{HOST}:{listening.getsockname()[1]}{PATH}")
        uvicorn.Server(uvicorn.Config(app, log_config=None)).run(sockets=[listening])


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise AsapError(f"cannot listen on {HOST}:{port}: {error.strerror or error}") from None


def _telling(tool: Callable[..., Any]) -> Callable[..., Any]:
    """What the caller did wrong is told to the model, which can then do it right."""

    @wraps(tool)
    def call(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - any tool's
        try:
            return _answer(tool(*given, **named))
        except InputError as error:
            field = ARGUMENTS.get(error.field, error.field)
            raise ToolError(str(InputError(field, error.given, error.allowed))) from None
        except AsapError as error:
            raise ToolError(str(error)) from None

    return call


def _answer(data: Any) -> CallToolResult:  # noqa: ANN401 - any tool's
    """The same twice, as the protocol has it: a text for models, without blanks, and data for programs."""
    text = to_json(_rounded(data), fallback=str).decode()
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=json.loads(text))


def _rounded(value: Any) -> Any:  # noqa: ANN401 - any plain data
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
