"""ASAP's tools over the Model Context Protocol, on standard input and output or as streamable HTTP.

A scenario in, JSON out, short enough for a model to read.
"""

import inspect
import json
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, wraps
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, JsonValue, ValidationError
from pydantic_core import to_json, to_jsonable_python

from service import __version__
from service.schemas import ScenarioCreate, SearchCreate
from service.settings import Settings
from tools.errors import AsapError, InputError
from tools.scenario.fields import JsonObject
from tools.scenario.spec import REQUIRED_PLAN_FIELDS

if TYPE_CHECKING:
    from graph.answers import SuggestedPlan
    from graph.context import Context
    from graph.toolbox import Toolbox
    from tools.kb import Hit

Scenario = Annotated[ScenarioCreate, Field(description="model, cluster, training and plan")]
Search = Annotated[SearchCreate, Field(description="a scenario; `plan` is today's, absent for a cold start")]
PlanFields = Annotated[JsonObject, Field(description="the fields that differ from the best plan")]
Folder = Annotated[str, Field(description="traces of one run, one file per rank", max_length=4000)]
Question = Annotated[str, Field(description="a sentence, or a whole diagnosis", max_length=4000)]
Format = Annotated[
    str,
    Field(
        description="torchtitan, megatron, nemo, deepspeed, maxtext, accelerate, nanotron, automodel or "
        "huggingface"
    ),
]
Limit = Annotated[int, Field(ge=1, le=20)]
Limits = Annotated[
    JsonObject, Field(description='per plan field a value, a list, or {"not": [...], "min": n, "max": n}')
]
Count = Annotated[int, Field(ge=1, le=3)]
Plans = Annotated[list[JsonObject], Field(min_length=2, max_length=4, description="fields of each plan")]
Term = Annotated[str, Field(description="a key of breakdown_s, such as tp_comm_exposed", max_length=60)]
Factor = Annotated[float, Field(ge=0, le=10)]
Device = Annotated[str, Field(description="a name of the catalogue, such as h100-sxm-80gb", max_length=60)]
NumDevices = Annotated[int, Field(ge=1, le=1_000_000)]
Configuration = Annotated[str, Field(description="the configuration's text", max_length=1_000_000)]
View = Literal["summary", "stragglers", "collectives", "operations", "host", "variation"]

HOST, PATH = "127.0.0.1", "/mcp"
DIGITS = 4
"""Significant digits of every number: an assistant pays for each token."""
ARGUMENTS = {"DIR": "folder", "--format": "format"}
"""Names of the command line, as the tools call them."""
INSTRUCTIONS = f"""\
ASAP predicts and improves how a training job of a large language model is sharded. A scenario has `model`
(a Hugging Face config.json will do), `cluster` (device, num_devices, devices_per_node), `training` (seq_len,
global_batch_size, precision, framework) and `plan`
({", ".join(REQUIRED_PLAN_FIELDS)}, ...).
Numbers come from these tools: do not estimate step times yourself. Predictions have an 80% interval; report
it too."""

REPORT_FIELDS = (
    "verdict", "first_step", "would_change", "diagnosis", "baseline", "proposals", "rejected", "searched",
    "advice", "cases", "notes", "incidents", "reasoner",
)  # fmt: skip
"""Fields of a session's report to return; the others are for figures."""
ITEM_FIELDS = {
    "rejected": ("summary", "binding", "why", "step_time_s", "step_time_ratio", "peak_memory_gib"),
    "advice": ("id", "title", "do", "effect"),
    "cases": ("id", "title", "status", "warning", "lesson"),
}
"""Fields to return of each item of these lists; `search_knowledge` returns whole entries."""
ANALYSIS_FIELDS = ("diagnosis", "total", "stragglers", "collectives", "pipeline", "unreadable")
"""Fields of a trace analysis to return; those of each rank would fill a model's context."""
LIMITED_LISTS = ("stragglers", "collectives", "unreadable")
MAX_ITEMS = 20
"""Per list, the worst first: a job may have thousands of ranks."""


def make_server(settings: Settings, folder: Path) -> MCPServer[Any]:
    """Traces are read below `folder` only."""
    server: MCPServer[Any] = MCPServer("asap", version=__version__, instructions=INSTRUCTIONS)
    annotations = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    tools = Tools(settings, folder)
    for tool in (  # in the order in which an assistant would use them
        tools.predict,
        tools.optimize,
        tools.search_plans,
        tools.compare_plans,
        tools.explain_plan,
        tools.what_if,
        tools.export_plan,
        tools.import_plan,
        tools.diagnose,
        tools.search_knowledge,
        tools.hardware,
    ):
        server.add_tool(_with_tool_errors(tool), description=inspect.getdoc(tool), annotations=annotations)
    return server


def serve_http(server: MCPServer[Any], port: int, announce: Callable[[str], None]) -> None:
    """On loopback only: there is no key. Pages of other sites are refused by their Host and Origin."""
    app = server.streamable_http_app(
        host=HOST, streamable_http_path=PATH, stateless_http=True, json_response=True
    )
    with _listen(port) as listening:
        announce(f"http://{HOST}:{listening.getsockname()[1]}{PATH}")
        uvicorn.Server(uvicorn.Config(app, log_config=None)).run(sockets=[listening])


class Tools:
    """The docstrings of the methods are the descriptions that an assistant reads."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder = settings, folder.resolve()
        self._lock = Lock()

    def predict(self, scenario: Scenario) -> JsonObject:
        """Predict the step time of a training plan: 80% interval, breakdown, memory, MFU, bottleneck."""
        from tools.cost.predict import predict
        from tools.scenario import parse_scenario

        return _as_json(predict([parse_scenario(scenario.body())])[0])

    def optimize(self, scenario: Search) -> JsonObject:
        """Search every legal sharding plan; at most three proposals with speed-ups, reasons and risks.

        `constraints` fixes or limits plan fields, `traces` names a folder of profiles of today's run.
        `advice` and `cases` are abridged: `search_knowledge` returns them whole, with their sources.
        Evidence without `says` repeats that of an earlier proposal with the same `ref`.
        """
        from graph.request import parse_request
        from graph.session import Session

        body = scenario.body()
        for name in {"mode", "approval"} & body.keys():
            raise InputError(name, body[name], "not available to an assistant; 'asap serve' tunes")
        if body.get("traces") is not None:
            body["traces"] = str(self._resolve(str(body["traces"]), "traces"))
        report = _as_json(Session("mcp", self._context).run(parse_request(body)).report)
        abridged: JsonObject = {
            name: [_pick(item, fields) for item in _items(report, name)]
            for name, fields in ITEM_FIELDS.items()
        }
        _drop_repeated_evidence(_items(report, "proposals"))
        return _pick(report, REPORT_FIELDS) | abridged

    def search_plans(self, scenario: Search, constraints: Limits, count: Count = 3) -> JsonObject:
        """Search every legal plan under further constraints: at most three of different families."""
        return _as_json(self._toolbox(scenario).search_plans(constraints, count))

    def compare_plans(self, scenario: Search, plans: Plans) -> JsonObject:
        """Compare plans: step times, which terms differ, whether that is beyond the error.

        Each of `plans` holds the fields that differ from the scenario's plan, or else from the best one.
        """
        return {"plans": to_jsonable_python(self._toolbox(scenario).compare_plans(_parse_plans(plans)))}

    def explain_plan(self, scenario: Search, plan: PlanFields) -> JsonObject:
        """Say what speaks against a plan: the rule it breaks, the memory it lacks, the term that is slower.

        `plan` holds the fields that differ from the best plan, for instance {"tp": 8, "pp": 1}.
        """
        from tools.recommend.optimize import best_plans
        from tools.recommend.score import complete
        from tools.recommend.why_not import explain_plan

        workload = self._toolbox(scenario).workload
        winner = best_plans(workload)[0][0]
        explanation = explain_plan(workload, complete(workload, winner, plan), winner)
        return {"winner": winner.model_dump(), **_as_json(explanation)}

    def what_if(self, scenario: Search, term: Term, factor: Factor) -> JsonObject:
        """Say what the step would take if one term of its predicted breakdown took `factor` times as long."""
        return _as_json(self._toolbox(scenario).what_if(term, factor))

    def export_plan(self, scenario: Scenario, format: Format) -> JsonObject:
        """Write a scenario's plan as the configuration of a training framework."""
        from tools.frameworks import export_plan
        from tools.scenario import parse_scenario

        return _as_json(export_plan(parse_scenario(scenario.body()), format))

    def import_plan(
        self, text: Configuration, format: Format, device: Device, num_devices: NumDevices
    ) -> JsonObject:
        """Read another tool's configuration as a scenario; the notes say what was not taken over."""
        from tools.frameworks import import_plan
        from tools.frameworks.importing import ImportOptions

        return _as_json(import_plan(text, format, ImportOptions(device=device, num_devices=num_devices)))

    def hardware(self, name: Device) -> JsonObject:
        """Describe a device of the catalogue: memory, peak rates, links, with their sources."""
        from tools.hardware import describe, get_device

        return _as_json(describe(get_device(name)))

    def diagnose(self, folder: Folder, view: View | None = None) -> JsonObject:
        """Find where the time of profiled training steps goes, and why, from a folder of profiler traces.

        `view` shows one part in more detail: summary, stragglers, collectives, operations, host or variation.
        """
        from graph.toolbox import ProfileTools
        from tools.trace.report import analyse_folder

        report = analyse_folder(self._resolve(folder, "folder")).report
        if view is not None:
            return {view: to_jsonable_python(ProfileTools(report).view(view))}
        analysis = _as_json(report.model_dump())
        lists = {name: _items(analysis, name) for name in LIMITED_LISTS}
        limited: JsonObject = {name: [*items[:MAX_ITEMS]] for name, items in lists.items()}
        left_out: JsonObject = {
            name: len(items) - MAX_ITEMS for name, items in lists.items() if len(items) > MAX_ITEMS
        }
        ranks = len(_items(analysis, "ranks"))
        return _pick(analysis, ANALYSIS_FIELDS) | limited | {"left_out": left_out, "ranks": ranks}

    def search_knowledge(self, query: Question, limit: Limit = 5) -> JsonObject:
        """Find playbooks (advice with its conditions) and measured cases about sharding, with sources."""
        return {"hits": [_public_hit(hit) for hit in self._context.knowledge.search(query, limit=limit)]}

    def _toolbox(self, scenario: SearchCreate) -> "Toolbox":
        from graph.toolbox import Toolbox
        from tools.scenario import parse_scenario

        return Toolbox(self._context, parse_scenario(scenario.body(), need_plan=False))

    @property
    def _context(self) -> "Context":
        with self._lock:  # calls come from several threads: the knowledge base is opened once
            return self._open_context

    @cached_property
    def _open_context(self) -> "Context":
        from service.runtime import open_context

        return open_context(self._settings, saves_cases=False)

    def _resolve(self, path: str, field: str) -> Path:
        resolved = (self._folder / path).resolve()
        if not resolved.is_relative_to(self._folder):
            raise InputError(field, path, f"must be below {self._folder} ('asap mcp --folder DIR' sets it)")
        return resolved


def _parse_plans(plans: list[JsonObject]) -> "list[SuggestedPlan]":
    """Raises InputError that names the field."""
    from graph.answers import SuggestedPlan

    try:
        return [SuggestedPlan.model_validate(plan) for plan in plans]
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, ("plans", *first["loc"])))
        raise InputError(field, first["input"], first["msg"]) from None


def _public_hit(hit: "Hit") -> JsonObject:
    entry = hit.entry
    head: JsonObject = {"id": entry.id, "kind": entry.kind, "title": entry.title, "status": entry.status}
    body = {name: value for name, value in entry.json_body().items() if name not in head}
    return head | {"warning": hit.warning, "body": body}


def _as_json(value: object) -> JsonObject:
    """Of a model, a dataclass or a mapping; fields of models that are None are left out."""
    plain: JsonObject = to_jsonable_python(value, fallback=str, exclude_none=True) or {}
    return plain


def _drop_repeated_evidence(proposals: list[JsonObject]) -> None:
    """The proposals of one report share most of their evidence: it is spelled out once."""
    spelled_out: set[tuple[JsonValue, JsonValue]] = set()
    for evidence in (item for proposal in proposals for item in _items(proposal, "evidence")):
        fact = (evidence.get("ref"), evidence.get("says"))
        if fact in spelled_out:
            del evidence["says"]
        spelled_out.add(fact)


def _items(data: JsonObject, name: str) -> list[JsonObject]:
    items = data.get(name)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _pick(data: JsonObject, names: Iterable[str]) -> JsonObject:
    return {name: data[name] for name in names if name in data}


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise AsapError(f"cannot listen on {HOST}:{port}: {error.strerror or error}") from None


def _with_tool_errors(tool: Callable[..., JsonObject]) -> Callable[..., CallToolResult]:
    """Returns a caller's mistake to the model as a tool error, so that it can correct the call."""

    @wraps(tool)
    def call(*arguments: Any, **named: Any) -> CallToolResult:  # noqa: ANN401 - any tool's
        try:
            return _result(tool(*arguments, **named))
        except InputError as error:
            field = ARGUMENTS.get(error.field, error.field)
            raise ToolError(str(InputError(field, error.given, error.allowed))) from None
        except AsapError as error:
            raise ToolError(str(error)) from None

    return call


def _result(data: JsonObject) -> CallToolResult:
    """The same twice, as the protocol has it: compact text for models, and data for programs."""
    text = to_json(_round(data)).decode()
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=json.loads(text))


def _round(value: JsonValue) -> JsonValue:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _round(inner) for name, inner in value.items()}
    return [_round(inner) for inner in value] if isinstance(value, list) else value
