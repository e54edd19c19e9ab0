"""ASAP's tools over the Model Context Protocol, on standard input and output or as streamable HTTP.

A scenario in, JSON out, short enough for a model to read.
"""

import inspect
import json
import socket
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import cached_property, wraps
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.context import Context as CallContext
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ConfigDict, Field, create_model
from pydantic_core import to_json

from graph.answers import SuggestedPlan
from graph.tools import VIEWS, FewPlans, PlanLimits, ProfileTools, Toolbox
from service import __version__
from service.settings import Settings
from tools.errors import AsapError, InputError
from tools.frameworks import EXPORT_FORMATS, IMPORT_FORMATS, Export, ImportOptions, Patch
from tools.frameworks import export_plan as write_plan
from tools.frameworks import patch_plan as change_file
from tools.frameworks.formats import REGISTRY
from tools.frameworks.python_config import FindModule, module_finder, no_module
from tools.frameworks.start import start_scenario
from tools.hardware import describe, device_names, get_device
from tools.model.basis import ExplainedPrediction, explained
from tools.model.logs import read_log
from tools.model.near import nearest_runs
from tools.model.published import published_runs
from tools.model.row_checks import check_rows
from tools.model.run_tables import find_table, rows_of_table
from tools.physics.terms import STEP_TERMS
from tools.recommend.optimize import explain_against_best
from tools.recommend.report import PlanFields
from tools.recommend.where import CandidateCluster, compare_places
from tools.scenario import Scenario
from tools.scenario.fields import NOTHING, JsonObject, build
from tools.scenario.parse import StatedScenario, parse_scenario
from tools.scenario.spec import REQUIRED_PLAN_FIELDS

if TYPE_CHECKING:
    from graph.context import Context
    from graph.report import Report

# Without their fields, which stand once in a resource: seven tools would repeat 18 kB each.
PlannedJson = Annotated[JsonObject, Field(description="model, cluster, training and plan")]
ScenarioJson = Annotated[JsonObject, Field(description="a scenario; `plan` is today's, if there is one")]
RunRows = Annotated[list[JsonObject], Field(min_length=1, max_length=1000)]
PlansJson = Annotated[list[JsonObject], Field(min_length=2, max_length=4, description="fields of each plan")]
# Not `str | None`: the protocol's package would read a config.json out of such a text.
ConfigText = Annotated[str, Field(description="the file's text", max_length=1_000_000)]
FilePath = Annotated[str, Field(description="or the file, below the server's folder", max_length=4000)]
FormatName = Annotated[str, Field(description=f"one of {', '.join(IMPORT_FORMATS)} (default: recognised)")]
FileSettings = Annotated[
    JsonObject,
    Field(description="variables of the file (TP: 8) or fields of the scenario (plan.recompute: full)"),
]
ReportName = Annotated[str, Field(description="`report` of an answer of optimize", max_length=20)]
ProposalRank = Annotated[int, Field(description="rank of its proposal", ge=1, le=3)]

HOST, PATH = "127.0.0.1", "/mcp"
SCENARIO_RESOURCE = "asap://scenario"
JSON = "application/json"
DIGITS = 4
"""Significant digits of every number: an assistant pays for each token."""
INSTRUCTIONS = f"""\
ASAP predicts and improves how a training job of a large language model is sharded. A scenario has `model`
(a Hugging Face config.json will do), `cluster` (device, num_devices, devices_per_node), `training` (seq_len,
global_batch_size, precision, framework) and `plan`
({", ".join(REQUIRED_PLAN_FIELDS)}, ...).
Numbers come from these tools: do not estimate step times yourself. Predictions have an 80% interval; report
it too. From files to a change of them: `import_plan` (the job's script or configuration, with the config.json
as `model`), `optimize` with its scenario, `patch_plan` with the report's name. Resources have the fields of a
scenario ({SCENARIO_RESOURCE}), the devices and the formats."""
PLAN_STEPS = """\
Import it with import_plan and call optimize. Say the plan, its step time with the interval, what was assumed
and what would change the answer; then export the plan."""
PATCH_STEPS = """\
Import it with import_plan, call optimize, show the diff of patch_plan with the predicted gain and its
interval, and apply it once I agree."""
MAX_REPORTS = 32
"""That are remembered for `ask`, `export_plan` and `patch_plan`."""
MAX_CONFIG_BYTES = 2**24
MAX_FILE_BYTES = 64 * 2**20
"""A log may have this size."""
REPORT_FIELDS: dict[str, bool | dict[str, set[str]]] = {
    "verdict": True,
    "explanation": True,
    "first_step": True,
    "would_change": True,
    "diagnosis": True,
    "baseline": True,
    "proposals": True,
    "rejected": {
        "__all__": {"summary", "binding", "why", "step_time_s", "step_time_ratio", "peak_memory_gib"}
    },
    "searched": True,
    "advice": {"__all__": {"id", "title", "do", "effect"}},
    "cases": {"__all__": {"id", "title", "status", "warning", "lesson"}},
    "notes": True,
    "incidents": True,
    "reasoner": True,
}
"""Fields of a report to return; the others are for figures, and `search_knowledge` has whole entries."""
PLACE_FIELDS = {"name", "framework", "plan", "is_on_front", "reason"}
RUN_FIELDS = {"step_time_s", "run"}
TRACE_FIELDS = {"diagnosis", "total", "stragglers", "collectives", "pipeline", "unreadable"}
"""Fields of a trace analysis to return; those of each rank would fill a model's context."""
LIMITED_LISTS = ("stragglers", "collectives", "unreadable")
MAX_ITEMS = 20
"""Per list, the worst first: a job may have thousands of ranks."""


class ClosedArguments(ArgModelBase):
    model_config = ConfigDict(extra="forbid")


class ClosedTool(Tool):
    """Refuses what it does not know, and names a mistake as every other front end does."""

    async def run(
        self, arguments: dict[str, Any], context: CallContext[Any, Any], convert_result: bool = False
    ) -> object:
        try:
            build(self.fn_metadata.arg_model, self.fn_metadata.pre_parse_json(arguments))
        except InputError as error:
            raise ToolError(str(error)) from None
        try:
            return await super().run(arguments, context, convert_result)
        except ToolError as error:
            if isinstance(error.__cause__, ToolError):  # the package writes the tool's name before it
                raise error.__cause__ from None
            raise


def make_server(settings: Settings, folder: Path) -> MCPServer[object]:
    """Files are read below `folder` only."""
    tools = AssistantTools(settings, folder)
    in_order_of_use: tuple[Callable[..., object], ...] = (
        tools.import_plan,
        tools.predict,
        tools.optimize,
        tools.ask,
        tools.search_plans,
        tools.compare_plans,
        tools.explain_plan,
        tools.what_if,
        tools.export_plan,
        tools.patch_plan,
        tools.where,
        tools.near_runs,
        tools.check_runs,
        tools.read_runs,
        tools.diagnose,
        tools.search_knowledge,
        tools.hardware,
    )
    server: MCPServer[object] = MCPServer(
        "asap", version=__version__, instructions=INSTRUCTIONS, tools=[*map(closed_tool, in_order_of_use)]
    )

    @server.resource(SCENARIO_RESOURCE, description="JSON Schema of a scenario", mime_type=JSON)
    def scenario() -> str:
        return json.dumps(StatedScenario.model_json_schema())

    @server.resource("asap://devices", description="the device catalogue", mime_type=JSON)
    def devices() -> str:
        return to_json(tools.hardware()).decode()

    @server.resource("asap://formats", description="configurations that are read and written", mime_type=JSON)
    def formats() -> str:
        return json.dumps({name: {"reads": f.reads, "writes": f.writes} for name, f in REGISTRY.items()})

    @server.resource("asap://knowledge/{id}", description="a playbook or case, whole", mime_type=JSON)
    def knowledge(id: str) -> str:
        try:
            return to_json(tools.knowledge_entry(id)).decode()
        except InputError as error:
            raise ResourceError(str(error)) from None

    @server.prompt(description="the best plan of a model or of today's job")
    def plan(what: str, devices: str) -> str:
        return f"Which sharding plan should {what} train with on {devices}? {PLAN_STEPS}"

    @server.prompt(description="a training script changed to the best plan")
    def patch(file: str, devices: str) -> str:
        return f"Change {file}, which runs on {devices}, to the best sharding plan. {PATCH_STEPS}"

    return server


def closed_tool(method: Callable[..., object]) -> ClosedTool:
    """A tool with the arguments of the method; a field of ImportOptions is an argument of its own."""
    tool = ClosedTool.from_function(
        with_tool_errors(method),
        description=inspect.getdoc(method),
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    )
    assert isinstance(tool, ClosedTool)
    open_model = tool.fn_metadata.arg_model
    closed = create_model(open_model.__name__, __base__=(open_model, ClosedArguments))
    metadata = tool.fn_metadata.model_copy(update={"arg_model": closed})
    schema = closed.model_json_schema(by_alias=True)
    return tool.model_copy(update={"fn_metadata": metadata, "parameters": schema})


def with_tool_errors(tool: Callable[..., object]) -> Callable[..., CallToolResult]:
    """Returns a caller's mistake to the model as a tool error, so that it can correct the call.

    An answer is the same twice, as the protocol has it: compact text for models, and data for programs.
    """
    arguments = dict(inspect.signature(tool).parameters)
    options = arguments.pop("options", None)
    stated = {
        name: hint
        for name, hint in get_type_hints(ImportOptions, include_extras=True).items()
        if options and hasattr(hint, "__metadata__")
    }
    for field in fields(ImportOptions) if stated else ():
        if field.name in stated:
            arguments[field.name] = inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=stated[field.name],
            )

    @wraps(tool)
    def call(**named: object) -> CallToolResult:
        beside: dict[str, Any] = {name: named.pop(name) for name in stated if name in named}
        try:
            given = {"options": ImportOptions(**beside)} if stated else {}
            answer = to_json(tool(**named, **given), fallback=str, exclude_none=True)
        except InputError as error:
            argument = error.path.rpartition(".")[2]
            raise ToolError(str(error.at(argument) if argument in arguments else error)) from None
        except AsapError as error:
            raise ToolError(str(error)) from None
        data = json.loads(answer, parse_float=lambda digits: float(f"{float(digits):.{DIGITS}g}"))
        text = TextContent(type="text", text=to_json(data).decode())
        return CallToolResult(content=[text], structured_content=data)

    call.__signature__ = inspect.Signature(list(arguments.values()))  # type: ignore[attr-defined]
    return call


def serve_http(server: MCPServer[object], port: int, announce: Callable[[str], None]) -> None:
    """On loopback only: there is no key. Pages of other sites are refused by their Host and Origin."""
    app = server.streamable_http_app(
        host=HOST, streamable_http_path=PATH, stateless_http=True, json_response=True
    )
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise AsapError(f"cannot listen on {HOST}:{port}: {error.strerror or error}") from None
    with listening:
        announce(f"http://{HOST}:{listening.getsockname()[1]}{PATH}")
        uvicorn.Server(uvicorn.Config(app, log_config=None)).run(sockets=[listening])


class AssistantTools:
    """The docstrings of the methods are the descriptions that an assistant reads."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder = settings, folder.resolve()
        self._lock = Lock()
        self._count = 0
        self._reports: dict[str, tuple[Scenario, Report]] = {}

    def predict(self, scenario: PlannedJson) -> ExplainedPrediction:
        """Predict the step time of a training plan: 80% interval, breakdown, memory, MFU, bottleneck; the
        nearest measured run, what would make it surer, and which settings were assumed."""
        return explained(parse_scenario(scenario))

    def optimize(self, scenario: ScenarioJson) -> object:
        """Search every legal sharding plan; at most three proposals with speed-ups, reasons and risks.

        `constraints` fixes or limits plan fields, `traces` names a folder of profiles of today's run.
        `report` is its name for `ask`, `export_plan` and `patch_plan`.
        `advice` and `cases` are abridged: `search_knowledge` returns them whole, with their sources.
        Evidence without `says` repeats that of an earlier proposal with the same `ref`.
        """
        from graph.request import StatedRequest
        from graph.session import Session

        for name in ("mode", "approval"):
            if name in scenario:
                raise InputError(name, scenario[name], "not available to an assistant; 'asap serve' tunes")
        stated = build(StatedRequest, scenario)
        if stated.traces is not None:
            stated = stated.model_copy(update={"traces": str(self._resolve(stated.traces, "traces"))})
        request = stated.check()
        report = Session("mcp", self._context).run(request).report
        assert report is not None  # nobody is asked to approve
        with self._lock:
            self._count += 1
            self._reports[name := f"r{self._count}"] = (request.scenario, report)
            for oldest in list(self._reports)[:-MAX_REPORTS]:
                del self._reports[oldest]
        # how to try and load a plan is in the report's file: an assistant's memory is short
        too_long = {"proposals": {"__all__": {"two_runs", "checkpoint"}}}
        answer = report.model_dump(mode="json", include=REPORT_FIELDS, exclude=too_long, exclude_none=True)
        spelled_out = set()
        for evidence in (item for proposal in answer["proposals"] for item in proposal["evidence"]):
            fact = (evidence["ref"], evidence["says"])
            if fact in spelled_out:  # proposals share most of their evidence
                del evidence["says"]
            spelled_out.add(fact)
        return {"report": name, **answer}

    def ask(
        self,
        report: ReportName,
        question: Annotated[str, Field(description="why not tp 8, what if 128 devices, what limits it")],
    ) -> object:
        """Answer a question about a report: why not another plan, what if, what limits it, how sure it is."""
        from graph.ask import ask

        scenario, found = self._report(report)
        return ask(question, found, scenario, self._context).model_dump(exclude={"question", "trail"})

    def search_plans(self, scenario: ScenarioJson, constraints: PlanLimits, count: FewPlans = 3) -> object:
        """Search every legal plan under further constraints: at most three of different families."""
        return self._toolbox(scenario).search_plans(constraints, count)

    def compare_plans(self, scenario: ScenarioJson, plans: PlansJson) -> object:
        """Compare plans: step times, which terms differ, whether that is beyond the error.

        Each of `plans` holds the fields that differ from the scenario's plan, or else from the best one.
        """
        suggested = [build(SuggestedPlan, plan, f"plans.{number}.") for number, plan in enumerate(plans)]
        return {"plans": self._toolbox(scenario).compare_plans(suggested)}

    def explain_plan(
        self,
        scenario: ScenarioJson,
        plan: Annotated[PlanFields, Field(description="the fields that differ from the best plan")],
    ) -> object:
        """Say what speaks against a plan: the rule it breaks, the memory it lacks, the term that is slower.

        `plan` holds the fields that differ from the best plan, for instance {"tp": 8, "pp": 1}.
        """
        return explain_against_best(self._toolbox(scenario).workload, plan)

    def what_if(
        self,
        scenario: ScenarioJson,
        term: Annotated[str, Field(description=f"one of {', '.join(STEP_TERMS)}", max_length=60)],
        factor: Annotated[float, Field(ge=0, le=10)],
    ) -> object:
        """Say what the step would take if one term of its predicted breakdown took `factor` times as long."""
        return self._toolbox(scenario).what_if(term, factor)

    def export_plan(
        self,
        format: Annotated[str, Field(description=f"one of {', '.join(EXPORT_FORMATS)}")],
        scenario: PlannedJson | None = None,
        report: ReportName = "",
        proposal: ProposalRank = 1,
    ) -> Export:
        """Write a plan as the configuration of a training framework: a scenario's, or a report's proposal."""
        if (scenario is None) == (not report):
            raise InputError("scenario", NOTHING if scenario is None else "both", "give scenario or report")
        planned = self._proposed(report, proposal)[1] if scenario is None else parse_scenario(scenario)
        return write_plan(planned, format)

    def import_plan(
        self,
        options: ImportOptions,
        text: ConfigText = "",
        file: FilePath = "",
        format: FormatName = "",
        set: FileSettings | None = None,
    ) -> object:
        """Read a config.json, or the script or configuration of a training job, as a scenario.

        Most files name neither devices nor model: give them beside it. `assumed` lists what a config.json
        leaves open and nobody stated; `notes` and `unused` say what was not taken over.
        """
        beside = replace(options, find_module=self._modules(file)).setting(set or {})
        start = start_scenario(self._text(text, file), format or None, beside)
        imported = start.imported
        unused = [setting.path for setting in imported.unused if setting.reason != "harmless"]
        return {
            **{name: getattr(imported, name) for name in ("scenario", "parameters", "notes", "left_out")},
            "assumed": start.assumed,
            "unused": unused[:MAX_ITEMS],
        }

    def patch_plan(
        self,
        report: ReportName,
        proposal: ProposalRank = 1,
        text: ConfigText = "",
        file: FilePath = "",
        format: FormatName = "",
        set: FileSettings | None = None,
    ) -> Patch:
        """Change the user's own script or configuration to a report's proposal, as a unified diff.

        It must be the file that the report's scenario was imported from. Nothing is written.
        """
        before, beside = self._text(text, file), ImportOptions(find_module=self._modules(file))
        today, proposed = self._proposed(report, proposal)
        return change_file(before, file or "FILE", today, proposed, beside.setting(set or {}), format or None)

    def where(
        self, scenario: ScenarioJson, clusters: Annotated[list[CandidateCluster], Field(max_length=50)]
    ) -> object:
        """Compare clusters for a training: the best plan of each, days, cost, and what cannot run it.

        `run` of the scenario states the tokens: {"tokens": 15000000000000}.
        """
        goal = scenario.get("run")
        if not isinstance(goal, dict) or "tokens" not in goal:
            raise InputError("scenario.run.tokens", NOTHING, "state the tokens of the whole run")
        places = compare_places(build(StatedScenario, scenario), clusters)
        return {
            "places": [
                {
                    **place.model_dump(include=PLACE_FIELDS),
                    **(place.prediction.model_dump(include=RUN_FIELDS) if place.prediction else {}),
                }
                for place in places
            ]
        }

    def near_runs(self, scenario: ScenarioJson, count: Annotated[int, Field(ge=1, le=20)] = 5) -> object:
        """Find the published runs most like a scenario: what differs, step time measured and predicted."""
        found = nearest_runs(parse_scenario(scenario, need_plan=False), published_runs(), count)
        return {"runs": [run.row for run in found]}

    def check_runs(self, rows: RunRows) -> object:
        """Check rows of measured runs ({"id", "scenario", "measured": {"step_time_s"}}) before use."""
        checked = check_rows(rows, published_runs())
        return {"rows": [{"id": row.id, "findings": [asdict(f) for f in row.findings]} for row in checked]}

    def read_runs(
        self,
        scenario: PlannedJson,
        text: ConfigText = "",
        file: FilePath = "",
        id: Annotated[str, Field(max_length=100)] = "log",
    ) -> object:
        """Read step times and memory from a training log or a table of results, as rows of runs."""
        data = self._bytes(text, file, MAX_FILE_BYTES)
        table = find_table(data)
        if table is None:
            return {"rows": [read_log(data, parse_scenario(scenario), id).to_data()]}
        return {"rows": rows_of_table(table, scenario, id)}

    def hardware(
        self,
        name: Annotated[str, Field(description="such as h100-sxm-80gb; none lists all", max_length=60)] = "",
    ) -> object:
        """Describe a device: memory, peak rates, links, with sources. Without a name, list the catalogue."""
        if name:
            return describe(get_device(name))
        devices = map(get_device, device_names())
        return {
            "devices": [
                {"name": device.name, "title": device.title, "memory_gib": device.memory_bytes / 2**30}
                for device in devices
            ]
        }

    def diagnose(
        self,
        folder: Annotated[str, Field(description="traces of one run, one file per rank", max_length=4000)],
        view: Annotated[str | None, Field(json_schema_extra={"enum": [*VIEWS, None]})] = None,
    ) -> object:
        """Find where the time of profiled training steps goes, and why, from a folder of profiler traces.

        `view` shows one part in more detail: summary, stragglers, collectives, operations, host or variation.
        """
        from tools.trace.report import analyse_folder

        if view is not None and view not in VIEWS:
            raise InputError("view", view, f"allowed: {', '.join(VIEWS)}")
        report = analyse_folder(self._resolve(folder, "folder")).report
        if view is not None:
            return {view: ProfileTools(report).view(view)}
        lists = {name: getattr(report, name) for name in LIMITED_LISTS}
        shown = report.model_copy(update={name: items[:MAX_ITEMS] for name, items in lists.items()})
        more = {name: len(items) - MAX_ITEMS for name, items in lists.items() if len(items) > MAX_ITEMS}
        return {**shown.model_dump(include=TRACE_FIELDS), "left_out": more, "ranks": len(report.ranks)}

    def search_knowledge(
        self,
        query: Annotated[str, Field(description="a sentence, or a whole diagnosis", max_length=4000)],
        limit: Annotated[int, Field(ge=1, le=20)] = 5,
    ) -> object:
        """Find playbooks (advice with its conditions) and measured cases about sharding, with sources."""
        hits = []
        for hit in self._context.knowledge.search(query, limit=limit):
            head = {name: getattr(hit.entry, name) for name in ("id", "kind", "title", "status")}
            body = {name: value for name, value in hit.entry.json_body().items() if name not in head}
            hits.append({**head, "warning": hit.warning, "body": body})
        return {"hits": hits}

    def knowledge_entry(self, id: str) -> object:
        """A playbook or case as the knowledge base has it."""
        return self._context.knowledge.get(id).json_body()

    def _report(self, name: str) -> "tuple[Scenario, Report]":
        with self._lock:
            if name not in self._reports:
                known = ", ".join(self._reports) or "none yet"
                raise InputError("report", name, f"call optimize first; it knows {known}")
            return self._reports[name]

    def _proposed(self, name: str, rank: int) -> tuple[Scenario, Scenario]:
        """The report's scenario, and the same with a proposal's plan and settings."""
        scenario, report = self._report(name)
        if rank > len(report.proposals):
            raise InputError("proposal", rank, f"the report has {len(report.proposals)}")
        return scenario, report.proposals[rank - 1].of(scenario)

    def _text(self, text: str, file: str) -> str:
        return self._bytes(text, file, MAX_CONFIG_BYTES).decode("utf-8", "replace")

    def _bytes(self, text: str, file: str, max_bytes: int) -> bytes:
        """What the assistant sent, or the file that it names."""
        if bool(text) == bool(file):
            raise InputError("text", "both" if text else NOTHING, "give text or file")
        if text:
            return text.encode()
        try:
            data = self._resolve(file, "file").open("rb").read(max_bytes + 1)
        except OSError as error:
            raise InputError("file", file, error.strerror or "cannot be read") from None
        if len(data) > max_bytes:
            raise InputError("file", file, f"must have at most {max_bytes} bytes")
        return data

    def _modules(self, file: str) -> FindModule:
        """What a file imports or names, as far as it is below the server's folder."""
        return module_finder(self._resolve(file, "file"), self._folder) if file else no_module

    def _toolbox(self, scenario: ScenarioJson) -> Toolbox:
        return Toolbox(self._context, parse_scenario(scenario, need_plan=False))

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
