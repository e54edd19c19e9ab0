"""Writes asap_client/generated/ from the served OpenAPI document: models, calls and both clients.

Called by `make client`; a test fails if a file is out of date. An operation that is not in NAMES gets a name
made from its method and path, a schema that is not in RECORDS becomes a TypedDict under its own name.
"""

import json
import keyword
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]

CLIENT = Path(__file__).resolve().parents[1] / "asap_client"
FOLDER = CLIENT / "generated"
RECORDS = {
    "SessionRow": "Session",
    "SessionDetail": "SessionWithRequest",
    "SessionPage": "SessionPage",
    "EventRow": "Event",
    "ExportPublic": "Export",
    "TraceRow": "Trace",
    "TraceFile": "TraceFile",
    "TraceDetail": "TraceWithFiles",
    "TracePage": "TracePage",
    "EntryPublic": "Entry",
    "EntryPage": "EntryPage",
    "HitPublic": "Hit",
    "HitList": "Hits",
    "RunRow": "Run",
    "RunPage": "RunPage",
    "Schedule": "Schedule",
    "SchedulePage": "SchedulePage",
}
"""Schemas that callers hold as objects with attributes, by the name that the client gives them."""
NAMES = {
    "GET /healthz": "health",
    "GET /readyz": "ready",
    "GET /metrics": "metrics",
    "POST /v1/sessions": "submit",
    "GET /v1/sessions": "sessions",
    "GET /v1/sessions/{id}": "session",
    "PATCH /v1/sessions/{id}": "update",
    "DELETE /v1/sessions/{id}": "delete",
    "POST /v1/sessions/{id}/cancel": "cancel",
    "POST /v1/sessions/{id}/retry": "retry",
    "POST /v1/sessions/{id}/fork": "fork",
    "POST /v1/sessions/{id}/decision": "decide",
    "POST /v1/sessions/{id}/ask": "ask",
    "GET /v1/sessions/{id}/report": "report",
    "GET /v1/sessions/{id}/proposals": "proposals",
    "GET /v1/sessions/{id}/proposals/{rank}/export": "export",
    "POST /v1/traces": "create_trace",
    "GET /v1/traces": "traces",
    "GET /v1/traces/{id}": "trace",
    "POST /v1/traces/{id}/complete": "complete_trace",
    "PUT /v1/traces/{id}/files/{name}": "put_part",
    "GET /v1/knowledge": "knowledge_entries",
    "POST /v1/knowledge": "add_case",
    "GET /v1/knowledge/search": "search_knowledge",
    "GET /v1/knowledge/{id}": "knowledge",
    "POST /v1/knowledge/{id}/mark": "mark_case",
    "GET /v1/measurements": "clusters",
    "POST /v1/measurements": "report_runs",
    "GET /v1/measurements/{name}": "cluster",
    "DELETE /v1/measurements/{name}": "undo_runs",
    "GET /v1/hardware": "hardware",
    "GET /v1/hardware/{name}": "device",
    "POST /v1/predict": "predict",
    "POST /v1/predict/batch": "predict_batch",
    "POST /v1/plans/search": "search_plans",
    "POST /v1/plans/explain": "explain_plan",
    "POST /v1/plans/where": "compare_clusters",
    "POST /v1/schedules": "add_schedule",
    "GET /v1/schedules": "schedules",
    "GET /v1/schedules/{id}": "schedule",
    "DELETE /v1/schedules/{id}": "remove_schedule",
    "POST /v1/schedules/{id}/pause": "pause_schedule",
    "POST /v1/schedules/{id}/resume": "resume_schedule",
    "POST /v1/schedules/{id}/run": "run_schedule",
    "GET /v1/schedules/{id}/runs": "runs",
    "GET /v1/schedules/{id}/runs/{run_id}": "run",
    "GET /v1/schedules/{id}/runs/{run_id}/report": "run_report",
    "GET /v1/schedules/{id}/runs/{run_id}/workloads/{name}": "workload_report",
    "GET /v1/workloads": "workloads",
    "GET /v1/workloads/{name}": "workload",
    "DELETE /v1/workloads/{name}": "forget_workload",
    "GET /v1/audit": "audit",
}
VERBS = {"GET": "get", "POST": "create", "PUT": "put", "PATCH": "update", "DELETE": "delete"}
NOT_IDEMPOTENT = {"retry", "create_trace", "add_schedule", "run_schedule"}
"""A second attempt would be refused, or create a second thing."""
UNWRAPPED = {"ProposalList", "WorkloadList"}
"""Responses of which only `items` is returned."""
ARGUMENTS = {"q": "query"}
"""Parameters that the client calls otherwise."""
FINAL_STATES = {"completed", "failed", "cancelled", "skipped"}
OF_CORE = (
    "Body", "Call", "JsonObject", "as_items", "as_json", "as_nothing", "as_record", "as_text",
    "idempotency_header", "path", "stated",
)  # fmt: skip
EVENT_STREAM = "text/event-stream"
"""Followed by asap_client/operations.py."""
WIDTH = 96
ANY_JSON = "JsonValue"
JSON_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
TO_SYNCHRONOUS = (
    (
        "The client for asyncio; `make client` writes generated/client.py from it",
        "The client",
    ),
    ("in an `async with` statement.", "in a `with` statement. Threads may share one."),
    ("from anyio.to_thread import run_sync\n", ""),
    ("import anyio\n", "import time\n"),
    ("anyio.sleep", "time.sleep"),
    ("await run_sync(advance, steps, attempt)  # an upload reads files", "advance(steps, attempt)"),
    ("AsyncBaseTransport", "BaseTransport"),
    ("async_operations", "operations"),
    ("AsyncOperations", "Operations"),
    ("AsyncClient", "Client"),
    ("AsyncIterator", "Iterator"),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("aclose", "close"),
    ("aread", "read"),
    ("aiter_lines", "iter_lines"),
    ("async ", ""),
    ("await ", ""),
)


def make_client(document: Json) -> dict[str, str]:
    """The text of every file of asap_client/generated, by its name."""
    operations = [
        Operation(method.upper(), path, operation, document["components"]["schemas"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if EVENT_STREAM not in next(iter(operation["responses"].values())).get("content", {})
    ]
    asynchronous = write_operations(operations)
    client = (CLIENT / "async_client.py").read_text(encoding="utf-8")
    texts = {
        "models.py": write_models(document["components"]["schemas"], operations),
        "calls.py": write_calls(operations),
        "async_operations.py": asynchronous,
        "operations.py": make_synchronous(asynchronous),
        "client.py": make_synchronous(client),
    }
    return {name: tidy(name, text) for name, text in texts.items()}


@dataclass(frozen=True)
class Argument:
    name: str
    hint: str
    default: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.hint}" + ("" if self.default is None else f" = {self.default}")


class Operation:
    """One operation of the document as a function: its name, arguments and result."""

    def __init__(self, method: str, path: str, operation: Json, schemas: Json) -> None:
        self.method, self.path, self._schemas = method, path, schemas
        self.name = NAMES.get(f"{method} {path}") or _derived_name(method, path)
        self.summary, self.description = operation["summary"], operation.get("description", "")
        self.body: Json | None = None
        """Schema of a JSON body."""
        self.flattened: list[str] = []
        """Fields of a small body, each an argument of its own."""
        parameters = operation.get("parameters", [])
        self.queries = {item["name"]: item for item in parameters if item["in"] == "query"}
        self.has_key = any(item["name"] == "Idempotency-Key" for item in parameters)
        self.has_accept = any(item["name"] == "accept" for item in parameters)
        self.positional = [
            Argument(item["name"], hint(item["schema"])) for item in parameters if item["in"] == "path"
        ]
        self.named: list[Argument] = []
        contents = operation.get("requestBody", {}).get("content", {})
        self.sends_bytes = "application/octet-stream" in contents
        if self.sends_bytes:
            self.positional.append(Argument("content", "bytes"))
        if "application/json" in contents:
            self._add_body(contents["application/json"]["schema"], schemas)
        for item in self.queries.values():
            argument = ARGUMENTS.get(item["name"], item["name"])
            if item.get("required") or argument != item["name"]:
                self.positional.append(Argument(argument, hint(item["schema"])))
            else:
                self.named.append(Argument(argument, _optional(item["schema"]), "None"))
        response = next(response for status, response in operation["responses"].items() if status[0] == "2")
        contents = response.get("content", {})
        self.result: Json | None = contents.get("application/json", {}).get("schema")
        name = _reference(self.result or {})
        self.item_hint = hint(schemas[name]["properties"]["items"]) if name in UNWRAPPED and name else None
        self.text_forms = [name for name in contents if name in ("text/markdown", "text/html")]
        self.is_text = "text/plain" in contents and self.result is None

    def _add_body(self, schema: Json, schemas: Json) -> None:
        self.body = schema
        name = _reference(schema)
        described = schemas[name] if name else schema
        properties = described.get("properties", {})
        required = described.get("required", [])
        if described.get("additionalProperties") is False and (
            len(properties) == 1 or len(properties) == 2 == len(required)
        ):
            self.flattened = list(properties)
            for field, content in properties.items():
                default = None if field in required else repr(content.get("default"))
                self.positional.append(Argument(field, _body_hint(content), default))
        else:
            title = described["title"]
            argument = "changes" if title.endswith("Patch") else title.removesuffix("Create").lower()
            self.positional.append(Argument(argument, _body_hint(schema)))
            self.body_argument = argument

    @property
    def page_item(self) -> str | None:
        """What the pages hold, if this lists something in pages."""
        name = _reference(self.result or {})
        is_paged = name is not None and name in RECORDS and "cursor" in self.queries
        item = _reference(self._schemas[name]["properties"]["items"]["items"]) if name and is_paged else None
        return RECORDS[item] if item else None

    @property
    def result_hint(self) -> str:
        if self.is_text:
            return "str"
        if self.result is None:
            return "None"
        return self.item_hint or hint(self.result)

    @property
    def reader(self) -> str:
        name = _reference(self.result or {})
        if self.is_text or self.result is None:
            return "as_text" if self.is_text else "as_nothing"
        if name in RECORDS:
            return f"as_record({RECORDS[name]})"
        return "as_items" if name in UNWRAPPED else "as_json"

    def signature(self, *more: Argument, of_method: bool = False) -> str:
        arguments = [*(["self"] if of_method else []), *map(str, self.positional), *map(str, more)]
        if self.named:
            arguments += ["*", *map(str, self.named)]
        if self.has_key:
            arguments.append("idempotency_key: str | None = None")
        return ", ".join(arguments)

    def passed_on(self, *more: str) -> str:
        words = [argument.name for argument in self.positional] + list(more)
        words += [f"{argument.name}={argument.name}" for argument in self.named]
        return ", ".join([*words, *(["idempotency_key"] if self.has_key else [])])

    def call(self, reader: str, accept: str | None) -> str:
        """The expression that makes the call."""
        place = re.sub(r"{(\w+)}", r"{path(\1)}", self.path)
        words = [f'"{self.method}"', f'{"f" if "{" in place else ""}"{place}"', reader]
        if self.queries:
            passed = (f"{name}={ARGUMENTS.get(name, name)}" for name in self.queries)
            words.append(f"params=stated({', '.join(passed)})")
        if self.flattened:
            fields = (f'"{name}": {_as_sent(name, self.positional)}' for name in self.flattened)
            words.append(f"json={{{', '.join(fields)}}}")
        elif self.body is not None:
            words.append(f"json={_as_sent(self.body_argument, self.positional)}")
        if self.sends_bytes:
            words.append("content=content")
        if self.has_key:
            words.append("headers=idempotency_header(idempotency_key)")
        if accept:
            words.append(f'headers={{"Accept": {accept}}}')
        if self.name in NOT_IDEMPOTENT:
            words.append("idempotent=False")
        return f"Call({', '.join(words)})"


def write_models(schemas: Json, operations: list[Operation]) -> str:
    parts = [
        _opening("The API's requests and responses."),
        "from __future__ import annotations",
        "from dataclasses import dataclass\nfrom datetime import datetime",
        "from typing import TYPE_CHECKING, Any, Literal, TypedDict",
        "from asap_client.core import JsonObject, Record",
        "if TYPE_CHECKING:\n    from typing import NotRequired  # Python 3.10 has none",
    ]
    roots = [schema for operation in operations for schema in (operation.body, operation.result) if schema]
    used = _reachable([*roots, *({"$ref": f"/{name}"} for name in RECORDS)], schemas)
    if missing := RECORDS.keys() - schemas.keys():
        raise SystemExit(f"RECORDS names schemas that the document lacks: {', '.join(sorted(missing))}")
    parts += [_typed_dict(name, schemas[name]) for name in sorted(used - RECORDS.keys() - {ANY_JSON})]
    parts += [_record(name, schemas) for name in RECORDS]
    return "\n\n".join(parts)


def write_calls(operations: list[Operation]) -> str:
    parts = [
        _opening("Every operation of the API as a function that returns a call."),
        "from collections.abc import Sequence\nfrom typing import Any, Literal\n",
        f"from asap_client.core import {', '.join(OF_CORE)}",
        f"from asap_client.generated.models import {', '.join(_named_types(operations))}",
        'ReportForm = Literal["text/markdown", "text/html"]',
    ]
    for one in operations:
        accept = '"application/json"' if one.has_accept else None
        head = f"def {one.name}({one.signature()}) -> Call[{one.result_hint}]:"
        parts.append(f"{head}\n    return {one.call(one.reader, accept)}")
        if one.text_forms:
            signature = one.signature(Argument("form", "ReportForm"))
            head = f"def {one.name}_text({signature}) -> Call[str]:"
            parts.append(f"{head}\n    return {one.call('as_text', 'form')}")
    return "\n\n\n".join(parts)


def write_operations(operations: list[Operation]) -> str:
    """The asynchronous methods; the synchronous ones are made from them."""
    opening = [
        _opening("The methods of a client, one for every operation of the API."),
        "from abc import ABC, abstractmethod\nfrom collections.abc import AsyncIterator, Sequence",
        "from typing import Any, Literal, TypeVar\n",
        "from asap_client.core import Body, Call, JsonObject\nfrom asap_client.generated import calls",
        f"from asap_client.generated.models import {', '.join(_named_types(operations))}\n",
        'T = TypeVar("T")\n\n\nclass AsyncOperations(ABC):\n',
    ]
    parts = ["@abstractmethod\nasync def send(self, call: Call[T]) -> T: ..."]
    for one in operations:
        head = f"async def {one.name}({one.signature(of_method=True)}) -> {one.result_hint}:"
        docstring = _docstring(f"{one.summary}.", one.description)
        parts.append(f"{head}\n{docstring}\n    return await self.send(calls.{one.name}({one.passed_on()}))")
        if one.text_forms:
            form = Argument("form", "calls.ReportForm", '"text/markdown"')
            parts += [
                f"async def {one.name}_text({one.signature(form, of_method=True)}) -> str:",
                f'    """{one.summary}, as Markdown or one HTML page."""',
                f"    return await self.send(calls.{one.name}_text({one.passed_on('form')}))",
            ]
        if one.page_item:
            signature = one.signature(of_method=True)
            parts += [
                f"async def all_{one.name}({signature}) -> AsyncIterator[{one.page_item}]:",
                '    """Follows the cursor through all pages."""\n    while True:',
                f"        page = await self.{one.name}({one.passed_on()})",
                "        for item in page.items:\n            yield item",
                "        cursor = page.next_cursor\n        if cursor is None:\n            return",
            ]
    return "\n".join(opening) + textwrap.indent("\n".join(parts), "    ")


def make_synchronous(text: str) -> str:
    for asynchronous, synchronous in TO_SYNCHRONOUS:
        text = text.replace(asynchronous, synchronous)
    return text


def tidy(name: str, text: str) -> str:
    """Without unused imports, sorted and formatted."""
    for command in ("check --select F401,I,UP028 --fix --unsafe-fixes", "format"):
        words = [sys.executable, "-m", "ruff", *command.split(), "--quiet", "--stdin-filename"]
        words += [str(FOLDER / name), "-"]
        text = subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout
    return text


def hint(schema: Json, *, in_record: bool = False) -> str:
    """The Python type of a schema. Times are datetimes in records, texts elsewhere."""
    if name := _reference(schema):
        if name == ANY_JSON:
            return "Any"
        return RECORDS.get(name, name)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        hints = list(dict.fromkeys(hint(option, in_record=in_record) for option in options))
        return "Any" if "Any" in hints else " | ".join(hints)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema["const"]]
        return f"Literal[{', '.join(repr(value) for value in values)}]"
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items") or {"anyOf": schema.get("prefixItems", [{}])}
        return f"list[{hint(items, in_record=in_record) if isinstance(items, dict) else 'Any'}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {hint(values, in_record=in_record)}]" if isinstance(values, dict) else "JsonObject"
    if in_record and schema.get("format") == "date-time":
        return "datetime"
    return JSON_TYPES.get(str(kind), "Any")


def _optional(schema: Json) -> str:
    kind = hint(schema)
    if kind.startswith("list["):
        kind = f"{kind[5:-1]} | {kind}"
    return kind if "None" in kind else f"{kind} | None"


def _body_hint(schema: Json) -> str:
    """What a caller may pass for a body: any mapping, and a TypedDict says which."""
    if schema.get("type") == "array":
        return "Sequence[Body]"
    if "anyOf" in schema:
        options = dict.fromkeys(_body_hint(option) for option in schema["anyOf"])
        return " | ".join(option for option in options if option != "None")
    if name := _reference(schema):
        return f"{name} | Body"
    kind = hint(schema)
    return "Body" if kind == "JsonObject" else kind


def _as_sent(name: str, arguments: list[Argument]) -> str:
    kind = next(argument.hint for argument in arguments if argument.name == name)
    if kind.startswith("Sequence[Body]"):
        return f"[dict(item) for item in {name}]" if "|" not in kind else name
    return f"dict({name})" if "Body" in kind else name


def _reference(schema: Json) -> str | None:
    reference = schema.get("$ref")
    return reference.rpartition("/")[2] if reference else None


def _reachable(roots: list[Json], schemas: Json) -> set[str]:
    found: set[str] = set()
    waiting = re.findall(r'"\$ref": "[^"]*/([^"/]+)"', json.dumps(roots))
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += re.findall(r'"\$ref": "[^"]*/([^"/]+)"', json.dumps(schemas[name]))
    return found


def _derived_name(method: str, path: str) -> str:
    words = [word for word in path.split("/") if word and "{" not in word]
    return f"{VERBS[method]}_{words[-1].removesuffix('s') if path.endswith('}') else words[-1]}"


def _named_types(operations: list[Operation]) -> list[str]:
    """Every class that a signature names; those that are not used are removed by `tidy`."""
    hints = [argument.hint for one in operations for argument in one.positional]
    hints += [one.result_hint for one in operations] + [one.page_item or "" for one in operations]
    words = set(re.findall(r"\b[A-Z]\w+", " ".join(re.sub(r"Literal\[[^]]*\]", "", hint) for hint in hints)))
    return sorted(words - {"Any", "Body", "JsonObject", "None", "Sequence"})


def _opening(summary: str) -> str:
    return f'"""{summary}\n\nWritten by `make client`: edit scripts/make_client.py.\n"""'


def _docstring(summary: str, more: str = "") -> str:
    lines = textwrap.wrap(summary, WIDTH)
    if more:
        lines += ["", *textwrap.wrap(more, WIDTH)]
    text = "\n".join(lines) + ("\n" if len(lines) > 1 else "")
    return textwrap.indent(f'"""{text}"""', "    ")


def _fields(schema: Json, *, in_record: bool) -> Iterator[str]:
    required = schema.get("required", [])
    for name, content in schema.get("properties", {}).items():
        kind = hint(content, in_record=in_record)
        if name in required:
            yield f"    {name}: {kind}"
        elif in_record:
            yield f"    {name}: {kind if 'None' in kind else f'{kind} | None'} = None"
        else:
            yield f"    {name}: NotRequired[{kind}]"
        if described := content.get("description"):
            yield _docstring(described[0].upper() + described[1:] + ("" if described.endswith(".") else "."))


def _typed_dict(name: str, schema: Json) -> str:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if all(field.isidentifier() and not keyword.iskeyword(field) for field in properties):
        lines = [f"class {name}(TypedDict):", *_fields(schema, in_record=False)]
        if schema.get("description"):
            lines.insert(1, _docstring(schema["description"].splitlines()[0]) + "\n")
        return "\n".join(lines if len(lines) > 1 else [*lines, "    pass"])
    hints = {field: hint(content) for field, content in properties.items()}
    hints |= {field: f"NotRequired[{hints[field]}]" for field in hints if field not in required}
    items = (f'"{field}": {kind!r}' for field, kind in hints.items())
    return f'{name} = TypedDict("{name}", {{{", ".join(items)}}})'


def _record(name: str, schemas: Json) -> str:
    schema = schemas[name]
    properties = schema["properties"]
    base, inherited = "Record", Json()
    for other in RECORDS:
        fields = schemas[other]["properties"]
        is_part = all(properties.get(field) == content for field, content in fields.items())
        if other != name and len(fields) > len(inherited) and is_part:
            base, inherited = RECORDS[other], fields
    rest = {field: content for field, content in properties.items() if field not in inherited}
    lines = [f"@dataclass(frozen=True, kw_only=True)\nclass {RECORDS[name]}({base}):"]
    if schema.get("description"):
        lines.append(_docstring(schema["description"].splitlines()[0]) + "\n")
    lines += _fields({"properties": rest, "required": schema.get("required", [])}, in_record=True)
    states = [state for state in properties.get("state", {}).get("enum", []) if state in FINAL_STATES]
    if states and base == "Record":
        test = f"        return self.state in {tuple(states)!r}"
        lines += ["", "    @property", "    def is_over(self) -> bool:", test]
    return "\n".join(lines)


def served_document() -> Json:
    """What a server of this checkout describes at /openapi.json."""
    from service.app import create_app, make_app_state
    from service.db.engine import open_database
    from service.http.openapi import describe
    from service.sessions.dispatch import session_queue
    from service.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        with closing(open_database(settings.database)) as database:
            return describe(create_app(make_app_state(settings, database, session_queue(database))))


if __name__ == "__main__":
    for name, text in make_client(served_document()).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
